"""What every profile file owes: it loads, its figures have sources, its words are known."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgekit import host
from edgekit.profile import Profile, load_profile, origins, profiles_folder

FILES = sorted(profiles_folder().glob("*.toml"))
NAMES = [path.stem for path in FILES if not path.stem.startswith("_")]
RECIPES = {"fp32", "fp16", "int8", "auto"}
RUNTIMES = {"onnx", "tensorrt", "qnn"}
NEEDS = {"fp32": "fp32", "fp16": "fp16", "int8": "w8a8", "auto": "w8a8"}
ISSUE = ["host", "jetson", "snapdragon", "raspberry-pi-5"]


def figures(values: dict[str, Any], prefix: str = "") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        if isinstance(value, dict) and {"value", "source"} & value.keys():
            found[f"{prefix}{key}"] = value
        elif isinstance(value, dict):
            found |= figures(value, f"{prefix}{key}.")
    return found


def test_what_the_issue_names_is_there() -> None:
    assert set(ISSUE) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_its_words_are_known(name: str) -> None:
    found = load_profile(name)
    assert found.recipe in RECIPES
    assert found.runtime in RUNTIMES
    assert NEEDS[found.recipe] in found.precisions
    assert set(found.cpu.features) <= set(host.FEATURES.get(found.cpu.arch, ()))
    assert found.family in {"host", "jetson", "snapdragon", "raspberry-pi"}
    assert msgspec.json.decode(msgspec.json.encode(found), type=Profile) == found


@pytest.mark.parametrize("name", NAMES)
def test_what_it_computes_has_a_peak(name: str) -> None:
    found = load_profile(name)
    quantized = any(precision.startswith("w8") for precision in found.precisions)
    assert not quantized or found.compute.int8_tops is not None
    if "fp16" in found.precisions and found.runtime != "onnx":
        assert found.compute.fp16_tops is not None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_figure_says_where_it_is_from(path: Path) -> None:
    for key, figure in figures(tomllib.loads(path.read_text(encoding="utf-8"))).items():
        kind = re.match(r"estimated|computed|fitted|measured|tegrastats|NVIDIA|Raspberry Pi|Qualcomm", figure["source"])
        assert kind, f"{path.name}: {key}: what kind of source is '{figure['source']}'?"
        if re.search(r"from memory|guess|typical", figure["source"]):
            assert figure["source"].startswith("estimated"), f"{path.name}: {key}"


@pytest.mark.parametrize(("alias", "device"), [("jetson", "jetson-orin-nano-8gb"), ("snapdragon", "snapdragon-8-gen3")])
def test_an_alias_is_its_device_under_another_name(alias: str, device: str) -> None:
    same = {"name": device, "title": load_profile(device).title}
    assert msgspec.structs.replace(load_profile(alias), **same) == load_profile(device)
    assert f"{device}.toml" in origins(alias).values()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("jetson") and "thor" not in name])
def test_jetson_orin_peaks_follow_from_multiprocessors_and_clock(name: str) -> None:
    compute = load_profile(name).compute
    assert compute.int8_tops is not None
    assert compute.fp16_tops is not None
    stated = re.search(r"(\d+) SM x 8192 x ([\d.]+) MHz", compute.int8_tops.source)
    published = re.search(r"(\d+) TOPS", compute.int8_tops.source)
    assert stated
    assert published
    dense = int(stated[1]) * 8192 * float(stated[2]) / 2 / 1e6
    assert compute.int8_tops.value == pytest.approx(dense, abs=0.06)
    assert compute.fp16_tops.value == pytest.approx(dense / 2, abs=0.06)
    assert compute.fp32_tops.value == pytest.approx(dense / 4, abs=0.06)
    gpu_only = "with the DLA" not in compute.int8_tops.source
    assert 2 * dense <= int(published[1]) * 1.03
    assert not gpu_only or 2 * dense == pytest.approx(int(published[1]), rel=0.03)


def test_thor_is_told_to_be_estimated() -> None:
    found = load_profile("jetson-agx-thor")
    assert found.compute.int8_tops is not None
    assert found.compute.int8_tops.estimated
    assert found.roofline.int8.estimated
    assert found.roofline.spread.value >= 2
    assert found.roofline.spread_unlike == found.roofline.spread, "what was fitted on Orin is not taken over"


@pytest.mark.parametrize("name", [name for name in NAMES if load_profile(name).family == "snapdragon"])
def test_snapdragon_says_what_the_simulator_needs(name: str) -> None:
    found = load_profile(name)
    htp = found.settings["htp"]
    always = {"soc_model", "arch", "fp16", "estimate"}
    assert always <= htp.keys() <= always | {"vtcm_mb", "integer_twin", "also"}
    assert ("fp16" in found.precisions) is htp["fp16"]
    assert "fp32" not in found.precisions
    assert (htp["estimate"] == "native") is (htp["soc_model"] in {52, 62, 63, 72, 77, 95, 114})
    assert (htp["estimate"] == "none") is (name == "snapdragon-888"), "of it alone nothing was published"


SOCS = {
    "snapdragon-888": ("SM8350", 30, 68, False, 4),
    "snapdragon-8-gen1": ("SM8450", 36, 69, True, 8),
    "snapdragon-8-gen2": ("SM8550", 43, 73, True, 8),
    "snapdragon-8-gen3": ("SM8650", 57, 75, True, 8),
    "snapdragon-8-elite": ("SM8750", 69, 79, True, 8),
    "snapdragon-8-elite-gen5": ("SM8850", 87, 81, True, 8),
    "snapdragon-x-elite": ("", 60, 73, True, None),
    "snapdragon-x2-elite": ("", 88, 81, True, None),
    "qcs6490": ("QCS6490", 93, 68, False, 2),
    "qcm6690": ("QCM6690", 78, 73, False, None),
    "iq-9075": ("QCS9075", 77, 73, True, 8),
    "sa8775p": ("SA8775P", 52, 73, True, 8),
}
"""Profile -> a name of the chip, Qualcomm's number, HTP architecture, float16, MB of VTCM: as the simulator has it."""


@pytest.mark.parametrize("name", SOCS)
def test_the_numbers_of_each_snapdragon(name: str) -> None:
    module, soc, arch, half, vtcm = SOCS[name]
    found = load_profile(name)
    htp = found.settings["htp"]
    assert (htp["soc_model"], htp["arch"], htp["fp16"], htp.get("vtcm_mb")) == (soc, arch, half, vtcm)
    assert not module or module in found.modules
    assert {"w8a8", "w8a16", "w4a16"} <= set(found.precisions)


def test_no_two_devices_answer_to_one_module() -> None:
    owners: dict[str, str] = {}
    for path in FILES:
        for module in tomllib.loads(path.read_text(encoding="utf-8")).get("modules", []):
            assert owners.setdefault(module, path.stem) == path.stem
