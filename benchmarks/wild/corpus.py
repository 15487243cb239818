"""Runs ONNX's node tests (`FOLDER/*/test_*`, each a model with inputs and expected outputs) through edgekit's graphs.

    PYTHONPATH=toolkit:exporters python benchmarks/wild/corpus.py FOLDER [--only PART,...] [--out RESULTS.jsonl]

Each test has a forked process of its own: intake, then simplify, then fp16 and int8, all with the test's own inputs.
A test is `ok` when intake and simplify give the expected outputs, `refused` when an error of edgekit says why not;
`wrong` and `bug` are what must not be. Debian's libonnx-testdata and onnx itself (onnx/backend/test/data) have such
tests; nothing has to be installed as root: `apt-get download libonnx-testdata`, `dpkg -x`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxslim  # noqa: F401 - imported before forks, as all that is slow

from edgekit.artifact import Artifact
from edgekit.data import Dataset
from edgekit.errors import EdgekitError
from edgekit.exporter import load_exporter
from edgekit.graphs import files, intake, probe, verify
from edgekit.profile import load_profile
from edgekit.stage import Context, Inputs
from edgekit.stages import fp16, quantize_int8, simplify

SECONDS = 120
_STAGES = {"simplify": simplify.Simplify(), "fp16": fp16.Fp16(), "int8": quantize_int8.QuantizeInt8()}


class Feeds:
    """The test's inputs as a split."""

    labels = None

    def __init__(self, feeds: Sequence[dict[str, Any]]) -> None:
        self.feeds = feeds
        self.ids = [str(index) for index in range(len(feeds))]

    def __len__(self) -> int:
        return len(self.feeds)

    def sample(self, index: int) -> dict[str, Any]:  # noqa: D102 - see Samples
        return dict(self.feeds[index])

    def batches(self, size: int) -> Any:  # noqa: ARG002, D102 - see Samples
        yield from (self.sample(index) for index in range(len(self)))


def task_here(task: str, request: dict[str, Any], *, folder: Path, **_: Any) -> Any:
    """Do what a child process would do, in this (forked) one."""
    module, _, function = probe.TASKS[task].partition(":")
    with contextlib.chdir(folder):
        return json.loads(json.dumps(getattr(importlib.import_module(module), function)(**request)))


