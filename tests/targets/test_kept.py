"""An evaluation that was interrupted goes on with the chunks that are not finished; nothing else is ever taken."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import onnx_models
from edgekit.errors import TargetError
from edgekit.profile import load_profile
from edgekit.target import Bundle
from edgekit.targets import chunks, kept, open_target
from edgekit.targets.kept import Kept
from edgekit.transport import Completed
from edgekit.transports.local import LocalTransport
from house import profile

FACTS = {"runtime": "onnxruntime", "model": "model.onnx", "providers": ["CPUExecutionProvider"]}
HOST = profile(cpu=load_profile("host").cpu)


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(chunks, "CHUNK_FEEDS", 2)


@pytest.fixture(scope="module")
def probed():
    """What this machine said of itself, asked once: a probe takes longer than the work of these tests."""
    return []


@pytest.fixture(autouse=True)
def one_probe(probed, monkeypatch):
    real = LocalTransport.run

    def run(transport, argv, *, timeout):
        if "probe" not in argv:
            return real(transport, argv, timeout=timeout)
        answer = transport._place(argv[-1])
        if probed:
            answer.write_bytes(probed[0])
            return Completed(status=0, stdout="", stderr="")
        done = real(transport, argv, timeout=timeout)
        probed.append(answer.read_bytes())
        return done

    monkeypatch.setattr(LocalTransport, "run", run)


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    onnx_models.linear(folder / "model.onnx", features=8, classes=3)
    return Bundle(folder=folder, facts=FACTS)


def feeds(count, seed=0):
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, 8)).astype(np.float32)} for _ in range(count)]


class Evaluation:
    """Runs feeds on this machine; counts the chunks that were computed."""

    def __init__(self, folder, bundle):
        self.folder, self.bundle, self.computed, self.rules = folder, bundle, 0, {}

    def run(self, given, until=None, bundle=None):
        """Run to the end, or leave after `until` outputs as if killed there."""
        self.computed = 0
        with open_target("local", HOST, keep=self.folder) as target:
            start = target._place.start

            def counted(command, bundle, job, **options):
                self.computed += len(job["inputs"]) if command == "infer" else 0
                return start(command, bundle, job, **options)

            target._place.start = counted
            found = []
            for outputs in target.run(bundle or self.bundle, given):
                found.append(outputs["y"])
                if len(found) == until:
                    break
            self.rules = {finding.rule: finding.text for finding in target.findings}
        return found

    @property
    def files(self):
        return sorted(path.name for path in self.folder.rglob("*.npz"))


@pytest.fixture
def evaluation(tmp_path, bundle):
    return Evaluation(tmp_path / "scratch", bundle)


def test_only_unfinished_chunks_run_again(evaluation):
    whole = evaluation.run(feeds(8))
    assert (evaluation.computed, evaluation.files) == (4, []), "what has ended leaves nothing"
    evaluation.run(feeds(8), until=5)
    assert len(evaluation.files) == 3
    again = evaluation.run(feeds(8))
    assert evaluation.computed == 1
    np.testing.assert_array_equal(np.concatenate(again), np.concatenate(whole))
    assert evaluation.rules == {"target-resumed": "outputs of 3 of 4 chunks come from a run that was interrupted"}
    assert not list(evaluation.folder.iterdir())
    evaluation.run(feeds(8))
    assert evaluation.computed == 4, "what was measured once never stands for a later measurement"


def test_equal_chunks_of_one_run_are_no_resumption(evaluation):
    evaluation.run(feeds(2) * 3)
    assert evaluation.computed == 3
    assert evaluation.rules == {}


def test_other_data_another_model_and_other_options_are_computed(evaluation, tmp_path):
    evaluation.run(feeds(6), until=5)
    changed = feeds(6)
    changed[2] = feeds(1, seed=9)[0]
    evaluation.run(changed, until=5)
    assert evaluation.computed == 1, "the chunk that changed"
    shuffled = feeds(6)[2:4] + feeds(6)[:2] + feeds(6)[4:]
    evaluation.run(shuffled, until=5)
    assert evaluation.computed == 2
    folder = tmp_path / "other"
    folder.mkdir()
    onnx_models.linear(folder / "model.onnx", features=8, classes=4)
    evaluation.run(feeds(6), bundle=Bundle(folder=folder, facts=FACTS))
    assert evaluation.computed == 3
    facts = {**FACTS, "shapes": {"x": [[1, 8], [1, 8], [2, 8]]}}
    evaluation.run(feeds(6), bundle=Bundle(folder=evaluation.bundle.folder, facts=facts))
    assert evaluation.computed == 3


def test_another_engine_another_machine_and_another_runner_are_computed(evaluation, monkeypatch):
    evaluation.run(feeds(4), until=3)
    with monkeypatch.context() as patch:
        patch.setattr("edgekit.targets.composite.engine_key", lambda _: "another-engine")
        evaluation.run(feeds(4), until=3)
        assert evaluation.computed == 2
    for name, value in (("identity", "another"), ("runtimes", {"onnxruntime": {"version": "0"}})):
        with monkeypatch.context() as patch:
            probe = open_target("local", HOST)._place.__class__.look
            patch.setattr(
                "edgekit.targets.workplace.Workplace.look",
                lambda self, probe=probe, name=name, value=value: {**probe(self), name: value},
            )
            evaluation.run(feeds(4))
            assert evaluation.computed == 2, name
    evaluation.run(feeds(4))
    assert evaluation.computed == 0, "what was there all the time"


@pytest.mark.parametrize("damage", ["cut", "emptied", "flipped"])
def test_a_file_that_was_damaged_is_none(tmp_path, damage):
    outputs = tmp_path / "outputs.npz"
    outputs.write_bytes(bytes(range(256)))
    kept_here = Kept(tmp_path / "scratch", {})
    kept_here.keep("a", "engine", outputs)
    path = kept_here.find("a", "engine")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:-9], "emptied": b"", "flipped": bytes(content)}[damage])
    assert kept_here.find("a", "engine") is None
    assert not kept_here, "it is gone"


def test_what_was_damaged_is_computed_again(evaluation):
    whole = evaluation.run(feeds(4))
    evaluation.run(feeds(4), until=3)
    path = next(evaluation.folder.rglob("*.npz"))
    path.write_bytes(path.read_bytes()[:-9])
    again = evaluation.run(feeds(4))
    assert evaluation.computed == 1
    np.testing.assert_array_equal(np.concatenate(again), np.concatenate(whole))


def test_outputs_that_are_none_are_not_kept(evaluation, bundle, monkeypatch):
    with open_target("local", HOST, keep=evaluation.folder) as target:
        fetch = target._place.fetch

        def garbled(name, destination):
            fetch(name, destination)
            if destination.suffix == ".npz":
                destination.write_bytes(b"PK")
            return destination

        target._place.fetch = garbled
        with pytest.raises(TargetError, match="what came back"):
            list(target.run(bundle, feeds(2)))
    assert evaluation.files == []


def test_what_cannot_be_kept_is_told_and_the_evaluation_ends_all_the_same(evaluation):
    evaluation.folder.write_bytes(b"a file where the folder should be")
    found = evaluation.run(feeds(4))
    assert len(found) == 4
    assert "not all outputs could be kept: " in evaluation.rules["target-not-kept"]
    assert "begins them again" in evaluation.rules["target-not-kept"]


def test_bytes_are_bounded_the_oldest_evaluation_goes_first(tmp_path, monkeypatch):
    outputs = tmp_path / "outputs.npz"
    outputs.write_bytes(b"o" * 1000)
    monkeypatch.setattr(kept, "MAX_BYTES", 2500)
    first, second, third = (Kept(tmp_path / "scratch", {"number": number}) for number in range(3))
    first.keep("a", "engine", outputs)
    second.keep("a", "engine", outputs)
    oldest = next(path.parent for path in (tmp_path / "scratch").rglob("a.*") if first.find("a", "engine") == path)
    os.utime(oldest, (1, 1))
    third.keep("a", "engine", outputs)
    assert first.find("a", "engine") is None
    assert second.find("a", "engine")
    assert third.find("a", "engine")
    third.keep("b", "engine", outputs)  # its own are never given up for its own
    third.keep("c", "engine", outputs)
    assert third.find("b", "engine")
    assert third.find("c", "engine") is None
    assert any("take more than" in finding.text for finding in third.findings(3, "there"))


def test_what_nobody_came_back_to_goes_and_so_does_what_a_kill_left_half(tmp_path):
    outputs = tmp_path / "outputs.npz"
    outputs.write_bytes(b"o")
    old, fresh = Kept(tmp_path / "scratch", {"of": "old"}), Kept(tmp_path / "scratch", {"of": "fresh"})
    old.keep("a", "engine", outputs)
    fresh.keep("a", "engine", outputs)
    folders = {path.parent for path in (tmp_path / "scratch").rglob("*.npz")}
    (aged,) = [folder for folder in folders if old.find("a", "engine") in set(folder.iterdir())]
    (ours,) = folders - {aged}
    (ours / ".new-half").write_bytes(b"o")
    long_ago = time.time() - kept.MAX_AGE - 60
    os.utime(ours / ".new-half", (long_ago, long_ago))
    os.utime(aged, (long_ago, long_ago))
    again = Kept(tmp_path / "scratch", {"of": "fresh"})
    assert again
    assert not aged.exists()
    assert [path.suffix for path in ours.iterdir()] == [".npz"]
