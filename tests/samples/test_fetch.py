"""The fetch commands as a user runs them: packages from the registries (or the cache), models and data written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    ours = ["download.py", "export.py", "measure.py", "text", "vision", "vision_effnet"]
    for name in ours:
        source = ROOT / "samples" / name
        target = tmp_path / "samples" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("model", "minilm", "__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    return tmp_path


def run(checkout: Path, module: str, *arguments: str) -> str:
    cache = os.environ.get("EDGEKIT_SAMPLE_CACHE", str(ROOT / ".sample-cache"))
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=checkout,
        env={**os.environ, "EDGEKIT_SAMPLE_CACHE": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(1800)
def test_efficientnet(checkout: Path) -> None:
    run(checkout, "samples.vision_effnet.fetch")
    folder = checkout / "samples" / "vision_effnet"
    from edgekit.artifact import TensorSpec
    from edgekit.data import open_dataset

    data = open_dataset(str(folder / "data"), [TensorSpec(name="x", dtype="float32", shape=("batch", 3, 96, 96))])
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    right = 0
    for row in range(500):
        found = session.run(None, data.evaluation.sample(row))[0].argmax()
        right += int(found == data.evaluation.labels[row])
    assert right >= 400


@pytest.mark.timeout(3600)
def test_text(checkout: Path) -> None:
    printed = run(checkout, "samples.text.fetch")
    folder = checkout / "samples" / "text"
    rows = [json.loads(line) for line in (folder / "data" / "evaluation.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 5000
    assert {row["label"] for row in rows} == {"negative", "positive"}
    config: dict[str, Any] = json.loads((folder / "model" / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["BertForSequenceClassification"]
    accuracy = float(printed.rsplit("accuracy", maxsplit=1)[1])
    assert accuracy > 0.78
    head = np.load(folder / "head.npz")
    assert head["weight"].shape == (384,)
