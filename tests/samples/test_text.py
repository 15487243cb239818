from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgekit.metrics import find_metric
from samples import download
from samples.text import metric, vader

ROOT = Path(metric.__file__).parents[2]


def outputs(labels: Any, *, wrong: int) -> list[Any]:
    head = np.load(metric.HEAD)
    direction = head["weight"] / (head["weight"] ** 2).sum()
    sides = np.where(labels > 0, 1.0, -1.0)
    sides[:wrong] *= -1
    rng = np.random.default_rng(0)
    states = []
    for side in sides:
        text = rng.standard_normal((int(rng.integers(4, 20)), len(direction))).astype(np.float32)
        text[0] = direction * (side - float(head["bias"]))
        states.append(text)
    return states


def test_the_metric_reads_the_first_token() -> None:
    labels = np.array([0, 1] * 10)
    found = find_metric("python:samples.text.metric:valence_accuracy", ROOT)
    assert (found.higher_is_better, found.bounded, found.needs_labels) == (True, True, True)
    assert found.whole is not None
    value, scores = found.whole({"last_hidden_state": outputs(labels, wrong=3)}, labels)
    assert value == pytest.approx(17 / 20)
    assert scores.tolist() == [0.0] * 3 + [1.0] * 17


def test_padding_changes_nothing() -> None:
    labels = np.array([0, 1] * 4)
    ragged = outputs(labels, wrong=1)
    padded = np.stack([np.pad(states, ((0, 20 - len(states)), (0, 0)), constant_values=9) for states in ragged])
    assert metric.valence_accuracy({"last_hidden_state": padded}, labels)[0] == pytest.approx(7 / 8)


def test_snippets_are_labeled_split_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{n}\t{(n % 81 - 40) / 10}\tsnippet number {n} " for n in range(8000)]
    lines += ["8001\t-3.5\tSNIPPET NUMBER 80", "8002\t-2.0\ta bad one"]
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as tar:
        content = "\r\n".join(lines).encode()
        entry = tarfile.TarInfo(vader.SNIPPETS)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))

    def place(_package: download.Package, folder: Path, _members: dict[str, str]) -> Path:
        (folder / "data.tar.gz").write_bytes(inner.getvalue())
        return folder

    monkeypatch.setattr(vader, "unpack", place)
    splits = vader.load()
    assert splits == vader.load()
    assert [len(splits[0]), len(splits[2])] == [256, 5000]
    texts = [snippet.text for split in splits for snippet in split]
    neutral = sum(abs((n % 81 - 40) / 10) < 0.5 for n in range(8000))
    assert len(texts) == len({text.lower() for text in texts}) == 8001 - neutral
    labels = {snippet.text: snippet.label for split in splits for snippet in split}
    assert labels["a bad one"] == 0
    assert labels["snippet number 80"] == 1
    assert labels["snippet number 81"] == 0
