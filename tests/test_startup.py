"""Start-up: what a plain `import edgekit` and every `--help` load. Counted, not timed."""

from __future__ import annotations

import json
import subprocess
import sys

from command import PATH

LOADED = """
import json, sys
before = set(sys.modules)
{code}
loaded = [sys.modules[name] for name in set(sys.modules) - before]
third = set()
for module in loaded:
    file = getattr(module, "__file__", None) or ""
    if "site-packages" in file or "dist-packages" in file:
        third.add(module.__name__.partition(".")[0])
ours = [module.__name__ for module in loaded if module.__name__.partition(".")[0] == "edgekit"]
sys.stderr.write(json.dumps({{"third": sorted(third), "ours": sorted(ours), "all": len(loaded)}}))
"""
COMMANDS = [
    [],
    ["build"],
    ["validate"],
    ["package"],
    ["verify"],
    ["run"],
    ["keygen"],
    ["inspect"],
    ["predict"],
    ["profiles"],
    ["profiles", "list"],
    ["profiles", "show"],
    ["recipes"],
    ["recipes", "list"],
    ["doctor"],
    ["cache"],
    ["cache", "prune"],
]


def loaded_by(code):
    child = subprocess.run(
        [sys.executable, "-c", LOADED.format(code=code)],
        env={"PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stderr)


def test_importing_edgekit_loads_nothing_else():
    found = loaded_by("import edgekit\nedgekit.__version__")
    assert found["third"] == []
    assert found["ours"] == ["edgekit"]


def test_a_budget_takes_msgspec_and_no_more():
    found = loaded_by("import edgekit\nedgekit.Budget(max_drop=0.01)")
    assert set(found["third"]) <= {"msgspec", "typing_extensions"}


def test_help_and_version_load_click_and_no_other_library():
    lines = [f"assert run_cli({[*command, option]!r}) == 0" for command in COMMANDS for option in ("--help", "-h")]
    found = loaded_by("\n".join(["from edgekit.cli import run_cli", *lines, "assert run_cli(['--version']) == 0"]))
    assert found["third"] == ["click"]
    assert len(found["ours"]) <= 12, found["ours"]
    assert found["all"] < 200, "the standard library counts as well"


def test_looking_around_loads_nothing_heavy(tmp_path):
    commands = (
        ["profiles", "list"],
        ["profiles", "show", "jetson"],
        ["recipes", "list"],
        ["cache", "stats"],
        ["doctor"],
    )
    lines = [f"assert run_cli({command!r}) == 0" for command in commands]
    home = f"import os\nos.environ['EDGEKIT_HOME'] = {str(tmp_path)!r}"
    found = loaded_by("\n".join([home, "from edgekit.cli import run_cli", *lines]))
    heavy = {"onnx", "onnxruntime", "torch", "transformers", "PIL", "tokenizers", "cryptography"}
    assert not heavy & set(found["third"])


def test_no_command_line_is_forgotten_here():
    """The list above has every command, so that none can load a library with its help."""
    from edgekit.cli import edgekit_command

    assert {command[0] for command in COMMANDS if command} == set(edgekit_command.commands)
