"""What is pushed runs anywhere: Python 3.8 syntax, standard library and numpy, nothing of edgekit."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import edgekit

FILES = sorted((Path(edgekit.__file__).parent / "device").glob("*.py"))
SIBLINGS = {path.stem for path in FILES}
LAZY = {"onnxruntime", "onnxruntime_qnn", "tensorrt"}


def imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node, (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_python_38_and_nothing_but_numpy(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    top = set(tree.body)
    for node, name in imports(tree):
        if name in LAZY:
            assert node not in top, f"{name} is imported at the top"
        elif getattr(node, "level", 0) == 0:
            assert name in sys.stdlib_module_names | {"numpy"} | SIBLINGS, name
    assert "removeprefix" not in path.read_text()  # 3.9


def test_no_sibling_hides_a_module_of_others():
    assert not SIBLINGS & (sys.stdlib_module_names | LAZY | {"numpy"})
