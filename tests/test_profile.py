from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgekit import host, profile
from edgekit.errors import InputError, UsageError
from edgekit.profile import list_profiles, load_profile, origins, profiles_folder


def write(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def failure(kind: type[Exception], name: str) -> str:
    with pytest.raises(kind) as caught:
        load_profile(name)
    return str(caught.value)


def test_values_come_from_the_nearest_file(tmp_path: Path) -> None:
    write(tmp_path, "_base", 'extends = "raspberry-pi-5"\ntitle = "base"\n[settings.a]\nx = 1\ny = 1\n')
    name = write(tmp_path, "mine", 'extends = "_base"\n[settings.a]\ny = 2\n[graph]\nmax_rank = 4\n')
    found = load_profile(name)
    assert (found.name, found.title, found.family) == ("mine", "base", "raspberry-pi")
    assert found.settings == {"a": {"x": 1, "y": 2}}
    assert found.graph.max_rank == 4
    assert found.graph.max_opset == 21
    from_files = origins(name)
    assert from_files["settings.a.x"] == "_base.toml"
    assert from_files["settings.a.y"] == "mine.toml"
    assert from_files["family"] == "_raspberry-pi.toml"
    assert from_files["memory.bandwidth_gbs"] == "raspberry-pi-5.toml"


def test_every_value_has_an_origin_and_every_origin_a_value() -> None:
    def leaves(values: dict[str, object], prefix: str = "") -> set[str]:
        found = set()
        for key, value in values.items():
            table = isinstance(value, dict) and "value" not in value
            found |= leaves(value, f"{prefix}{key}.") if table else {f"{prefix}{key}"}
        return found

    for name in ("jetson", "host", "qcs6490"):
        layers = profile._layers(profiles_folder() / f"{name}.toml")
        assert set(layers.origins) == leaves(layers.values)


def test_a_figure_is_replaced_whole(tmp_path: Path) -> None:
    name = write(tmp_path, "mine", 'extends = "raspberry-pi-5"\n[memory]\nram_mb = { value = 2000 }\n')
    text = failure(InputError, name)
    assert "mine.toml: memory.ram_mb.source" in text
    assert "missing" in text


def test_an_unknown_key_names_its_file_and_the_nearest_key(tmp_path: Path) -> None:
    write(
        tmp_path,
        "_base",
        'extends = "raspberry-pi-5"\n[memory]\nbandwith_gbs = { value = 1, source = "x" }\n',
    )
    text = failure(InputError, write(tmp_path, "mine", 'extends = "_base"\n'))
    assert "_base.toml: memory.bandwith_gbs: unknown key" in text
    assert "Did you mean 'bandwidth_gbs'" in text


@pytest.mark.parametrize("key", ["name", "abstract"])
def test_what_follows_from_the_name_is_no_key(tmp_path: Path, key: str) -> None:
    name = write(tmp_path, "mine", f'extends = "host"\n{key} = "x"\n')
    assert f"mine.toml: {key}:" in failure(InputError, name)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[memory]\nram_mb = 8000", "memory.ram_mb"),
        ('[memory]\nram_mb = { value = "8000", source = "x" }', "memory.ram_mb.value"),
        ('[memory]\nram_mb = { value = true, source = "x" }', "memory.ram_mb.value"),
        ('[memory]\nram_mb = { value = 0, source = "x" }', "memory.ram_mb"),
        ('[memory]\nram_mb = { value = nan, source = "x" }', "memory.ram_mb"),
        ('[memory]\nram_mb = { value = inf, source = "x" }', "memory.ram_mb"),
        ('[memory]\nram_mb = { value = 1, source = " " }', "memory.ram_mb"),
        ('[roofline]\nint8 = { value = 56, source = "x" }', "roofline"),
        ('[roofline]\nspread = { value = 0.5, source = "x" }', "roofline"),
        ('precisions = ["fp32", "fp23"]', "precisions"),
        ("[cpu]\narch = 64", "cpu.arch"),
        ("[cpu]\nfeatures = 3", "cpu.features"),
        ("cpu = 3", "cpu"),
        ("[budget]\nmax-drop = 0.01", "budget"),
        ('probe = "cloud"', "probe"),
        ("title = 5", "title"),
    ],
)
def test_a_wrong_value_names_file_and_key(tmp_path: Path, text: str, place: str) -> None:
    found = failure(InputError, write(tmp_path, "mine", f"{{}}\n{text}\n".replace("{}", 'extends = "raspberry-pi-5"')))
    assert f"mine.toml: {place}" in found


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    found = failure(InputError, write(tmp_path, "mine", 'title = "mine"\n'))
    assert "mine.toml: family: missing key" in found


