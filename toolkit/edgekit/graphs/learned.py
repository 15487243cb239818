"""Write what quantization-aware training learned into the quantized graph, and hold the two against each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgekit.errors import EdgekitError
from edgekit.graphs.sessions import open_session
from edgekit.numerics.packing import pack_codes

if TYPE_CHECKING:
    import onnx

Array = npt.NDArray[Any]

_NIBBLE = 4
_EQUAL = 200.0


def write_learned(model: onnx.ModelProto, learned: Mapping[str, Array]) -> None:
    """Give initializers of the main graph other values, in the types that they have.

    Args:
        model: the quantized graph; changed.
        learned: initializer -> values in its shape; those of 4 bits one integer each.

    Raises:
        EdgekitError: a value does not fit: a bug.
    """
    import onnx

    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, values in learned.items():
        tensor = tensors[name]
        kind = onnx.TensorProto.DataType.Name(tensor.data_type)
        if kind in {"INT4", "UINT4"}:
            codes = (values.reshape(-1).astype(np.int16) & 15).astype(np.uint8)
            raw = pack_codes(codes, _NIBBLE).tobytes()
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            plain = values.astype(dtype)
            if tuple(tensor.dims) != plain.shape or not np.array_equal(plain.astype(values.dtype), values):
                raise EdgekitError(f"learned values do not fit {kind} {list(tensor.dims)}", where=name)
            raw = np.ascontiguousarray(plain).tobytes()
        tensor.CopyFrom(onnx.helper.make_tensor(name, tensor.data_type, list(tensor.dims), raw, raw=True))


def held_against(path: Path, kept: Path, *, optimize: bool) -> dict[str, Any]:
    """Run the written graph with onnxruntime on the samples that a training kept, and compare with its own outputs.

    Args:
        path: the written graph.
        kept: `.npz` with `count`, `<n>/in/<input>` and `<n>/out/<output>`.
        optimize: let onnxruntime fuse what it has kernels for: right for a graph that it runs on the device too.

    Returns:
        `samples`, `sqnr_db` (of all outputs together; 200 when they are equal), `argmax` (share of positions with the
        same highest value) and, where it may fuse, `runtime_db`: the same ratio of onnxruntime fused against
        itself node by node, which says how much of the difference rounding alone makes of other orders of summation.
    """
    rows = _read(kept)
    session = open_session(path, optimize=optimize)
    found = [session.run(list(outputs), feed) for feed, outputs in rows]
    wanted = [list(outputs.values()) for _, outputs in rows]
    same, positions = _equal_decisions(wanted, found)
    told = {"samples": len(rows), "sqnr_db": _ratio(wanted, found), "argmax": round(same / max(positions, 1), 5)}
    if not optimize:
        return told
    plain = open_session(path, optimize=False)
    return told | {"runtime_db": _ratio([plain.run(list(outputs), feed) for feed, outputs in rows], found)}


def _ratio(wanted: list[list[Array]], found: list[list[Array]]) -> float:
    """Return signal over noise of all values together in dB, 200 at most."""
    pairs = [pair for row in zip(wanted, found, strict=True) for pair in zip(*row, strict=True)]
    signal = sum(float((one.astype(np.float64) ** 2).sum()) for one, _ in pairs)
    noise = sum(float(((one.astype(np.float64) - other) ** 2).sum()) for one, other in pairs)
    return round(_EQUAL if noise == 0 else min(10 * float(np.log10(max(signal, 1e-30) / noise)), _EQUAL), 2)


def _equal_decisions(wanted: list[list[Array]], found: list[list[Array]]) -> tuple[int, int]:
    """Return at how many positions the highest value is the same, and how many there are."""
    same = positions = 0
    for row, other in zip(wanted, found, strict=True):
        for one, two in zip(row, other, strict=True):
            if one.ndim > 1 and one.shape[-1] > 1:
                same += int((one.argmax(-1) == two.argmax(-1)).sum())
                positions += one[..., 0].size
    return same, positions


def _read(kept: Path) -> list[tuple[dict[str, Array], dict[str, Array]]]:
    """Return the feeds and the float outputs of every sample."""
    with np.load(kept, allow_pickle=False) as arrays:
        rows: list[tuple[dict[str, Array], dict[str, Array]]] = [({}, {}) for _ in range(int(arrays["count"]))]
        for key in arrays.files:
            number, _, rest = key.partition("/")
            side, _, name = rest.partition("/")
            if side == "in":
                rows[int(number)][0][name] = arrays[key]
            elif side == "out" and arrays[key].dtype.kind == "f":
                rows[int(number)][1][name] = arrays[key]
    return rows
