"""The wheel: what is in it, and that it works where nothing else is installed. Slow: it installs from the index."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from command import ROOT
from onnx_models import linear, samples_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(argv, **options):
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive, and the wheel that is built from it, without a network."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT])
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def names(built):
    with zipfile.ZipFile(built[0]) as wheel:
        return set(wheel.namelist())


def sources(folder):
    """Return the files of a folder of the project, relative to it."""
    found = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert found
    return {path.relative_to(ROOT / folder).as_posix() for path in found}


def test_both_packages_are_in_it_whole(names):
    for package, folder in (("edgekit", "toolkit/edgekit"), ("edgekit_exporters", "exporters/edgekit_exporters")):
        assert {f"{package}/{name}" for name in sources(folder)} <= names
    assert {"edgekit/py.typed", "edgekit_exporters/py.typed", "edgekit/device/runner.py"} <= names
    assert {f"edgekit/recipes/{name}.toml" for name in ("fp32", "fp16", "int8", "auto")} <= names


def test_profiles_lie_where_the_package_finds_them(names):
    assert {f"edgekit/profiles/{name}" for name in sources("profiles") if name.endswith(".toml")} <= names


def test_nothing_else_is_in_it(names):
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"edgekit", "edgekit_exporters"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".onnx", ".npz", ".safetensors"))]


def test_its_metadata_is_that_of_the_project(built, names):
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = wheel.read(name).decode()
        entry = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert f"Name: {table['name']}" in metadata
    assert f"Version: {table['version']}" in metadata
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert not [line for line in needed if "torch" in line or "transformers" in line]
    assert len(needed) == len(table["dependencies"])
    assert "edgekit = edgekit.__main__:main" in entry
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_source_archive_builds_and_holds_what_the_wheel_needs(built):
    with tarfile.open(built[1]) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "toolkit/edgekit/build.py", "profiles/host.toml"} <= held


@pytest.fixture(scope="module")
def bare(built, tmp_path_factory):
    """A new virtual environment with the wheel and its dependencies only."""
    folder = tmp_path_factory.mktemp("bare")
    run([sys.executable, "-m", "venv", folder])
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, built[0], "-c", ROOT / "constraints.txt"])
    return folder


@pytest.fixture(scope="module")
def edgekit_of(bare, tmp_path_factory):
    """Run the installed command far from the sources."""
    home = tmp_path_factory.mktemp("home")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("EDGEKIT_", "PYTHON", "VIRTUAL"))}

    def call(*arguments):
        environment = {**kept, "EDGEKIT_HOME": str(home / "store")}
        return run([bare / "bin" / "edgekit", *arguments], cwd=home, env=environment)

    return call


def test_a_model_is_built_without_torch(bare, edgekit_of, tmp_path):
    installed = run([bare / "bin" / "python", "-m", "pip", "list", "--format=freeze"])
    assert "torch" not in installed
    assert "pytest" not in installed
    model = linear(tmp_path / "model.onnx")
    data = samples_of(model, tmp_path / "data.npz", count=1500)
    for profile in ("raspberry-pi-5", "jetson", "snapdragon"):
        out = edgekit_of("build", model, "--profile", profile, "--data", data, "--max-drop", "2%", "--out", tmp_path)
        assert "verdict: pass" in out
        edgekit_of("verify", tmp_path / f"model-{profile}.edgekit")
    assert "verdict: unproven" in edgekit_of("build", model, "--recipe", "fp32", "--no-package", "--profile", "jetson")


def test_the_installed_command_finds_profiles_and_recipes(edgekit_of):
    assert "jetson" in edgekit_of("profiles", "list")
    assert "int8" in edgekit_of("recipes", "list")
    shown = edgekit_of("profiles", "show", "jetson", "--json")
    assert "_jetson.toml" in shown, "each value says from which file it comes"
    assert "missing" in edgekit_of("doctor")


def test_it_measures_on_this_machine_with_the_runner_of_the_wheel(edgekit_of, tmp_path):
    model = linear(tmp_path / "model.onnx")
    data = samples_of(model, tmp_path / "data.npz", count=100)
    out = edgekit_of("build", model, "--profile", "host", "--recipe", "fp32", "--data", data, "--out", tmp_path)
    assert "measured on local" in out


def test_a_torch_model_says_which_extra_brings_torch(bare, tmp_path):
    (tmp_path / "net.py").write_text("def make():\n    import torch\n    return torch.nn.Linear(2, 2)\n")
    done = subprocess.run(
        [bare / "bin" / "edgekit", "build", "python:net:make", "--profile", "raspberry-pi-5"],
        env={"PATH": os.environ["PATH"], "EDGEKIT_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "edgekit-toolkit[torch]" in done.stderr
    assert not Path(tmp_path / "edgekit-out").exists()
