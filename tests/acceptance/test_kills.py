"""`kill -9` at any moment: nothing half in the store, no half package, and the same command again ends well.

Every durable step of a build (fsync, rename, replace) is counted; the process kills itself right after the k-th.
"""

from __future__ import annotations

import functools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgekit.artifact import sha256_file
from edgekit.package import read_package
from edgekit.store import Store

KILLED = """
import os, signal, sys
left = int(sys.argv[1])
def counted(real):
    def call(*arguments, **options):
        global left
        result = real(*arguments, **options)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
for name in ("fsync", "rename", "replace"):
    setattr(os, name, counted(getattr(os, name)))
from edgekit.cli import run_cli
status = run_cli(sys.argv[2:])
sys.stderr.write(f"steps={int(sys.argv[1]) - left}")
sys.exit(status)
"""
NEVER = 1_000_000
NAME = "model-raspberry-pi-5.edgekit"
STAGES = ("fp16", "simplify")
"""Of the longer build; the shorter one has the first only."""


class Place:
    """A store, a folder for packages, and the build that is killed."""

    def __init__(self, edgekit, given, root, recipe):
        self.home, self.out, self._edgekit = root / "home", root / "out", edgekit
        self.arguments = [
            *("build", given.model, "--profile", "raspberry-pi-5", "--data", given.data(count=40)),
            *("--recipe", recipe, "--out", self.out, "--json"),
        ]

    def run(self, steps=NEVER):
        """Build; kill it after so many durable steps."""
        return subprocess.run(
            [sys.executable, "-c", KILLED, str(steps), *(str(argument) for argument in self.arguments)],
            env=self._edgekit.environment(self.home),
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self):
        return subprocess.Popen(
            self._edgekit.argv(*self.arguments),
            env=self._edgekit.environment(self.home),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def check_store(self):
        """Nothing in the store is half: what has a place has a manifest, and every file is what the manifest says."""
        for home in self.home.glob("artifacts/[0-9a-f][0-9a-f]/*"):
            manifest = json.loads((home / "manifest.json").read_bytes())
            files = [path for path in home.glob("files/**/*") if path.is_file()]
            found = {path.relative_to(home / "files").as_posix(): sha256_file(path) for path in files}
            assert found == manifest["artifact"]["files"]
        for record in self.home.glob("records/*/*.json"):
            known = json.loads(record.read_bytes())["artifact"]
            assert (self.home / "artifacts" / known[:2] / known / "manifest.json").is_file()

    def check_package(self):
        """A package that lies there is whole."""
        for path in self.out.glob("*.edgekit"):
            read_package(path)

    def check_end(self, whole):
        """The same command again: the same payload as an unbroken build, and nothing else left."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        assert read_package(self.out / NAME).seal.payload == whole
        assert sorted(path.name for path in self.out.iterdir()) == [NAME, NAME.replace(".edgekit", ".html")]
        self.check_store()
        with Store(self.home):  # opening it sweeps what killed writers left
            assert not list(self.home.glob("artifacts/*/.new-*"))


@pytest.fixture(scope="module")
def place(edgekit, given, tmp_path_factory):
    def make(root, stages=1):
        recipe = tmp_path_factory.mktemp("recipe") / "quick.toml"
        recipe.write_text("".join(f'[[stage]]\nuse = "{stage}"\n' for stage in STAGES[:stages]))
        return Place(edgekit, given, root, recipe)

    return make


@pytest.fixture(scope="module")
def unbroken(place, tmp_path_factory):
    """The payload's digest and the number of durable steps of builds that nobody killed, by their stages."""

    @functools.cache
    def build(stages=1):
        fresh = place(tmp_path_factory.mktemp("unbroken"), stages)
        done = fresh.run()
        assert done.returncode == 0, done.stderr
        steps = int(done.stderr.rpartition("steps=")[2])
        assert steps > 30
        return read_package(fresh.out / NAME).seal.payload, steps

    return build


def killed_after(place, root, steps, whole):
    fresh = place(root)
    done = fresh.run(steps)
    assert done.returncode == -signal.SIGKILL, done.stderr
    fresh.check_store()
    fresh.check_package()
    fresh.check_end(whole)


@pytest.mark.parametrize("share", [0.3, 0.75, 0.97])
def test_a_kill_after_a_durable_step_leaves_nothing_half(place, unbroken, tmp_path, share):
    whole, steps = unbroken()
    killed_after(place, tmp_path, max(1, round(share * steps)), whole)


def test_a_build_that_is_killed_over_and_over_gets_through(place, unbroken, tmp_path):
    """Each start is killed a few steps further on; what was finished is kept, so that it ends at last."""
    whole, steps = unbroken(2)
    fresh = place(tmp_path, 2)
    for _ in range(steps):
        done = fresh.run(max(steps // 5, 10))
        fresh.check_store()
        fresh.check_package()
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.returncode == 0, "it never got through"
    fresh.check_end(whole)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_kill_after_every_durable_step_leaves_nothing_half(place, unbroken, tmp_path):
    whole, steps = unbroken()
    for step in range(1, steps + 1):
        killed_after(place, tmp_path / str(step), step, whole)
    done = place(tmp_path / "end").run(steps + 1)
    assert done.returncode == 0, "every step was met: with one more, nothing is killed"


def killed_at(place, root, seconds, whole):
    fresh = place(root, 2)
    child = fresh.start()
    time.sleep(seconds)
    child.kill()
    child.wait()
    fresh.check_store()
    fresh.check_package()
    fresh.check_end(whole)


def test_a_kill_at_a_random_time_leaves_nothing_half(place, unbroken, tmp_path):
    seconds = random.Random(time.time_ns()).uniform(0.2, 3)
    killed_at(place, tmp_path, seconds, unbroken(2)[0])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_at_many_random_times_leave_nothing_half(place, unbroken, tmp_path):
    source = random.Random(time.time_ns())
    for number in range(25):
        killed_at(place, tmp_path / str(number), source.uniform(0.1, 5), unbroken(2)[0])


def test_a_kill_leaves_no_lock_and_another_build_waits_for_none(place, unbroken, tmp_path):
    """The killed process held the lock of a stage; the next one takes it at once."""
    fresh = place(tmp_path)
    child = fresh.start()
    deadline = time.monotonic() + 60
    while not list(fresh.home.glob("locks/[0-9a-f]*")) and child.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.wait()
    fresh.check_end(unbroken()[0])


def test_the_kill_kills(place, tmp_path):
    """Else none of the tests above could fail."""
    fresh = place(tmp_path)
    assert fresh.run(1).returncode == -signal.SIGKILL
    assert not Path(fresh.out).exists()
