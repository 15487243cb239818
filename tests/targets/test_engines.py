"""An engine of another TensorRT or GPU: named with both, and never loaded."""

from __future__ import annotations

import json

import pytest

from edgekit.device import engine_key
from edgekit.errors import UnsupportedError
from edgekit.sources import ingest
from edgekit.store import Store
from edgekit.targets.engines import built_for, engine_error

THOR = {"tensorrt": "10.7.0", "gpu": "NVIDIA Thor 580.00 11.0"}


@pytest.fixture
def engine(tmp_path):
    (tmp_path / "model.engine").write_bytes(b"ftrt" + bytes(64))
    return tmp_path / "model.engine"


def test_both_versions_are_named(engine):
    (engine.parent / "manifest.json").write_text(json.dumps({"tensorrt": "10.3.0", "compute": "8.7"}))
    error = engine_error(engine, THOR)
    assert error.exit_status == 7
    assert "engine built for TensorRT 10.3.0 / sm_87, target has 10.7.0 / sm_110" in error.text
    assert "builds the engine on the target" in error.remedy


def test_what_the_runner_wrote_beside_its_engines_is_read(engine):
    gpu = json.dumps({"gpu": {"name": "Orin (nvgpu)", "driver": "540.4.0", "compute": "8.7"}, "modules": []})
    engine_key.write_about(str(engine), engine_key.engine_parts("10.3.0", "python", gpu), 1)
    assert built_for(engine) == "TensorRT 10.3.0 / sm_87"


@pytest.mark.parametrize("content", [None, b"no json", b"[]", b'{"tensorrt": 5}', b'{"other": 1}'])
def test_an_engine_that_nothing_tells_of(engine, content):
    if content is not None:
        (engine.parent / "manifest.json").write_bytes(content)
    assert "nothing beside it says" in engine_error(engine).text
    assert "target has no TensorRT" in engine_error(engine, {"machine": "x86_64"}).text


def test_it_is_refused_as_a_model_everywhere(engine, edgekit, tmp_path):
    (engine.parent / "manifest.json").write_text(json.dumps({"tensorrt": "10.3.0", "compute": "8.7"}))
    with Store(tmp_path / "store") as shelf, pytest.raises(UnsupportedError, match="engines are not portable"):
        ingest(str(engine), shelf)
    ran = edgekit("validate", engine, "--target", "local", "--json")
    assert ran.status == 7
    assert "built for TensorRT 10.3.0 / sm_87, target has no TensorRT" in ran.json["error"]["text"]
