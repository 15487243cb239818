"""The cache and reproducibility: nothing runs twice, and the same inputs give the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tomllib

import pytest

from edgekit.package import read_package
from edgekit.recipe import recipe_path

LATE = ("verdict.json", "seal.json")
"""What was timed stands here: the rest of a package is its payload."""


def payload(path):
    """Return the members of a package, `LATE` excepted, as bytes with their headers."""
    with tarfile.open(path) as archive:
        names = archive.getnames()
        assert set(LATE) < set(names)
        found = {}
        for member in archive.getmembers():
            if member.name not in LATE:
                found[member.name] = (member.get_info(), archive.extractfile(member).read())
        return found


def test_a_second_build_runs_no_stage_again(edgekit, given, tmp_path):
    asked = (given.model, "--data", given.data(), "--out", tmp_path)
    first = edgekit.build(*asked)
    second = edgekit.build(*asked)
    assert list(second.cached) == ["simplify", "equalize", "quantize-int8", "compile"]
    assert all(second.cached.values())
    assert second.json["artifact"] == first.json["artifact"]
    facts = [[stage["facts"] for stage in ran.json["stages"]] for ran in (first, second)]
    assert facts[0] == facts[1]
    assert second.json["checks"] == first.json["checks"]
    assert second.json["findings"] == first.json["findings"]


def test_a_budget_or_an_output_folder_redoes_nothing(edgekit, given, package, tmp_path):
    ran = edgekit.build(given.model, "--data", given.data(), "--max-size", "1MB", "--threads", "2", "--out", tmp_path)
    assert all(ran.cached.values())


def test_another_option_of_the_last_stage_redoes_only_what_follows(edgekit, given, package, tmp_path):
    recipe = tmp_path / "mine.toml"
    text = recipe_path("int8").read_text(encoding="utf-8")
    assert tomllib.loads(text)["stage"][-1]["use"] == "quantize-int8"
    recipe.write_text(text + 'method = "percentile"\n', encoding="utf-8")
    ran = edgekit.build(given.model, "--data", given.data(), "--recipe", recipe, "--out", tmp_path)
    assert ran.status == 0
    assert ran.cached == {"simplify": True, "equalize": True, "quantize-int8": False, "compile": False}


def test_a_shorter_recipe_takes_what_it_shares(edgekit, given, package, tmp_path):
    ran = edgekit.build(given.model, "--data", given.data(), "--recipe", "fp32", "--out", tmp_path)
    assert ran.cached["simplify"]


def test_other_data_redoes_everything(edgekit, given, package, tmp_path):
    ran = edgekit.build(given.model, "--data", given.data(seed=3), "--out", tmp_path)
    assert not any(ran.cached.values())


def test_the_same_content_elsewhere_is_the_same(edgekit, given, package, tmp_path):
    """Ids go by content: the model and the data may move, and get other names and times."""
    shutil.copy(given.model, tmp_path / "other.onnx")
    shutil.copy(given.data(), tmp_path / "other.npz")
    ran = edgekit.build(tmp_path / "other.onnx", "--data", tmp_path / "other.npz", "--out", tmp_path)
    assert all(ran.cached.values())


@pytest.fixture(scope="session")
def twins(edgekit, given, tmp_path_factory):
    """Packages of the same inputs from two empty stores, in different folders."""
    found = []
    for name in ("one", "two"):
        root = tmp_path_factory.mktemp(name)
        shutil.copytree(given.folder, root / "inputs", ignore=shutil.ignore_patterns("packed-once", "fifty"))
        data = root / "inputs" / given.data().name
        ran = edgekit.build(
            *(root / "inputs" / "model.onnx", "--data", data, "--max-drop", "1%", "--out", root / "out"),
            home=root / "home",
        )
        assert ran.status == 0, ran.err
        assert not any(ran.cached.values())
        found.append(ran)
    return found


def test_two_empty_stores_give_the_same_payload_byte_by_byte(twins):
    one, two = (payload(ran.json["package"]) for ran in twins)
    assert list(one) == list(two)
    assert [name for name in one if one[name] != two[name]] == []
    assert twins[0].json["artifact"] == twins[1].json["artifact"]


def test_the_seal_names_the_payload(twins):
    one, two = (read_package(_path(ran)) for ran in twins)
    assert one.seal.payload == two.seal.payload
    assert one.manifest == two.manifest


def test_no_path_of_the_builder_is_in_the_payload(twins, tmp_path_factory):
    for ran in twins:
        for name, (_, content) in payload(ran.json["package"]).items():
            assert str(tmp_path_factory.getbasetemp()).encode() not in content, name


def test_a_package_written_again_has_the_same_payload(edgekit, given, package, tmp_path):
    built = edgekit.build(given.model, "--data", given.data(), "--max-drop", "1%", "--out", package.parent)
    again = edgekit("package", built.json["artifact"], "--out", tmp_path, "--json")
    assert again.status == 0
    assert payload(again.json["package"]) == payload(package)


def test_two_builds_at_once_in_one_empty_store_end_alike(edgekit, given, tmp_path):
    """They share the work or wait for each other; neither breaks the other's store."""
    children = [
        subprocess.Popen(
            edgekit.argv(
                *("build", given.model, "--data", given.data(), "--profile", "raspberry-pi-5", "--json"),
                *("--out", tmp_path / f"out{number}"),
            ),
            env=edgekit.environment(tmp_path / "home"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    told = [child.communicate(timeout=240) for child in children]
    assert [child.returncode for child in children] == [0, 0], told
    one, two = (tmp_path / f"out{number}" / "model-raspberry-pi-5.edgekit" for number in range(2))
    assert payload(one) == payload(two)
    assert not list((tmp_path / "home").glob("artifacts/*/.new-*"))


def test_two_builds_into_one_folder_leave_one_whole_package(edgekit, given, package, tmp_path):
    """One of them may be told that the other is at work; what lies there is whole in any case."""
    argv = edgekit.argv(
        *("build", given.model, "--data", given.data(), "--profile", "raspberry-pi-5", "--out", tmp_path),
    )
    children = [
        subprocess.Popen(argv, env=edgekit.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]
    assert {child.wait(240) for child in children} <= {0, 2}
    (found,) = tmp_path.glob("*.edgekit")
    read_package(found)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def _path(ran):
    from pathlib import Path

    return Path(ran.json["package"])
