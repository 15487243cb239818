"""Learned rounding of a quantized graph: product by product, each fed with what the products before it now give.

Bias correction alone is the same with weights that stay: each bias makes its product's mean outputs those of the float
model (Nagel et al., 2019, with what the product is really fed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.padding import shown
from edgekit.graphs.products import (
    Product,
    as_rows,
    constant,
    find_products,
    from_rows,
    input_columns,
    output_columns,
    replace_constant,
)
from edgekit.graphs.stepping import Stepper
from edgekit.numerics.affine import quantize_bias
from edgekit.numerics.equalize import at_run_time
from edgekit.numerics.moments import Moments
from edgekit.numerics.rounding import STRENGTHS, Steps, round_layer

if TYPE_CHECKING:
    import onnx

    from edgekit.data import Samples

MOST_COLUMNS = 512
"""Columns of one sample that enter the moments of a layer, spread evenly."""

COLUMNS_AN_INPUT, LEAST_SAMPLES = 16, 64
"""A layer's moments are settled after so many columns for each of its inputs and so many samples: no more are run."""

LARGEST = 2048
"""Inputs of one output above which a product's weights stay as they are: the moments grow with the square."""

FEW_BITS = 4
"""Bits of a weight up to which the scales of its rows are searched too: with more, none does better than the peak's."""

FACTORS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6)
"""Scales that are tried, as multiples of the one that reaches the row's largest weight."""

