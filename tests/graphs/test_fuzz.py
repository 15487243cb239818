"""Damaged models: whatever the bytes are, the parent gets facts or an error that says so, never a crash."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgekit.errors import InputError, UnsupportedError
from edgekit.graphs.files import read_onnx
from graph_models import floats, model, node, value


def valid() -> bytes:
    shapes = {"W": floats(4, 3, 3, 3), "b": floats(4), "shape": np.array([0, -1], np.int64), "V": floats(256, 5)}
    whole = model(
        [
            node("Conv", ["x", "W", "b"], ["c"], pads=[1, 1, 1, 1]),
            node("Clip", ["c", "", "limit"], ["r"]),
            node("Reshape", ["r", "shape"], ["f"]),
            node("MatMul", ["f", "V"], ["y"]),
        ],
        [value("x", ["b", 3, 8, 8])],
        [value("y", ["b", 5])],
        shapes | {"limit": np.float32(6)},
        opset=11,
    )
    return whole.SerializeToString()


DATA = valid()

# most of the file is weights; flips fall twice as often on what is structure
positions = st.one_of(st.integers(0, 400), st.integers(len(DATA) - 600, len(DATA) - 1), st.integers(0, len(DATA) - 1))
flips = st.lists(st.tuples(positions, st.integers(1, 255)), min_size=1, max_size=4)


def survives(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "m.onnx").write_bytes(data)
        (folder / "out").mkdir()
        try:
            facts = read_onnx(folder / "m.onnx", folder / "out")
        except (InputError, UnsupportedError) as error:
            said = bool(error.text and error.remedy)
        else:
            said = bool(facts["graphs"]["model.onnx"]["inputs"])
    assert said


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(flips)
def test_flipped_bytes(changes):
    data = bytearray(DATA)
    for position, mask in changes:
        data[position] ^= mask
    survives(bytes(data))


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(1, len(DATA) - 1), st.binary(max_size=20))
def test_cut_and_glued(end, tail):
    survives(DATA[:end] + tail)
