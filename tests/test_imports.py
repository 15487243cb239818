"""Every module imports where only the base dependencies are installed: no torch, no tokenizers, no test tools."""

from __future__ import annotations

import importlib.metadata
import json
import pkgutil
import re
import subprocess
import sys
import tomllib

import pytest

from command import PATH, ROOT

CHILD = """
import importlib, json, sys
order = json.loads(sys.stdin.read())
blocked, failed = set(order["blocked"]), {}
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r} (not a base dependency)", name=name)
sys.meta_path.insert(0, Bare())
for name in order["modules"]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps(failed))
"""


def base_distributions():
    """Return the distributions that `pip install edgekit-toolkit` brings, dependencies of dependencies included."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    todo, found = list(table["project"]["dependencies"]), set()
    while todo:
        name = re.match(r"[A-Za-z0-9_.-]+", todo.pop()).group().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # a dependency of another platform
        todo += [need for need in needs if "extra ==" not in need]
    return found


def modules_of(root):
    return sorted(module.name for module in pkgutil.walk_packages([str(root)]))


@pytest.fixture(scope="module")
def blocked():
    base = base_distributions()
    owners = importlib.metadata.packages_distributions()
    others = [top for top, names in owners.items() if not {name.lower().replace("_", "-") for name in names} & base]
    assert {"torch", "tokenizers", "transformers", "safetensors", "pytest"} <= {*others, "torch"}
    assert not {"numpy", "onnx", "onnxruntime", "click", "rich", "msgspec", "PIL", "cryptography"} & set(others)
    extras = ["torch", "transformers", "optimum", "tokenizers", "datasets", "safetensors", "tensorrt_rtx", "tensorrt"]
    return sorted({*others, *extras} - {"edgekit", "edgekit_exporters"})


@pytest.mark.parametrize("root", ["toolkit", "exporters"])
def test_every_module_imports_with_the_base_dependencies_alone(blocked, root):
    modules = [name for name in modules_of(ROOT / root) if not name.endswith("__main__")]
    assert len(modules) > 2
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps({"blocked": blocked, "modules": modules}),
        env={"PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {}


def test_the_block_works(blocked):
    """Else the test above could not fail."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps({"blocked": blocked, "modules": ["numpy", "pytest"]}),
        env={"PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    assert list(json.loads(child.stdout)) == ["pytest"]


def test_the_device_folder_is_imported_by_nobody():
    """It is pushed to devices, so nothing of edgekit may depend on it."""
    others = [name for name in modules_of(ROOT / "toolkit") if ".device" not in name and not name.endswith("__main__")]
    code = (
        f"import importlib, sys\nfor name in {others!r}:\n    importlib.import_module(name)\n"
        "print([name for name in sys.modules if name.startswith('edgekit.device')])"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": PATH}, capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == "[]"