_BIAS = 2
_MOST_COUNTS = float(2**30)  # of a bias: half of what fits, since it is learned too


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What one product gained.

    Attributes:
        node: its name.
        before: squared output error on held-out samples, relative to the output, before.
        after: the same after.
        moved: integers that changed.
    """

    node: str
    before: float
    after: float
    moved: int


@dataclass(frozen=True, kw_only=True)
class Rounder:
    """Learns the rounding of one quantized graph.

    Attributes:
        source: the float graph.
        folder: where its external data lies.
        quantized: the quantized graph, which is changed.
        samples: calibration samples.
        fit: those to learn from.
        held: those to choose by.
        bits: of the weights, sign included.
        weights: whether weights are rounded anew.
        biases: whether biases follow the mean error of the outputs.
        threads: CPU threads.
        tell: called with products done and in all.
    """

    source: onnx.ModelProto
    folder: Path
    quantized: onnx.ModelProto
    samples: Samples
    fit: Sequence[int]
    held: Sequence[int]
    bits: int = 8
    weights: bool = True
    biases: bool = True
    threads: int = 1
    tell: Callable[[int, int], None] = lambda _done, _total: None

    def learn(self) -> list[Learned]:
        """Round every product in graph order; return what each gained."""
        products = [self._given(found) for found in find_products(self.source, self.quantized) if self._suits(found)]
        products = [product for product in products if self.weights or product.bias]
        indices = shuffled([*self.fit, *self.held])
        original, candidate = (
            Stepper(model, self.folder, self.samples, indices, threads=self.threads)
            for model in (self.source, self.quantized)
        )
        found = []
        for number, product in enumerate(products):
            self.tell(number, len(products))
            candidate.keep(product.read)
            found.append(self._one(product, original, candidate))
            original.keep(product.node.output[0])
        return found

    def _suits(self, product: Product) -> bool:
        return bool(as_rows(constant(self.quantized, product.weight), product.node).shape[2] <= LARGEST)

    def _given(self, product: Product) -> Product:
        """Return a product with the bias that may be changed, if any may."""
        return product if self.biases else replace(product, bias="")

    def _one(self, product: Product, original: Stepper, candidate: Stepper) -> Learned:
        """Round one product; what cannot be counted (infinite values) stays as it is."""
        node = product.node
        stored = constant(self.quantized, product.weight)
        nearest = as_rows(stored, node).astype(np.int8)
        floats = as_rows(constant(self.source, node.input[1], self.folder), node).astype(np.float32)
        scales = np.broadcast_to(
            constant(self.quantized, product.scale).astype(np.float32).ravel(), (nearest.shape[0] * nearest.shape[1],)
        ).reshape(nearest.shape[:2])
        kernel = stored.shape[2:] if node.op_type == "Conv" else ()
        fit, held = self._moments(product, original, candidate, nearest.shape, kernel)
        if not (fit.finite and held.finite and fit.count and held.count):
            return Learned(node=node.name, before=0.0, after=0.0, moved=0)
        few, most = self.bits <= FEW_BITS, 2 ** (self.bits - 1) - 1
        searched = few and self.weights and self._free_scales(product, nearest)
        steps = Steps(
            scales=scales,
            bounds=(-most - few, most),
            factors=FACTORS if searched else FACTORS[:1],
            least=self._least_factors(product, scales.shape) if searched else 0.0,
        )
        strengths = STRENGTHS if self.weights else ()
        found = round_layer(floats, nearest, steps, fit, held, free_bias=bool(product.bias), strengths=strengths)
        if searched:
            self._rescale(product, found.scales.ravel(), scales.ravel())
        values = from_rows(found.values, node, stored.shape).astype(stored.dtype)  # int4 stays so
        replace_constant(self.quantized, product.weight, values)
        if product.bias:
            counted = constant(self.quantized, product.bias_scale).astype(np.float32)
            bias = fit.plus(held).best_bias(found.values * found.scales[:, :, None])
            replace_constant(self.quantized, product.bias, quantize_bias(bias.ravel(), counted))
        power = max(float((held.centered() if product.bias else held).yy.sum()), 1e-30)
        return Learned(
            node=node.name,
            before=found.before / power,
            after=found.after / power,
            moved=int(np.count_nonzero(found.values != nearest)),
        )

    def _free_scales(self, product: Product, rows: npt.NDArray[np.int8]) -> bool:
        """Say whether every row has a scale of its own, and its bias steps of its own, that may be changed."""
        names = [product.scale, *([product.bias_scale] if product.bias else [])]
        count = rows.shape[0] * rows.shape[1]
        return product.own_scale and all(constant(self.quantized, name).size == count for name in names)

    def _least_factors(self, product: Product, shape: tuple[int, ...]) -> npt.NDArray[np.float32] | float:
        """Return how far each row's scale may be lowered until its bias, which is counted in it, no longer fits."""
        if not product.bias:
            return 0.0
        counts = np.abs(constant(self.quantized, product.bias).astype(np.float64))
        return np.minimum(counts / _MOST_COUNTS, 1.0).reshape(shape).astype(np.float32)

    def _rescale(self, product: Product, scales: npt.NDArray[np.float32], old: npt.NDArray[np.float32]) -> None:
        """Write the rows' scales, and the steps of the bias, which are theirs times the activation's."""
        replace_constant(self.quantized, product.scale, scales)
        if product.bias:
            steps = constant(self.quantized, product.bias_scale).astype(np.float64)
            replace_constant(self.quantized, product.bias_scale, (steps * scales / old).astype(np.float32))

    def _moments(
        self,
        product: Product,
        original: Stepper,
        candidate: Stepper,
        shape: tuple[int, ...],
        kernel: tuple[int, ...],
    ) -> tuple[Moments, Moments]:
        node, fixed, held = product.node, self._fixed_bias(product), set(self.held)
        both = (Moments.empty(*shape), Moments.empty(*shape))
        enough = COLUMNS_AN_INPUT * shape[2]
        pairs = zip(original.values(node.output[0]), candidate.values(product.read), strict=True)
        for seen, ((index, y), (_, read)) in enumerate(pairs, start=1):
            x = at_run_time(read) if product.dynamic else read
            left, right = input_columns(x, node, kernel), output_columns(y - _along(fixed, y, node), node)
            mask = shown(self.samples.sample(index), x.shape) if node.op_type != "Conv" else None
            if mask is not None:
                left, right = left[:, :, mask.ravel()], right[:, :, mask.ravel()]
            step = (left.shape[2] // MOST_COLUMNS) | 1
            start = index % step
            both[index in held].add(left[:, :, start::step], right[:, :, start::step])
            if seen >= LEAST_SAMPLES and both[0].count + both[1].count >= enough and both[1].count:
                break
        return both

    def _fixed_bias(self, product: Product) -> npt.NDArray[Any] | None:
        """Return the float bias that stays as it is, or None."""
        node = product.node
        if product.bias or len(node.input) <= _BIAS or not node.input[_BIAS]:
            return None
        return constant(self.source, node.input[_BIAS], self.folder)


def shuffled(indices: Sequence[int]) -> list[int]:
    """Return indices in an order that is always the same, in which every beginning is a fair sample."""
    order = np.random.default_rng(0).permutation(len(indices))
    return [indices[place] for place in order]


def _along(bias: npt.NDArray[Any] | None, y: npt.NDArray[Any], node: onnx.NodeProto) -> npt.NDArray[Any] | np.float32:
    if bias is None:
        return np.float32(0)
    return bias.reshape(1, -1, *[1] * (y.ndim - 2)) if node.op_type == "Conv" else bias
