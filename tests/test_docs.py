"""The pages of docs/ are followed to the letter: files are written, tables extended, tests and commands run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if "file=" in path.read_text(encoding="utf-8"))


def small_model(path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def extend_table(path: Path, table: str, line: str) -> None:
    text = path.read_text(encoding="utf-8")
    start = re.search(rf"^{table}\b[^\n]*\{{\n", text, re.MULTILINE)
    assert start, f"{path.name} has no table {table}"
    path.write_text(text[: start.end()] + line + text[start.end() :], encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_that_says_how_to_add_something_is_right(page, tmp_path):
    for folder in ("toolkit", "exporters", "profiles", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "cases"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    small_model(tmp_path / "model.onnx")
    parts = [str(tmp_path / folder) for folder in ("toolkit", "exporters", "tests")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(parts),
        "EDGEKIT_HOME": str(tmp_path / "store"),
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
    }

    def call(argv):
        done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"

    ran = 0
    for language, words, body in FENCE.findall(page.read_text(encoding="utf-8")):
        place = dict(re.findall(r"(\w+)=(\S+)", words))
        if "file" in place:
            path = tmp_path / place["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
            if path.name.startswith("test_"):
                call([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", place["file"]])
                ran += 1
        elif "table" in place:
            file, _, table = place["table"].partition(":")
            extend_table(tmp_path / file, table, body)
        elif language == "console":
            for line in filter(None, body.splitlines()):
                program, *arguments = shlex.split(line)
                assert program == "edgekit", f"{page.name}: only edgekit's own commands: {line}"
                call([sys.executable, "-m", "edgekit", *arguments])
                ran += 1
    assert ran, f"{page.name} has nothing that runs"


def test_there_is_a_page_for_each_kind_of_part():
    assert {"stages", "profiles", "exporters", "transports"} <= {page.stem for page in PAGES}
