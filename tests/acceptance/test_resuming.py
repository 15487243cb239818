"""`kill -9` in the middle of an evaluation over ssh: the same command goes on where it was, to the same verdict."""

from __future__ import annotations

import json
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
    assert again.run(chunks=3).returncode == -signal.SIGKILL
    assert (again.computed, len(again.kept)) == (3, 7)
    resumed = again.run()
    assert resumed.returncode == 0, resumed.stderr
    assert again.computed == 3
    assert again.kept == []
    assert accuracy(resumed) == accuracy(unbroken)
    rules = {finding["rule"]: finding["text"] for finding in json.loads(resumed.stdout)["findings"]}
    assert rules["target-resumed"] == "outputs of 7 of 10 chunks come from a run that was interrupted"