def test_a_circle_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "b", 'extends = "c"\n')
    write(tmp_path, "c", 'extends = "a"\n')
    found = failure(InputError, write(tmp_path, "a", 'extends = "b"\n'))
    assert "a.toml extends b.toml extends c.toml extends a.toml" in found


def test_a_file_may_refine_the_shipped_one_of_its_own_name(tmp_path: Path) -> None:
    found = load_profile(write(tmp_path, "raspberry-pi-5", 'extends = "raspberry-pi-5"\ntitle = "the lab\'s"\n'))
    assert found.title == "the lab's"
    assert found.memory == load_profile("raspberry-pi-5").memory


@pytest.mark.parametrize("base", ['["host", "jetson"]', '"../host"', '"no-such"', '""', '"mine"'])
def test_a_base_that_is_none_is_refused(tmp_path: Path, base: str) -> None:
    assert "mine.toml: extends" in failure(InputError, write(tmp_path, "mine", f"extends = {base}\n"))


def test_names_and_files_that_do_not_exist(tmp_path: Path) -> None:
    assert "Did you mean 'jetson'" in failure(UsageError, "jetsno")
    assert "no such profile file" in failure(UsageError, str(tmp_path / "none.toml"))
    assert "base for other profiles" in failure(UsageError, "_jetson")
    with pytest.raises(UsageError):
        origins("jetsno")


def test_files_that_are_not_toml(tmp_path: Path) -> None:
    assert "not valid TOML" in failure(InputError, write(tmp_path, "mine", "title = \n"))
    (tmp_path / "bytes.toml").write_bytes(b"title = '\xff'")
    assert "not valid TOML" in failure(InputError, str(tmp_path / "bytes.toml"))


def test_the_machine_lies_under_the_file_that_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = {"value": 96.0, "source": "this machine"}
    monkeypatch.setattr(host, "probe", lambda: {"cpu": {"arch": "riscv64", "cores": cores, "features": []}})
    name = write(
        tmp_path,
        "mine",
        'extends = "raspberry-pi-5"\nprobe = "host"\n[cpu]\ncores = { value = 8, source = "half is ours" }\n',
    )
    found = load_profile(name)
    assert found.cpu.arch == "riscv64"
    assert found.cpu.cores.value == 8
    assert origins(name)["cpu.arch"] == "this machine"
    assert origins(name)["cpu.cores"] == "mine.toml"


def test_the_list_is_sorted_and_says_what_is_abstract() -> None:
    found = list_profiles()
    assert [entry.name for entry in found] == sorted(entry.name for entry in found)
    assert {entry.name for entry in found if entry.abstract} == {"_jetson", "_raspberry-pi", "_snapdragon"}
    assert all(entry.title and entry.family for entry in found)


def test_the_folder_beside_the_module_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = profiles_folder()
    package = tmp_path / "edgekit"
    package.mkdir()
    monkeypatch.setattr(profile, "__file__", str(package / "profile.py"))
    assert profiles_folder() == tmp_path.parent / "profiles"
    shutil.copytree(shipped, package / "profiles")
    assert profiles_folder() == package / "profiles"
    assert load_profile("jetson").family == "jetson"


def test_loading_a_profile_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:];"
        "from edgekit.profile import load_profile; load_profile('host');"
        "print([m for m in ('numpy', 'onnx', 'onnxruntime', 'torch', 'click', 'rich') if m in sys.modules])"
    )
    toolkit = str(Path(profile.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code, toolkit], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
