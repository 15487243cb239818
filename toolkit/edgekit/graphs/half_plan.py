"""Which nodes compute in float16, by the ranges they meet, and why the others do not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgekit.graphs.edit import GraphIndex, is_standard
from edgekit.graphs.half_types import (
    FOLLOWERS,
    HALF_MAX,
    MOST_EXACT,
    SMALLEST_USEFUL,
    HalfTypes,
)
from edgekit.graphs.storage import element_count
from edgekit.numerics.ranges import RangeMeter

if TYPE_CHECKING:
    import onnx

HEADROOM = 1.5
"""Values on the device may be this much larger than those seen in calibration."""

LIMIT = HALF_MAX / HEADROOM


@dataclass(frozen=True, kw_only=True)
class HalfPlan:
    """The decisions for one graph.

    Attributes:
        half: nodes of the main graph that compute in float16.
        reasons: node name -> why it stays float32, for nodes that have to do with floats and do not only move values.
        wide: constants with values that float16 cannot hold -> why.
        overruled: nodes that compute in float16 because a recipe says so -> what speaks against it.
    """

    half: frozenset[str]
    reasons: Mapping[str, str]
    wide: Mapping[str, str]
    overruled: Mapping[str, str] = field(default_factory=dict)


def constant_problem(values: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> str:
    """Say why a constant cannot be stored in float16; empty when it can."""
    if not values.size:
        return ""
    magnitudes = np.abs(values[np.isfinite(values)])
    over = int(np.count_nonzero(magnitudes > HALF_MAX))
    if over:
        count = f"{over} value{'s' * (over > 1)}"
        return f"{count} out of float16 range (largest magnitude {float(magnitudes.max()):.3g})"
    nonzero = magnitudes[magnitudes > 0]
    if nonzero.size and float(nonzero.max()) < SMALLEST_USEFUL:
        return f"values that all but vanish in float16 (largest magnitude {float(nonzero.max()):.3g})"
    return ""


class HalfPlanner:
    """Decides for one graph from what calibration saw."""

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path,
        types: HalfTypes,
        meters: Mapping[str, RangeMeter],
        sums: Mapping[str, float],
        forced: Collection[str] = (),
    ) -> None:
        """Index the graph and look at its constants; `forced` nodes are float16 whatever their ranges are."""
        self.index = GraphIndex(model.graph, folder)
        self.types = types
        self._meters = meters
        self._sums = sums
        self.forced = frozenset(forced)
        self._wide: dict[str, str] = {}
        for name, tensor in self.index.initializers.items():
            if name in types.floats and element_count(tensor.dims):
                values = self.index.value(name)
                problem = constant_problem(np.asarray(values)) if values is not None else ""
                if problem:
                    self._wide[name] = problem

    def plan(self, keep: Mapping[str, str]) -> HalfPlan:
        """Decide.

        Args:
            keep: nodes that stay float32 -> why.
        """
        half: set[str] = set()
        reasons: dict[str, str] = {}
        for node in self.index.graph.node:
            inputs, outputs = self.types.inputs(node), self.types.outputs(node)
            if not inputs and not outputs:
                continue
            reason = self._reason(node, inputs, outputs, keep)
            if not reason and self._follows_floats(node, half):
                continue
            if reason:
                reasons[node.name] = reason
            else:
                half.add(node.name)
        overruled = {node.name: why for node in self.index.graph.node if (why := self._overruled(node, half))}
        return HalfPlan(half=frozenset(half), reasons=reasons, wide=dict(self._wide), overruled=overruled)

    def _overruled(self, node: onnx.NodeProto, half: set[str]) -> str:
        if node.name not in self.forced or node.name not in half:
            return ""
        return self._by_range(node, [node.input[i] for i in self.types.inputs(node)] + self.types.outputs(node))

    def _follows_floats(self, node: onnx.NodeProto, half: set[str]) -> bool:
        """Say whether a node that only moves values gets them in float32: then a Cast before it gains nothing."""
        if node.op_type not in FOLLOWERS:
            return False
        source = node.input[0]
        if source in self.index.initializers:
            return False
        maker = self.index.producers.get(source)
        return maker is None or maker.name not in half

    def _reason(self, node: onnx.NodeProto, inputs: list[int], outputs: list[str], keep: Mapping[str, str]) -> str:
        if node.name in keep:
            return keep[node.name]
        if refusal := self.types.refusal(node):
            return refusal
        names = [node.input[i] for i in inputs] + outputs
        return "" if node.name in self.forced and not self._wide.keys() & {*names} else self._by_range(node, names)

    def _by_range(self, node: onnx.NodeProto, names: list[str]) -> str:
        """Say why values do not fit; empty when they do."""
        for problem in self._tensor_problems(names):
            return problem
        outputs = self.types.outputs(node)
        if is_standard(node, "Cast") and not outputs and self._peak(node.input[0]) > MOST_EXACT:
            return (
                f"it turns '{node.input[0]}' into integers, and float16 holds integers exactly up to {MOST_EXACT} only"
            )
        total = self._sums.get(node.name, 0.0)
        if total > LIMIT:
            what = "its squares reach" if node.op_type.endswith("Normalization") else "the sums it makes reach"
            return f"{what} {total:.3g}, more than float16 holds (65504) with headroom"
        return ""

    def _tensor_problems(self, names: list[str]) -> Iterator[str]:
        for name in names:
            if name in self._wide:
                yield f"constant '{name}' has {self._wide[name]}"
                continue
            peak = self._peak(name)
            if peak > LIMIT:
                yield f"tensor '{name}' reaches {peak:.3g}, more than float16 holds (65504) with headroom"
            elif 0 < peak < SMALLEST_USEFUL:
                yield f"tensor '{name}' stays below {peak:.3g}, where float16 has lost its precision"
            elif peak > MOST_EXACT and self._counts(name):
                yield f"tensor '{name}' counts up to {peak:.0f}; float16 holds integers exactly up to {MOST_EXACT} only"

    def _peak(self, name: str) -> float:
        """Return the largest magnitude seen of a tensor, 0 when none was."""
        meter = self._meters.get(name)
        return max(-meter.low, meter.high) if meter is not None and meter.count else 0.0

    def _counts(self, name: str) -> bool:
        """Say whether a tensor holds integers: positions, lengths, indices."""
        maker = self.index.producers.get(name)
        if maker is None:
            return False
        return is_standard(maker, "Range") or (is_standard(maker, "Cast") and maker.input[0] not in self.types.floats)
