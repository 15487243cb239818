"""What each layer of a graph costs on a device, by the roofline of its profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.errors import EdgekitError
from edgekit.graphs.cost import cost_of
from edgekit.graphs.edit import save_model
from edgekit.graphs.fusion import fuse
from edgekit.graphs.roofline import kernel_seconds
from edgekit.profile import Profile

if TYPE_CHECKING:
    import onnx

_PRODUCT = "_product"


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Predicted times of one graph.

    Attributes:
        seconds: node -> seconds of the kernel that it leads, its activation and the like included.
        total: seconds of one run.
    """

    seconds: Mapping[str, float]
    total: float


def layer_times(
    model: onnx.ModelProto, folder: Path, shapes: Mapping[str, Sequence[int]], profile: Profile, scratch: Path
) -> LayerTimes | str:
    """Predict the time of every layer; the reason when the work of a graph cannot be counted.

    Args:
        model: a graph, quantized or not; products with ranges of the moment count for the node that they came from.
        folder: where its external data lies.
        shapes: input name -> shape.
        profile: the device.
        scratch: a folder to write the graph to for the while.
    """
    file = scratch / "counted.onnx"
    try:
        save_model(model, file, source=folder)
        cost = cost_of(file, shapes)
    except EdgekitError as error:
        return error.text
    finally:
        for left in scratch.glob("counted.onnx*"):
            left.unlink()
    if cost.uncounted or cost.unshaped:
        return f"the work of '{[*cost.uncounted, *cost.unshaped][0]}' is not known"
    seconds: dict[str, float] = {}
    total = 0.0
    for group in fuse(cost):
        spent = kernel_seconds(group, profile)
        total += spent
        name = group.rows[0].node.removesuffix(_PRODUCT)
        seconds[name] = seconds.get(name, 0.0) + spent
    return LayerTimes(seconds=seconds, total=total)
