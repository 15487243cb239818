import os
import sys
from pathlib import Path

import pytest

from edgekit import errors
from edgekit.networks.sources import SOURCE, collect, copy_sources, local_name, local_roots, opened_files


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in {
        "net_of_mine.py": "import parts_of_mine.blocks\nimport os, json\n",
        "parts_of_mine/__init__.py": "",
        "parts_of_mine/blocks.py": "def f():\n    from . import late\n    from .deep.er import x\n    import missing\n",
        "parts_of_mine/late.py": "from parts_of_mine import blocks\n",
        "parts_of_mine/deep/er.py": "x = 1\n",
        "unused.py": "",
        "site-packages/installed.py": "",
        ".hidden/secret.py": "",
        "data/words.txt": "a b",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_imports_are_followed_into_functions_and_packages(project):
    found = collect("net_of_mine", set(), local_roots("net_of_mine"))
    assert set(found) == {
        "net_of_mine.py",
        "parts_of_mine/__init__.py",
        "parts_of_mine/blocks.py",
        "parts_of_mine/late.py",
        "parts_of_mine/deep/er.py",
    }


def test_files_that_are_opened_for_reading_count(project):
    with opened_files() as opened:
        (project / "data" / "words.txt").read_text()
        with open("made.txt", "w") as file:
            file.write("x")
        open(os.devnull).close()
    open("unused.py").close()
    found = collect("net_of_mine", opened, local_roots("net_of_mine"))
    assert "data/words.txt" in found
    assert not {"made.txt", "unused.py"} & set(found)


def test_what_safetensors_opens_counts(project):
    import safetensors.torch
    import torch

    before = safetensors.torch.load_file
    safetensors.torch.save_file({"a": torch.ones(2)}, "w.safetensors")
    with opened_files() as opened:
        assert safetensors.torch.load_file("w.safetensors")["a"].sum() == 2
    assert safetensors.torch.load_file is before
    assert "w.safetensors" in collect("net_of_mine", opened, local_roots("net_of_mine"))


def test_only_what_is_local_is_local(project):
    roots = [project]
    assert local_name(project / "net_of_mine.py", roots) == "net_of_mine.py"
    for name in ("site-packages/installed.py", ".hidden/secret.py"):
        assert not local_name(project / name, roots)
    for module in (os, pytest, errors):
        root = Path(module.__file__).parent
        assert not local_name(root / "x.py", [root]), module


def test_a_module_elsewhere_on_the_path_has_its_root(project, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far_away.py").write_text("import far_helper\n")
    (elsewhere / "far_helper.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(elsewhere)])
    roots = local_roots("far_away")
    assert roots == [elsewhere, project]
    assert set(collect("far_away", set(), roots)) == {"far_away.py", "far_helper.py"}


def test_copies_keep_their_names_and_hashes(project, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    hashes = copy_sources(collect("net_of_mine", set(), [project]), out)
    assert (out / SOURCE / "parts_of_mine" / "late.py").read_bytes() == (project / "parts_of_mine/late.py").read_bytes()
    assert list(hashes) == sorted(hashes)
    assert all(len(value) == 64 for value in hashes.values())
