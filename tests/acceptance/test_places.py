"""Where things lie: names that are not ASCII, folders that cannot be written, sources that must not be touched."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from command import Ran, sound
from edgekit.artifact import sha256_file

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def obey_permissions():
    """Let permissions hold for root too: take away the right to ignore them from what is started."""
    if os.geteuid() == 0:
        library = ctypes.CDLL(None, use_errno=True)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


@pytest.fixture
def obedient(edgekit, tmp_path):
    """Run edgekit so that permissions hold; skip where root's right to ignore them cannot be taken away."""
    probe = tmp_path / "probe"
    probe.mkdir(mode=0o555)
    touch = ["touch", str(probe / "x")]
    if subprocess.run(touch, preexec_fn=obey_permissions, capture_output=True, check=False).returncode == 0:
        pytest.skip("this user ignores permissions")

    def run(*arguments, home=None):
        done = subprocess.run(
            edgekit.argv(*arguments),
            env=edgekit.environment(home),
            preexec_fn=obey_permissions,
            capture_output=True,
            text=True,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.mark.parametrize("below", ["", "new/folder"], ids=["the folder", "a folder below"])
def test_a_folder_that_cannot_be_written_is_told_before_the_work(obedient, given, tmp_path, below):
    out = tmp_path / "out"
    out.mkdir(mode=0o555)
    asked = ("build", given.model, "--profile", "raspberry-pi-5", "--data", given.data(), "--json")
    ran = sound(obedient(*asked, "--out", out / below, home=tmp_path / "home"))
    assert ran.status == 2
    assert ran.json["error"]["where"] == str(out)
    assert "--out" in ran.json["error"]["remedy"]
    assert not list((tmp_path / "home").glob("artifacts/*/*"))
    assert not list(out.iterdir())


def test_a_store_that_cannot_be_written_names_the_variable(obedient, given, tmp_path):
    (tmp_path / "home").mkdir(mode=0o555)
    asked = ("build", given.model, "--recipe", "fp32", "--profile", "raspberry-pi-5", "--json")
    ran = sound(obedient(*asked, "--out", tmp_path / "out", home=tmp_path / "home"))
    assert ran.status == 5
    assert ran.json["error"]["where"] == str(tmp_path / "home")
    assert "EDGEKIT_HOME" in ran.json["error"]["remedy"]


def test_what_may_not_be_read_is_bad_input(obedient, given, tmp_path):
    asked = ("build", "--recipe", "fp32", "--profile", "raspberry-pi-5", "--out", tmp_path / "out", "--json")
    shutil.copy(given.model, tmp_path / "secret.onnx")
    shutil.copy(given.data(), tmp_path / "secret.npz")
    for path in tmp_path.glob("secret.*"):
        path.chmod(0)
    for arguments in ([tmp_path / "secret.onnx"], [given.model, "--data", tmp_path / "secret.npz"]):
        ran = sound(obedient(*asked, *arguments))
        assert ran.status == 4
        assert "secret" in ran.json["error"]["where"]


@pytest.mark.parametrize("below", ["", "x"], ids=["a file", "below a file"])
def test_a_file_in_the_way_is_told(edgekit, given, tmp_path, below):
    (tmp_path / "file").write_text("mine")
    ran = edgekit.build(given.model, "--data", given.data(), "--out", tmp_path / "file" / below)
    assert ran.status == 2
    assert ran.json["error"]["where"] == str(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_in_the_way_of_the_package_is_told(edgekit, given, package, tmp_path):
    (tmp_path / package.name).mkdir()
    ran = edgekit.build(given.model, "--data", given.data(), "--out", tmp_path)
    assert ran.status == 2
    assert package.name in ran.json["error"]["where"]
    assert [path.name for path in tmp_path.iterdir()] == [package.name]


def test_names_that_are_not_ascii_and_sources_that_are_read_only(obedient, given, tmp_path):
    """Case G07: spaces, umlauts, an emoji and another script, in a folder that cannot be written and stays as it is."""
    source = tmp_path / "Größe 模型 🚀"
    source.mkdir()
    shutil.copy(given.model, source / "Mödel 1.onnx")
    shutil.copy(given.data(), source / "dätä.npz")
    before = {path.name: (sha256_file(path), path.stat().st_mtime_ns) for path in source.iterdir()}
    for path in source.iterdir():
        path.chmod(0o444)
    source.chmod(0o555)
    out = tmp_path / "wóhin ♥"
    asked = (source / "Mödel 1.onnx", "--profile", "raspberry-pi-5", "--data", source / "dätä.npz", "--max-drop", "1%")
    ran = sound(obedient("build", *asked, "--out", out, "--json", home=tmp_path / "störe"))
    assert ran.status == 0, ran.err
    assert {path.name: (sha256_file(path), path.stat().st_mtime_ns) for path in source.iterdir()} == before
    package = Path(ran.json["package"])
    assert package.parent == out
    assert obedient("verify", package).status == 0
    text = obedient("build", *asked, "--out", out, home=tmp_path / "störe")
    assert f"package: {package}" in text.out


def test_names_that_are_not_utf_8(edgekit, given, tmp_path):
    """A name on a disk may be any bytes; JSON and the page show what cannot be shown as escapes."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe4\xff"))
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes no such names")
    model, data = folder / "m\udcfcdel.onnx", folder / "d\udce4ta.npz"
    shutil.copy(given.model, model)
    shutil.copy(given.data(count=40), data)
    asked = (model, "--data", data, "--recipe", "fp32")
    ran = edgekit("build", *asked, "--profile", "raspberry-pi-5", "--out", folder / "out", "--json")
    assert ran.status == 0, ran.err
    assert "\\xe4\\xff/out/" in ran.json["package"]
    (package,) = (folder / "out").glob("*.edgekit")
    assert package.with_suffix(".html").is_file()
    assert edgekit("verify", package).status == 0
    text = edgekit("build", *asked, "--profile", "raspberry-pi-5", "--out", folder / "out")
    assert text.status == 0, text.err
    refused = edgekit("build", folder / "nosuch.onnx", "--profile", "raspberry-pi-5", "--json")
    assert refused.status == 4
    assert "\\xe4\\xff" in refused.json["error"]["where"]


def test_an_ascii_locale_still_prints_names_that_are_not(edgekit, given, tmp_path):
    out = tmp_path / "wóhin ♥"
    ran = edgekit(
        *("build", given.model, "--data", given.data(), "--profile", "raspberry-pi-5", "--out", out),
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )
    assert ran.status == 0, ran.err
    assert (out / "model-raspberry-pi-5.edgekit").is_file()
    assert "verdict: pass" in ran.out
