from __future__ import annotations

import pytest

from edgekit.cli.options import settle, split_budget
from edgekit.config import find_config, load_config
from edgekit.errors import InputError


def write(folder, text):
    path = folder / "edgekit.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_are_relative_to_the_file_and_flags_win(tmp_path):
    write(tmp_path, 'profile = "jetson"\ndata = "d"\nmax-drop = "1%"\nthreads = 2\nstrict = true\n')
    options = settle(
        str(tmp_path / "m.onnx"),
        {"profile": "host", "data": None, "shape": (), "max_drop": "2%", "latency_p95": None, "config": None},
    )
    assert options["profile"] == "host"
    assert options["data"] == str(tmp_path / "d")
    assert options["strict"] is True
    assert split_budget(options) == {"max-drop": "2%"}
    assert "max_drop" not in options


def test_it_is_found_beside_a_file_and_in_a_folder(tmp_path):
    path = write(tmp_path, "")
    assert find_config(str(tmp_path / "m.onnx")) == path
    assert find_config(str(tmp_path)) == path
    assert find_config("python:module:factory") is None
    assert find_config(str(tmp_path / "other" / "m.onnx")) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profil = 'jetson'", "profile"),
        ("threads = 'two'", "must be a int"),
        ("threads = true", "must be a int"),
        ("max-drop = 0.01", "must be a str"),
        ("a b", "not valid TOML"),
    ],
)
def test_what_is_wrong_names_file_and_key(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=words) as caught:
        load_config(path)
    assert caught.value.where == str(path)


def test_a_missing_config_is_told(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_config(tmp_path / "gone.toml")
