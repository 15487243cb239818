"""Run one stage on one graph as the pipeline would: what the contract suites and the stages' own tests share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx

import house
from edgekit.artifact import MAIN, Artifact, canonical_json, sha256_file
from edgekit.data import Dataset
from edgekit.dialect import Dialect
from edgekit.profile import Profile
from edgekit.stage import Context, Inputs, Stage

ORT_CPU = Dialect(
    name="ort-cpu",
    activation="uint8",
    weight="int8",
    symmetric_activations=False,
    per_channel=True,
    quantize_bias=True,
    dynamic_transformers=True,
)


def onnx_artifact(model: onnx.ModelProto, folder: Path) -> Artifact:
    """Write a graph into `folder` and describe it as the store would."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MAIN).write_bytes(model.SerializeToString(deterministic=True))
    graphs = {MAIN: {"inputs": specs(model, model.graph.input), "outputs": specs(model, model.graph.output)}}
    return Artifact(kind="onnx", files={MAIN: sha256_file(folder / MAIN)}, facts={"graphs": graphs})


def specs(model: onnx.ModelProto, values: Any) -> list[dict[str, Any]]:
    constants = {tensor.name for tensor in model.graph.initializer}
    rows = []
    for value in values:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_param or d.dim_value for d in kind.shape.dim]
        rows.append(
            {"name": value.name, "dtype": str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)), "shape": shape}
        )
    return rows


def run_stage(
    stage: Stage,
    model: onnx.ModelProto,
    tmp_path: Path,
    *,
    data: Dataset | None = None,
    profile: Profile | None = None,
    dialect: Dialect = ORT_CPU,
) -> tuple[dict[str, Any], onnx.ModelProto]:
    """Run a stage twice; the bytes, the facts and the untouched input are checked; return the facts and the graph."""
    folder = tmp_path / "in"
    artifact = onnx_artifact(model, folder)
    before = (folder / MAIN).read_bytes()
    (folder / MAIN).chmod(0o444)
    inputs = Inputs(artifact=artifact, folder=folder, profile=profile or house.profile(), data=data, dialect=dialect)
    runs = []
    for number in (1, 2):
        out, scratch = tmp_path / f"out{number}", tmp_path / f"scratch{number}"
        out.mkdir()
        scratch.mkdir()
        facts = stage.run(inputs, out, Context(scratch=scratch))
        files = {path.relative_to(out).as_posix(): sha256_file(path) for path in out.rglob("*") if path.is_file()}
        runs.append((json.loads(canonical_json(facts)), files))
    assert runs[0] == runs[1], "the same input gives other bytes or facts"
    assert (folder / MAIN).read_bytes() == before, "the input was changed"
    assert str(tmp_path) not in json.dumps(runs[0][0]), "a path got into the facts"
    assert json.loads(canonical_json(dataclasses.asdict(stage))) is not None
    return runs[0][0], onnx.load(tmp_path / "out1" / MAIN)
