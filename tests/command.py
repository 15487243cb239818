"""edgekit as users start it, and small real inputs for it. A pytest plugin: one store for the whole session.

Stages are cached in that store between tests, so a test that must see stages run takes a store of its own:
`edgekit(..., home=tmp_path / "home")`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from onnx_models import linear, samples_of

ROOT = Path(__file__).parents[1]
PATH = os.pathsep.join(str(ROOT / folder) for folder in ("toolkit", "exporters", "tests"))
PI = "raspberry-pi-5"
"""A profile without a target: nothing is measured, so builds are quick."""


class Ran(NamedTuple):
    """What came of one command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; fails when there is anything else."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def cached(self) -> dict[str, bool]:
        """Stage -> whether it was taken from the cache."""
        return {stage["name"]: stage["cached"] for stage in self.json["stages"]}

    def check(self, name: str) -> dict[str, Any]:
        """Return one check of the verdict."""
        (found,) = [check for check in self.json["checks"] if check["name"] == name]
        return found

    @property
    def rules(self) -> dict[str, str]:
        """Rule -> text of the findings."""
        return {finding["rule"]: finding["text"] for finding in self.json["findings"]}


class Command:
    """`edgekit` in a child process."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def argv(self, *arguments: Any) -> list[str]:
        return [sys.executable, "-m", "edgekit", *(str(argument) for argument in arguments)]

    def environment(self, home: Path | None = None, **more: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (more.pop("PYTHONPATH", ""), PATH)))
        kept = {key: value for key, value in os.environ.items() if not key.startswith("EDGEKIT_")}
        return {**kept, "PYTHONPATH": path, "EDGEKIT_HOME": str(home or self.home), "COLUMNS": "200", **more}

    def __call__(self, *arguments: Any, home: Path | None = None, cwd: Path | None = None, **more: str) -> Ran:
        done = subprocess.run(
            self.argv(*arguments),
            env=self.environment(home, **more),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=240,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def build(self, *arguments: Any, profile: str = PI, home: Path | None = None, **more: Any) -> Ran:
        """`edgekit build ... --json` for a profile, with what must hold of every build: see `sound`."""
        return sound(self("build", *arguments, "--profile", profile, "--json", home=home, **more))


def sound(ran: Ran) -> Ran:
    """Check what holds of every result: one object, the exit status in it, a package exactly when it says so."""
    found = ran.json
    assert found["exit"] == ran.status, ran.err
    assert "Traceback" not in ran.err, ran.err
    assert found["status"] in {0: ("pass", "unproven"), 3: ("fail",)}.get(ran.status, ("error",))
    assert (found["error"] is None) == (ran.status == 0)
    if found["error"]:
        assert found["error"]["text"]
        assert found["error"]["remedy"]
        assert found["package"] is None
    if found["package"]:
        assert Path(found["package"]).is_file()
        assert Path(found["package"]).with_suffix(".html").is_file()
    return ran


class Given(NamedTuple):
    """Inputs of a linear classifier `x[n, 8] -> y[n, 3]`, right for about 85 % of its noisy samples."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    def data(self, name: str = "labelled", *, count: int = 1500, seed: int = 0) -> Path:
        """Write `count` samples, with labels unless the name is `unlabelled`, and return the file."""
        path = self.folder / f"{name}-{count}-{seed}.npz"
        if not path.exists():
            samples_of(self.model, path, count, seed)
            if name == "unlabelled":
                with np.load(path) as file:
                    x = file["x"]
                np.savez(path, x=x)
        return path


@pytest.fixture(scope="session")
def edgekit(tmp_path_factory) -> Command:
    return Command(tmp_path_factory.mktemp("edgekit") / "home")


@pytest.fixture(scope="session")
def given(tmp_path_factory) -> Given:
    found = Given(tmp_path_factory.mktemp("given"))
    linear(found.model)
    return found


@pytest.fixture(scope="session")
def package(edgekit, given) -> Path:
    """A package of the linear classifier in int8, built once."""
    out = given.folder / "packed-once"
    ran = edgekit.build(given.model, "--data", given.data(), "--max-drop", "1%", "--out", out)
    assert ran.status == 0, ran.err
    return Path(ran.json["package"])
