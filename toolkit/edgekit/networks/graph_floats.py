"""Where between two integers the floats of a graph lay before it was quantized: where training starts best.

Rounding forgets how near a weight was to the next integer. Where the float graph still holds the matrix that codes
were made of, latent weights start there, as far as the codes stay those that the quantizer chose (its rounding may be
learned and wiser than the nearest integer): the trained graph begins as the one that came in, and weights near a border
cross it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.networks.graph_layout import BLOCKED
from edgekit.networks.graph_quantized import block_values

if TYPE_CHECKING:
    import torch

    from edgekit.networks.graph_module import GraphModule

Array = npt.NDArray[Any]

_ALIKE = 0.1
"""Squared error, by the matrix' own square, up to which codes are taken for those of a matrix; others differ by 1."""

_EDGE = 0.49
"""How far from its integer a weight may start, in steps."""

_MEANT = frozenset({"DequantizeLinear", "Mul"})
_PASSED = frozenset({"Cast", "Sub", "Reshape"})
"""Operators that end, and that lead, from codes to what they stand for."""

_MATRIX = 2
_SCALES = 2  # position of the scales of a product with codes in blocks, and of what else is stored


def start_between(module: GraphModule, path: Path) -> frozenset[int]:
    """Move the latent weights of a graph to where the floats of another lie.

    Args:
        module: nothing of it was trained yet; changed.
        path: the float graph. Its matrices are recognized by their values, so it need not be cut like the quantized
            one; what is not found (folded or scaled on the way) starts on its integers.

    Returns:
        The numbers, in `module.weights`, of those that were found.
    """
    import torch

    known = _matrices(path)
    found = set()
    for number, (zero, one) in meanings(module).items():
        latent = module.latents[number].data
        low, high = (value.expand(latent.shape).double().cpu().numpy() for value in (zero, one))
        codes, step = latent.double().cpu().numpy(), high - low
        matrix = _origin(module.weights[number].name, low + codes * step, known)
        if matrix is None:
            continue
        exact = np.divide(matrix - low, step, out=codes.copy(), where=step != 0)
        latent.copy_(torch.from_numpy(np.clip(exact, codes - _EDGE, codes + _EDGE)))
        found.add(number)
    return frozenset(found)


def meanings(module: GraphModule) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Return number of a weight -> what its codes 0 and 1 stand for, in the layout of the codes, where a node says it.

    A node does so that makes floats of the codes by stored scales, or multiplies with them as such.
    """
    import torch

    with torch.no_grad():
        zero, one = (_folded(module, code) for code in (0.0, 1.0))
    return {number: (zero[number], one[number]) for number in zero.keys() & one.keys()}


def _folded(module: GraphModule, code: float) -> dict[int, torch.Tensor]:
    """Compute what depends on constants only, with every code the same; return what that stands for by weight."""
    import torch

    known: dict[str, Any] = {"": None, **module.values()}
    carriers = {weight.name: number for number, weight in enumerate(module.weights)}
    known |= {name: torch.full_like(module.latents[number], code) for name, number in carriers.items()}
    found: dict[int, torch.Tensor] = {}
    for node in module.layout.nodes:
        place = BLOCKED.get(node.op, 0)
        number = carriers.get(node.inputs[place], -1) if node.inputs else -1
        if number >= 0 and node.op in BLOCKED and all(name in known for name in node.inputs[_SCALES:]):
            stored = [known[name] for name in node.inputs[_SCALES:]]
            found[number] = block_values([None, known[node.inputs[place]], *stored], node.attributes)
        if not node.inputs or any(name not in known for name in node.inputs):
            continue
        made = module.run_node(node, [known[name] for name in node.inputs])
        known.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False))
        if number >= 0 and node.op in _MEANT:
            found.setdefault(number, made)
        elif number >= 0 and node.op in _PASSED and made.shape == module.latents[number].shape:
            carriers[node.outputs[0]] = number
    return found


def _matrices(path: Path) -> dict[str, Array]:
    """Return the float initializers of two axes or more."""
    import onnx

    tensors = onnx.load(path).graph.initializer
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    wanted = [tensor for tensor in tensors if tensor.data_type in kinds and len(tensor.dims) >= _MATRIX]
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in wanted}


def _origin(name: str, values: Array, known: Mapping[str, Array]) -> Array | None:
    """Return the matrix that `values` were made of, laid out as they are; what filled up blocks is copied."""
    first = sorted(known, key=lambda other: not name.startswith(other))
    best, least = None, _ALIKE
    for other in first:
        for laid in _layouts(known[other], values):
            error = float(((laid - values) ** 2).sum()) / max(float((laid**2).sum()), 1e-30)
            if error < least:
                best, least = laid, error
        if best is not None and name.startswith(other):
            break
    return best


def _layouts(matrix: Array, values: Array) -> Iterator[Array]:
    """Yield a matrix in the layout of values that have its shape, its transposed, or `[rows, blocks, block]`."""
    flat = matrix.reshape(matrix.shape[0], -1).astype(np.float64)
    blocked = values.ndim == 3 and matrix.ndim != 3  # noqa: PLR2004
    if matrix.shape == values.shape:
        yield matrix.astype(np.float64)
    for rows in (flat, flat.T) if matrix.ndim == _MATRIX else (flat,):
        if rows.shape == values.shape and rows is not flat:
            yield rows
        if blocked and rows.shape[0] == values.shape[0] and 0 <= values[0].size - rows.shape[1] < values.shape[2]:
            whole = values.reshape(values.shape[0], -1).copy()
            whole[:, : rows.shape[1]] = rows
            yield whole.reshape(values.shape)
