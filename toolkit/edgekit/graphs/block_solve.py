"""Quantizes the matrices of a plan with one method, group by group of the inputs that layers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edgekit.graphs.block_grams import Gram, Grams
from edgekit.graphs.block_plan import BlockWeight, matrix_of
from edgekit.graphs.edit import GraphIndex
from edgekit.graphs.weights import Weights
from edgekit.numerics.awq import scaled_gram, search_channel_scales
from edgekit.numerics.blockwise import BlockCodes, BlockFormat, Floats, quantize_rtn, scale_type_for
from edgekit.numerics.gptq import DAMPING, FIRM_DAMPING, output_error, quantize_gptq
from edgekit.numerics.hqq import quantize_hqq

Method = Literal["rtn", "hqq", "awq", "gptq"]
METHODS: tuple[Method, ...] = ("rtn", "hqq", "awq", "gptq")
_SWEEPS, _FEW_SWEEPS, _WIDE = 3, 1, 8  # further sweeps over codes of 8 bits gain 0.1 dB
NEED_DATA = frozenset({"awq", "gptq"})
"""Methods that look at the inputs of the layers."""


@dataclass(frozen=True, kw_only=True)
class Solved:
    """All matrices of a plan, quantized.

    Attributes:
        codes: weight key -> its codes.
        factors: input tensor -> factors `[K]` that it must be divided by, for the layers whose weights were multiplied.
        errors: weight key -> squared error of the layer's outputs as a share of their squares, where it is known.
    """

    codes: dict[tuple[int, str], BlockCodes]
    factors: dict[str, Floats]
    errors: dict[tuple[int, str], float]


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Quantizes the matrices of one graph.

    Attributes:
        weights: where the values come from.
        plan: what is quantized.
        index: the main graph.
        grams: the inputs' sums; None without samples.
        formats: weight key -> how it is stored.
        act_order: see `quantize_gptq`.
        given: factors of inputs that were chosen before, see `Solved`; None: `awq` and `gptq` search them.
        tell: called after each matrix.
    """

    weights: Weights
    plan: tuple[BlockWeight, ...]
    index: GraphIndex
    grams: Grams | None
    formats: Mapping[tuple[int, str], BlockFormat]
    act_order: bool
    given: Mapping[str, Floats] | None = None
    tell: Callable[[], None] = lambda: None

    def solve(self, method: Method) -> Solved:
        """Quantize every matrix; those whose inputs are not known are rounded by their values alone."""
        solved = Solved(codes={}, factors={}, errors={})
        left = {weight.key: weight for weight in self.plan}
        inputs = inputs_of(self.plan, self.index)
        if self.grams is not None:
            for grams in self.grams.each():
                for name, gram in grams.items():
                    group = [weight for weight in left.values() if inputs[weight.key] == name]
                    self._solve_group(method, name, group, gram, solved)
                    for weight in group:
                        del left[weight.key]
        for weight in left.values():
            self._solve_alone(method, weight, solved)
        return solved

    def _solve_alone(self, method: Method, weight: BlockWeight, solved: Solved) -> None:
        matrix = matrix_of(self.weights, weight)
        fmt = self._format(weight, matrix)
        solved.codes[weight.key] = quantize_hqq(matrix, fmt) if method == "hqq" else quantize_rtn(matrix, fmt)
        self.tell()

    def _solve_group(self, method: Method, name: str, group: list[BlockWeight], gram: Gram, solved: Solved) -> None:
        factors = self._factors(method, group, gram) if self.given is None else self.given.get(name)
        if factors is not None:
            solved.factors[name] = factors
        for weight in group:
            matrix = matrix_of(self.weights, weight)
            solved.codes[weight.key], error = self._solve_one(method, weight, matrix, gram, factors)
            signal = output_error(matrix, np.zeros_like(matrix), gram)
            solved.errors[weight.key] = error / signal if signal > 0 else 0.0
            self.tell()

    def _factors(self, method: Method, group: list[BlockWeight], gram: Gram) -> Floats | None:
        """Search factors for an input, unless something else reads the matrices of its readers."""
        if method not in NEED_DATA or not group or any(len(weight.operands) > 1 for weight in group):
            return None
        matrices = [matrix_of(self.weights, weight) for weight in group]
        fmt = self._format(group[0], matrices[0])
        found = search_channel_scales(matrices, fmt, gram, learned=method == "gptq")
        return found.factors if any(found.powers) else None

    def _solve_one(
        self, method: Method, weight: BlockWeight, matrix: Floats, gram: Gram, factors: Floats | None
    ) -> tuple[BlockCodes, float]:
        scaled = matrix if factors is None else matrix * factors
        fmt = self._format(weight, scaled)
        if method == "gptq":
            inner = gram if factors is None else scaled_gram(gram, factors)
            wide = fmt.bits == _WIDE
            codes = quantize_gptq(
                scaled,
                fmt,
                inner,
                act_order=self.act_order,
                damping=FIRM_DAMPING if wide or weight.is_table else DAMPING,  # looked-up rows stay near as they are
                sweeps=_FEW_SWEEPS if wide else _SWEEPS,
            )
        elif method == "hqq":
            codes = quantize_hqq(scaled, fmt)
        elif method == "awq" and not weight.is_table:
            heavy = np.diagonal(gram) / (1 if factors is None else factors**2)
            codes = quantize_rtn(scaled, fmt, np.maximum(heavy, 1e-6 * heavy.max(initial=1e-30)))
        else:
            codes = quantize_rtn(scaled, fmt)
        near = codes.dequantized()
        return codes, output_error(matrix, near if factors is None else near / factors, gram)

    def _format(self, weight: BlockWeight, matrix: Floats) -> BlockFormat:
        fmt = self.formats[weight.key]
        if fmt.scale_type == "float16":
            return replace(fmt, scale_type=scale_type_for(matrix, fmt))
        return fmt


def inputs_of(plan: Sequence[BlockWeight], index: GraphIndex) -> dict[tuple[int, str], str]:
    """Return the tensor that each matrix's products all read; empty when they differ, or stand in an inner graph."""
    main = {node.name: node for node in index.graph.node}
    found = {}
    for weight in plan:
        names = {main[operand.node].input[0] if operand.node in main else "" for operand in weight.products}
        found[weight.key] = names.pop() if len(names) == 1 else ""
    return found