def read_set(folder: Path, model: onnx.ModelProto) -> tuple[dict[str, Any], list[Any]]:
    """Return the inputs by name and the outputs in order; TypeError for sequences and the like."""

    def values(prefix: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
        found = []
        for number, info in enumerate(infos):
            path = folder / f"{prefix}_{number}.pb"
            if not path.exists():
                break
            kind = info.type.WhichOneof("value")
            if kind not in {"tensor_type", None}:
                raise TypeError(kind)
            tensor = onnx.load_tensor(str(path))
            if info.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 or tensor.data_type == 16:
                raise TypeError("bfloat16, which onnxruntime's Python does not feed")
            found.append(onnx.numpy_helper.to_array(tensor))
        return found

    constants = {tensor.name for tensor in model.graph.initializer}
    infos = [info for info in model.graph.input if info.name not in constants]
    if len(infos) != len(list(folder.glob("input_*.pb"))):
        infos = list(model.graph.input)
    inputs = values("input", infos)
    return {info.name: value for info, value in zip(infos, inputs, strict=False)}, values("output", model.graph.output)


def run(path: Path, feed: Mapping[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    kinds = {item.name: item.type for item in session.get_inputs()}
    return session.run(None, {name: value for name, value in feed.items() if name in kinds})


def differs(expected: Sequence[Any], found: Sequence[Any], rtol: float = 2e-3, atol: float = 1e-5) -> str:
    if len(expected) != len(found):
        return f"{len(found)} outputs, {len(expected)} expected"
    for index, (want, have) in enumerate(zip(expected, found, strict=True)):
        have = np.asarray(have)  # noqa: PLW2901
        if want.shape != have.shape:
            return f"output {index}: shape {have.shape}, expected {want.shape}"
        if want.dtype.kind in "OSU":
            if [str(v) for v in want.reshape(-1)] != [str(v) for v in have.reshape(-1)]:
                return f"output {index}: other text"
        elif not np.allclose(want.astype(np.float64), have.astype(np.float64), rtol, atol, equal_nan=True):
            error = np.abs(want.astype(np.float64) - have.astype(np.float64)).max(initial=0)
            return f"output {index}: off by {error:.3g}"
    return ""


def take(test: Path) -> dict[str, Any]:
    """One test, in a process of its own."""
    for module in (files, verify, simplify):
        module.run_task = task_here  # type: ignore[attr-defined]
    intake.confine = lambda _: None  # type: ignore[assignment]
    source = test / "model.onnx"
    model = onnx.load(source)
    answer: dict[str, Any] = {"ops": sorted({node.op_type for node in model.graph.node})[:6]}
    try:
        feed, expected = read_set(test / "test_data_set_0", model)
    except (TypeError, FileNotFoundError) as error:
        feed, expected, answer["no data"] = {}, [], repr(error)
    native: Any = None
    if not answer.get("no data"):
        try:
            native = run(source, feed)
        except Exception as error:  # noqa: BLE001 - whatever it says
            answer["native"] = f"{type(error).__name__}: {str(error)[:200]}"
        else:
            answer["native"] = differs(expected, native)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "0").mkdir()
        facts = files.read_onnx(source, place / "0")
        artifact = artifact_of(place / "0", facts)
        answer["findings"] = [f["rule"] for f in facts["findings"]]
        if "no data" in answer:
            answer["taken without data"] = True
            return answer
        target = native if native is not None and answer.get("native") else expected
        answer["intake"] = differs(target, run(place / "0/model.onnx", feed))
        answer["dynamic"] = axes(place / "0", facts)
        for name, stage in _STAGES.items():
            try:
                made, told = stage_run(stage, artifact, place, name, feed)
            except EdgekitError as error:
                answer[name] = f"{error.kind}: {error}"[:400]
                continue
            if name == "simplify":
                answer[name] = differs(target, run(place / name / "model.onnx", feed))
                artifact = made
                answer["undone"] = [f["text"] for f in told.get("findings", ()) if f["rule"] != "unchecked"]
            else:
                run(place / name / "model.onnx", as_taken(feed, place / name / "model.onnx"))
                answer[name] = ""
    return answer


def axes(folder: Path, facts: dict[str, Any]) -> str:
    try:
        files.check_dynamic(folder, facts["graphs"]["model.onnx"], needed=False)
    except EdgekitError as error:
        return f"{error.kind}: {error}"[:300]
    return ""


def as_taken(feed: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kinds = {i.name: i.type.tensor_type.elem_type for i in onnx.load(path).graph.input}
    return {
        name: value.astype(onnx.helper.tensor_dtype_to_np_dtype(kinds[name])) if value.dtype.kind == "f" else value
        for name, value in feed.items()
        if name in kinds
    }


def artifact_of(folder: Path, facts: dict[str, Any]) -> Artifact:
    return Artifact(kind="onnx", files={path.name: "" for path in folder.iterdir()}, facts=facts)


def stage_run(stage: Any, artifact: Artifact, place: Path, name: str, feed: dict[str, Any]) -> tuple[Artifact, Any]:
    profile = load_profile("host")
    folder = place / ("0" if name == "simplify" else "simplify")
    if not folder.exists():
        folder = place / "0"
    out = place / name
    out.mkdir()
    samples = Feeds([feed])
    data = Dataset(
        id="", calibration=samples, training=Feeds([]), evaluation=Feeds([]), preprocessing={}, labels=(), findings=()
    )
    inputs = Inputs(
        artifact=artifact, folder=folder, profile=profile, data=data, dialect=load_exporter("onnx").dialect(profile)
    )
    scratch = place / f"scratch-{name}"
    scratch.mkdir()
    told = stage.run(inputs, out, Context(scratch=scratch))
    return artifact_of(out, {**artifact.facts, **told}), told


def isolated(test: Path) -> dict[str, Any]:
    """Fork, take the test there, and return what it wrote; a crash is a result."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        pid = os.fork()
        if not pid:
            status = 0
            try:
                signal.alarm(SECONDS)
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                os.dup2(null, 2)
                try:
                    told = take(test)
                except EdgekitError as error:
                    told = {"refused": f"{error.kind}: {error}"[:400]}
                except Exception:  # noqa: BLE001 - what is looked for
                    told = {"bug": traceback.format_exc()[-1500:]}
                answer.write_text(json.dumps(told))
            except BaseException:  # noqa: BLE001
                status = 1
            os._exit(status)
        _, status = os.waitpid(pid, 0)
        if status or not answer.exists():
            return {"bug": f"ended with {status}"}
        return dict(json.loads(answer.read_text()))


def verdict(line: dict[str, Any]) -> str:
    if "bug" in line or any(str(line.get(stage, "")).startswith("bug") for stage in (*_STAGES, "dynamic")):
        return "bug"
    if "refused" in line:
        return "refused"
    if "no data" in line:
        return "taken without data"
    if line["intake"] or line["simplify"]:
        return "wrong"
    return "ok"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("corpus.jsonl"))
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with options.out.open("w") as out:
        for test in sorted(path.parent for path in options.folder.glob("**/model.onnx")):
            if options.only and not any(part in test.name for part in options.only.split(",")):
                continue
            line = {"test": f"{test.parent.name}/{test.name}", **isolated(test)}
            line["verdict"] = verdict(line)
            counts[line["verdict"]] += 1
            out.write(json.dumps(line) + "\n")
            out.flush()
    print(dict(counts))


if __name__ == "__main__":
    main()
