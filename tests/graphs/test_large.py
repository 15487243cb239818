"""A model of 2.25 GiB whose weights are one sparse file: it is streamed, never held."""

import resource
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from graph_models import FLOAT, model, node, value

ROWS = 24576
GIB = 1 << 30

SCRIPT = """
import re, resource, sys
from pathlib import Path
sys.path[:0] = {path!r}
import house
from edgekit.artifact import Artifact
from edgekit.graphs.cost import cost_of
from edgekit.graphs.files import read_onnx
from edgekit.stage import Context, Inputs
from edgekit.stages.freeze_shapes import FreezeShapes
from edgekit.stages.simplify import Simplify

base = Path({base!r})
folders = [base / name for name in ("taken", "frozen", "simple")]
for folder in folders:
    folder.mkdir()
facts = read_onnx(base / "model.onnx", folders[0])
assert facts.pop("external") == ["w.bin"]
artifact = Artifact(kind="onnx", files={{"model.onnx": "", "model.onnx.data": ""}}, facts=facts)
for stage, before, after in zip((FreezeShapes(shapes=("x=1x{rows}",)), Simplify()), folders, folders[1:]):
    inputs = Inputs(artifact=artifact, folder=before, profile=house.profile())
    print(stage.run(inputs, after, Context(scratch=base / "scratch")))
found = cost_of(folders[2])
assert (found.macs, found.parameters, found.weight_bytes) == ({rows} ** 2, {rows} ** 2, 4 * {rows} ** 2)
own = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])  # ru_maxrss starts from the test's own
for peak in (own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss):
    print("PEAK", peak * 1024)
"""


@pytest.mark.slow
def test_g08_more_than_two_gigabytes_are_streamed(tmp_path):
    weight = onnx.TensorProto(name="W", data_type=FLOAT, dims=[ROWS, ROWS], data_location=onnx.TensorProto.EXTERNAL)
    for key, text in (("location", "w.bin"), ("offset", "0"), ("length", str(4 * ROWS * ROWS))):
        entry = weight.external_data.add()
        entry.key, entry.value = key, text
    made = model([node("MatMul", ["x", "W"], ["y"], name="mm")], [value("x", ["b", ROWS])], [value("y", ["b", ROWS])])
    made.graph.initializer.append(weight)
    (tmp_path / "model.onnx").write_bytes(made.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(4 * ROWS * ROWS)
    script = SCRIPT.format(path=sys.path, base=str(tmp_path), rows=ROWS)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peaks = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("PEAK")]
    assert max(peaks) < 7 * GIB
    assert peaks[0] < 1 * GIB, "the parent holds none of it"
    data = tmp_path / "simple" / "model.onnx.data"
    assert data.stat().st_size == 4 * ROWS * ROWS
    assert data.stat().st_blocks * 512 < GIB, "holes stay holes"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 7 * GIB
    assert Path(tmp_path / "w.bin").stat().st_size == 4 * ROWS * ROWS
