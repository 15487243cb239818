"""What each kernel of a model has to do, as arrays: the sizes, operations and bytes that a prediction needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.cost import Row
from edgekit.graphs.fusion import COMPUTE, Group

KINDS = ("conv", "depthwise", "grouped", "matmul", "recurrent", "attention", "other")
"""What a kernel is: a dense, depthwise or grouped convolution; a product with weights or of two activations; a
recurrent layer, whose steps wait for each other; attention in one kernel; what does no multiply-accumulates."""

DTYPES = ("fp32", "fp16", "int8")
"""What a kernel computes in: float32 (and whatever has no other rate), 16 bits, 8 bits."""

_HALF = frozenset({"float16", "bfloat16", "int16"})
_RECURRENT = frozenset({"RNN", "GRU", "LSTM", "DynamicQuantizeLSTM"})
_BYTE = frozenset({"int8", "uint8"})

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Kernels, one entry of each array for each.

    Attributes:
        kind: index into `KINDS`.
        dtype: index into `DTYPES`.
        batch: how many products [rows, depth] x [depth, columns] are done; 1 for convolutions.
        rows: of the product: pixels of the output of a convolution.
        columns: of the product: output channels.
        depth: multiply-accumulates for each element of the product.
        macs: multiply-accumulates, all products of the kernel.
        operations: additions, comparisons and function evaluations besides.
        moved: bytes read and written.
        weights: those of `moved` that are weights.
    """

    kind: npt.NDArray[np.int64]
    dtype: npt.NDArray[np.int64]
    batch: Numbers
    rows: Numbers
    columns: Numbers
    depth: Numbers
    macs: Numbers
    operations: Numbers
    moved: Numbers
    weights: Numbers

    def __len__(self) -> int:
        return len(self.kind)


def work_of(groups: Sequence[Group]) -> Work:
    """Return what the kernels of a model have to do."""
    entries = [_entry(group) for group in groups]
    return pack({name: [entry[name] for entry in entries] for name in Work.__dataclass_fields__})


def pack(columns: Mapping[str, Sequence[float]]) -> Work:
    """Make arrays of columns named as the attributes of `Work`."""
    arrays: dict[str, Any] = {
        name: np.array(held, np.int64 if name in {"kind", "dtype"} else np.float64) for name, held in columns.items()
    }
    return Work(**arrays)


def _entry(group: Group) -> dict[str, float]:
    products = [row for row in group.rows if row.kind in COMPUTE]
    first = products[0] if products else group.rows[0] if group.rows else None
    macs = sum(row.macs for row in products)
    batch, rows, columns, depth = _product(products[0]) if products else (1, 1, 1, 1)
    return {
        "kind": KINDS.index(_kind(group, products)),
        "dtype": DTYPES.index(dtype_of(first) if first is not None else "fp32"),
        "batch": batch,
        "rows": rows,
        "columns": columns,
        "depth": depth,
        "macs": macs,
        "operations": group.operations,
        "weights": sum(row.weight_reads for row in group.rows),
        "moved": group.read_bytes + group.written_bytes,
    }


def _kind(group: Group, products: Sequence[Row]) -> str:
    if group.whole:
        return "attention"
    if not products:
        return "other"
    if products[0].op in _RECURRENT:
        return "recurrent"
    kind = products[0].kind
    return kind if kind != "compute" else "conv" if "Conv" in products[0].op else "matmul"


def dtype_of(row: Row) -> str:
    """Return in which of `DTYPES` a row computes."""
    return "fp16" if row.dtype in _HALF else "int8" if row.dtype in _BYTE else "fp32"


def _product(row: Row) -> tuple[int, int, int, int]:
    """Return batch, rows, columns and depth of the product that a row does."""
    shape = row.output_shapes[0] if row.output_shapes else ()
    elements = math.prod(shape)
    if not elements or not row.macs:
        return 1, 1, 1, 1
    if "Conv" in row.op and len(shape) > 2:  # noqa: PLR2004 - batch and channels
        batch, rows, columns = 1, shape[0] * math.prod(shape[2:]), shape[1]
    elif row.weight_reads or len(shape) < 3:  # noqa: PLR2004 - a batch of matrices
        batch, rows, columns = 1, math.prod(shape[:-1]), shape[-1] if shape else 1
    else:
        batch, rows, columns = math.prod(shape[:-2]), shape[-2], shape[-1]
    return batch, rows, columns, max(row.macs // elements, 1)
