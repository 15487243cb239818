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


def held_against(path: Path, kept: Path) -> dict[str, Any]:
    """Run the written graph with onnxruntime on the samples that a training kept, and compare with its own outputs.

    Args:
        path: the written graph.
        kept: `.npz` with `count`, `<n>/in/<input>` and `<n>/out/<output>`.

    Returns:
        `samples`, `sqnr_db` (of all outputs together; 200 when they are equal) and `argmax` (share of positions with
        the same highest value).
    """
    session = open_session(path, optimize=True)
    signal, noise, same, positions = 0.0, 0.0, 0, 0
    with np.load(kept, allow_pickle=False) as arrays:
        count = int(arrays["count"])
        rows: dict[int, dict[str, dict[str, Array]]] = {}
        for name in arrays.files:
            if name != "count":
                number, side, tensor = name.split("/", 2)
                rows.setdefault(int(number), {"in": {}, "out": {}})[side][tensor] = arrays[name]
    for row in rows.values():
        names = list(row["out"])
        for name, found in zip(names, session.run(names, row["in"]), strict=True):
            wanted = row["out"][name]
            if wanted.dtype.kind != "f":
                continue
            signal += float((wanted.astype(np.float64) ** 2).sum())
            noise += float(((wanted.astype(np.float64) - found) ** 2).sum())
            if wanted.ndim > 1 and wanted.shape[-1] > 1:
                same += int((wanted.argmax(-1) == found.argmax(-1)).sum())
                positions += wanted[..., 0].size
    ratio = 200.0 if noise == 0 else min(10 * np.log10(max(signal, 1e-30) / noise), 200.0)
    return {"samples": count, "sqnr_db": round(float(ratio), 2), "argmax": round(same / max(positions, 1), 5)}
