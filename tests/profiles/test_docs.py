"""The example of docs/profiles.md works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from edgekit import profile
from edgekit.profile import Profile, load_profile, origins

PAGE = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")


def test_the_example_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml[^\n]*\n# \S+/(\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 1
    name, text = blocks[0]
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = load_profile(str(tmp_path / name))
    assert found.name == "gateway"
    assert found.budget == {"max-drop": "1%", "latency-p95": "40ms"}
    assert found.roofline == load_profile("raspberry-pi-5").roofline
    assert origins(str(tmp_path / name))["memory.ram_mb"] == "gateway.toml"


def test_the_page_names_every_key() -> None:
    for field in msgspec.structs.fields(Profile):
        if field.name not in {"name", "abstract"}:
            assert f"`{field.name}" in PAGE, field.name


@pytest.mark.parametrize("struct", [profile.Roofline, profile.Graph, profile.Compute, profile.Memory, profile.Cpu])
def test_the_page_names_every_field(struct: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(struct):
        assert f"`{field.name}`" in PAGE, field.name
