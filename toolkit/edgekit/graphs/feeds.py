"""Random inputs that a model can take: right names, types and shapes, indices inside the tables they look up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.errors import UnsupportedError
from edgekit.graphs.edit import GraphIndex, is_standard

if TYPE_CHECKING:
    import onnx

Feed = dict[str, npt.NDArray[np.generic]]

_MAX_INDEX = 1000
_PASSES_INDICES = (
    "Cast",
    "Identity",
    "Reshape",
    "Unsqueeze",
    "Squeeze",
    "Flatten",
    "Slice",
    "Clip",
    "Where",
    "Expand",
)


def random_feed(specs: Iterable[TensorSpec], sizes: Mapping[str, int], bounds: Mapping[str, int], *, seed: int) -> Feed:
    """Draw one feed.

    Floats are normal for even seeds and uniform in [0, 1) for odd ones, so that neither negative numbers nor their
    absence goes untested. Integers are below the input's bound (see `index_bounds`), else 0 or 1, mostly 1, so that
    masks hide little; the first element is never masked.

    Args:
        specs: the model's inputs.
        sizes: axis name -> size of dynamic axes.
        bounds: input name -> exclusive upper bound of its integers.
        seed: the seed.

    Raises:
        UnsupportedError: an input has a type that numpy cannot feed.
    """
    generator = np.random.default_rng(seed)
    feed: Feed = {}
    for spec in specs:
        shape = tuple(dim if isinstance(dim, int) else sizes[dim] for dim in spec.shape)
        feed[spec.name] = _draw(generator, spec, shape, bounds.get(spec.name), normal=seed % 2 == 0)
    return feed


def _draw(
    generator: np.random.Generator, spec: TensorSpec, shape: tuple[int, ...], bound: int | None, *, normal: bool
) -> npt.NDArray[np.generic]:
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError:
        raise UnsupportedError(
            f"no random input can be made of type {spec.dtype}",
            where=f"input '{spec.name}'",
            remedy="Give the model float32, float16 or integer inputs.",
        ) from None
    if dtype.kind == "f":
        values = generator.standard_normal(shape) if normal else generator.random(shape)
        return np.asarray(values, dtype=dtype)
    if dtype.kind == "c":
        return np.asarray(generator.standard_normal(shape), dtype=dtype)
    if bound is None:
        drawn = np.asarray(generator.random(shape) < 0.75)  # noqa: PLR2004 - see `random_feed`
        if drawn.ndim:
            drawn[..., :1] = True
    else:
        drawn = np.asarray(generator.integers(0, max(bound, 1), shape))
    return drawn.astype(dtype)


def index_bounds(model: onnx.ModelProto, specs: Iterable[TensorSpec], folder: Path | None = None) -> dict[str, int]:
    """Find, for each integer input that is used as indices, how far they may go: the smallest table it looks up."""
    index = GraphIndex(model.graph, folder)
    bounds: dict[str, int] = {}
    for spec in specs:
        if not spec.dtype.startswith(("int", "uint")):
            continue
        found = [size for node, name in _gathers(index, spec.name) if (size := _table_size(index, node, name))]
        if found:
            bounds[spec.name] = min(*found, _MAX_INDEX)
    return bounds


def _gathers(index: GraphIndex, name: str) -> list[tuple[onnx.NodeProto, str]]:
    found, waiting, seen = [], [name], {name}
    while waiting:
        current = waiting.pop()
        for node in index.consumers.get(current, []):
            if is_standard(node, "Gather", "GatherElements") and node.input[1] == current:
                found.append((node, current))
            elif node.op_type == "EmbedLayerNormalization" or is_standard(node, *_PASSES_INDICES):
                if node.op_type == "EmbedLayerNormalization":
                    found.append((node, current))
                waiting += [out for out in node.output if out and out not in seen]
                seen.update(node.output)
    return found


def _table_size(index: GraphIndex, node: onnx.NodeProto, name: str) -> int | None:
    if node.op_type == "EmbedLayerNormalization":  # inputs: ids, segments, word table, position table, segment table
        table = node.input[4] if len(node.input) > 4 and node.input[1] == name else node.input[2]  # noqa: PLR2004
        axis = 0
    else:
        table = node.input[0]
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    dims = _dims(index, table)
    return dims[axis] if dims and -len(dims) <= axis < len(dims) else None


def _dims(index: GraphIndex, name: str) -> Sequence[int] | None:
    """Return the dims of a constant, seen through the nodes that dequantize or cast it."""
    for _ in range(8):
        tensor = index.constant(name)
        if tensor is not None:
            return list(tensor.dims)
        node = index.producers.get(name)
        if node is None or node.op_type not in {"DequantizeLinear", "Cast", "Mul", "Sub", "Identity"}:
            return None
        name = node.input[0]
    return None


def save_feeds(path: Path, feeds: Sequence[Mapping[str, npt.NDArray[Any]]]) -> list[list[str]]:
    """Write feeds to an `.npz` for a child process; return the input names, which are no safe keys there."""
    arrays = {f"{i}.{j}": array for i, feed in enumerate(feeds) for j, array in enumerate(feed.values())}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy types **kwds as its one bool option too
    return [list(feed) for feed in feeds]


def load_feeds(path: Path, names: Sequence[Sequence[str]]) -> list[Feed]:
    """Read what `save_feeds` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return [{name: file[f"{i}.{j}"] for j, name in enumerate(row)} for i, row in enumerate(names)]
