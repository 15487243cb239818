"""`kill -9` in the middle of an evaluation over ssh: the same command goes on where it was, to the same verdict."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys

import pytest

KILLED = """
import os, signal, sys
from edgekit.targets import chunks, kept, workplace
chunks.CHUNK_FEEDS = 125
left = int(sys.argv[1])
start = workplace.Workplace.start
def told(self, command, bundle, job, **options):
    if command == "infer":
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{len(job['inputs'])} ")
    return start(self, command, bundle, job, **options)
workplace.Workplace.start = told
real = kept.Kept.keep
def keep(*arguments):
    global left
    real(*arguments)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
kept.Kept.keep = keep
from edgekit.cli import run_cli
sys.exit(run_cli(sys.argv[2:]))
"""
NEVER = 1_000_000


class Evaluations:
    """The same `edgekit validate` over and over, in a store of its own, and what the machine was given to do."""

    def __init__(self, edgekit, given, package, sshd, root):
        root.mkdir()
        self.home, self.log = root / "home", root / "log"
        self.environment = edgekit.environment(self.home, LOG=str(self.log), **sshd.environment)
        self.arguments = ["validate", str(package), "--target", sshd.url, "--data", str(given.data())]
        self.arguments += ["--max-drop", "1%", "--json"]

    def run(self, chunks=NEVER):
        """Evaluate; die after so many chunks."""
        self.log.write_text("")
        argv = [sys.executable, "-c", KILLED, str(chunks), *self.arguments]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, check=False, timeout=240)

    def start(self):
        """Evaluate in the background."""
        self.log.write_text("")
        argv = [sys.executable, "-c", KILLED, str(NEVER), *self.arguments]
        return subprocess.Popen(argv, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def computed(self):
        """How many chunks the machine was given to run."""
        return self.log.read_text().split().count("1")

    @property
    def kept(self):
        return list(self.home.glob("scratch/outputs-*/*"))


def accuracy(done):
    """Everything of a verdict that is not a time or a size in memory."""
    told = json.loads(done.stdout)
    timed = ("latency", "memory", "energy")
    checks = [check for check in told["checks"] if not check["name"].startswith(timed)]
    return told["exit"], told["artifact"], checks


@pytest.mark.system("openssh-server")
def test_a_killed_evaluation_goes_on_where_it_was(edgekit, given, package, sshd, tmp_path):
    whole = Evaluations(edgekit, given, package, sshd, tmp_path / "whole")
    unbroken = whole.run()
    assert unbroken.returncode == 0, unbroken.stderr
    assert whole.computed == 10, "1244 samples, 125 at a time"
    assert whole.kept == []

    again = Evaluations(edgekit, given, package, sshd, tmp_path / "again")
    assert again.run(chunks=4).returncode == -signal.SIGKILL
    assert (again.computed, len(again.kept)) == (4, 4)
    assert list(sshd.work.glob("*/job-*/feeds.npz"))
    resumed = again.run()
    assert resumed.returncode == 0, resumed.stderr
    assert again.computed == 6
    assert again.kept == []
    assert not list(sshd.work.glob("*/job-*")), "nor does the machine keep the data of those that were killed"
    assert accuracy(resumed) == accuracy(unbroken)
    rules = {finding["rule"]: finding["text"] for finding in json.loads(resumed.stdout)["findings"]}
    assert rules["target-resumed"] == "outputs of 4 of 10 chunks come from a run that was interrupted"


@pytest.mark.slow
@pytest.mark.system("openssh-server")
def test_kills_at_random_times_end_in_the_same_verdict(edgekit, given, package, sshd, tmp_path):
    whole = Evaluations(edgekit, given, package, sshd, tmp_path / "whole").run()
    again = Evaluations(edgekit, given, package, sshd, tmp_path / "again")
    chance, before = random.Random(7), 0
    for _ in range(5):
        process = again.start()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(2, 15))
        if process.poll() is None:
            process.kill()
        if process.wait() == 0:
            break
        ended = not again.kept  # killed between the evaluation's end and its own
        assert ended or len(again.kept) >= before, "what was finished once is not lost"
        before = len(again.kept)
    done = again.run()
    assert done.returncode == 0, done.stderr
    assert accuracy(done) == accuracy(whole)
    assert again.kept == []


@pytest.mark.slow
@pytest.mark.system("openssh-server")
def test_a_killed_build_goes_on_in_its_evaluation(edgekit, given, sshd, tmp_path):
    """The stages come from the store, the finished chunks too."""
    built = Evaluations(edgekit, given, None, sshd, tmp_path / "built")
    built.arguments = ["build", str(given.model), "--profile", "host", "--recipe", "int8", "--data", str(given.data())]
    built.arguments += ["--target", sshd.url, "--out", str(tmp_path / "out"), "--max-drop", "1%", "--json"]
    assert built.run(chunks=6).returncode == -signal.SIGKILL
    done = built.run()
    assert built.computed == 4
    told = json.loads(done.stdout)
    assert done.returncode in {0, 3}, done.stderr
    assert any(finding["rule"] == "target-resumed" for finding in told["findings"])
    assert all(stage["cached"] for stage in told["stages"] if stage["name"] != "ingest")
