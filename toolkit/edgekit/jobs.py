"""Jobs of the device runner: how they are written into packages, and how one is run on this machine.

It is always edgekit's own runner that is started, never the one in a package: checking a package runs none of its
code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from edgekit.children import Ended, run_child
from edgekit.errors import EdgekitError, IntegrityError, TargetError
from edgekit.npz import encode_arrays, read_arrays
from edgekit.target import Feed

DEVICE = Path(__file__).with_name("device")
"""The folder of the runner and the files beside it."""

RUNNER = "runner.py"
SCHEMA = 1
PROGRESS = "edgekit-progress: "
"""What the runner's lines begin with that tell how far it is: `device/progress.py`."""
PASSED_ON = ("shapes", "context", "dla_core", "explicit", "calibration", "sparse")
"""Facts of a compiled model that a job takes as they are."""
_RESULT = "result.json"
_MAX_RESULT = 64 << 20


def runner_files() -> list[Path]:
    """Return what a device needs to run jobs: `runner.py` and the files beside it."""
    if not (DEVICE / RUNNER).is_file():
        raise EdgekitError("the device runner is not installed", where=str(DEVICE / RUNNER))
    return sorted(path for path in DEVICE.glob("*.py") if path.name != "__init__.py")


def encode_feeds(feeds: Iterable[Feed], *, deflate: bool = False) -> bytes:
    """Return feeds (or outputs) as the runner reads them: a `.npz` in which `3:x` is tensor `x` of feed 3."""
    arrays = {f"{i}:{name}": array for i, feed in enumerate(feeds) for name, array in feed.items()}
    return encode_arrays(arrays, deflate=deflate)


def read_feeds(path: Path) -> list[Feed]:
    """Read a file as `encode_feeds` gives it; InputError when it is none."""
    feeds: dict[int, Feed] = {}
    for key, array in read_arrays(path).items():
        index, _, name = key.partition(":")
        feeds.setdefault(int(index), {})[name] = array
    return [feeds[index] for index in sorted(feeds)]


def run_job(
    command: str, job: dict[str, Any], folder: Path, *, timeout: float, stop: Callable[[], bool] | None = None
) -> dict[str, Any]:
    """Run a job on this machine in a child process and return its result.

    Args:
        command: `infer` or `golden`.
        job: the job without `schema` and `result`; its paths are relative to `folder`.
        folder: gets the job and the result, and is the child's working folder.
        timeout: seconds.
        stop: see `run_child`.

    Raises:
        TargetError: the runtime is missing here, or there is not enough memory or time.
        IntegrityError: the model cannot be loaded or run.
    """
    job_file, result_file = folder / "job.json", folder / _RESULT
    job_file.write_text(json.dumps({**job, "schema": SCHEMA, "result": _RESULT}), encoding="utf-8")
    ended = run_child(
        [str(DEVICE / RUNNER), command, str(job_file)],
        folder=folder,
        log=folder / "log.txt",
        seconds=timeout,
        environment=_environment(),
        stop=stop,
    )
    if ended.status is None:
        remedy = "Run it on a faster machine, or check the package without its golden outputs."
        raise TargetError(f"the model did not finish in {timeout:.0f} s", where="local", remedy=remedy)
    return _result(ended, result_file)


def _environment() -> dict[str, str]:
    """Return the environment of a child: modules are never looked for in its working folder."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if entries := [
        str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry
    ]:
        environment["PYTHONPATH"] = os.pathsep.join(entries)
    return environment


def _result(ended: Ended, result_file: Path) -> dict[str, Any]:
    """Return the result of a child that ended, or raise what it tells."""
    try:
        with result_file.open("rb") as file:
            result = json.loads(file.read(_MAX_RESULT))
    except (OSError, ValueError):
        words = " | ".join(ended.log.strip().splitlines()[-3:]) or "it said nothing"
        text = f"the runner ended with {ended.how} and no result: {words}"
        remedy = "If this machine has enough memory, the runtime cannot run this model."
        raise IntegrityError(text, where="local", remedy=remedy) from None
    if "error" not in result:
        found: dict[str, Any] = result
        return found
    kind, text, remedy = (str(result["error"].get(key, "")) for key in ("kind", "text", "remedy"))
    if kind == "space":
        raise TargetError(text, where="local", remedy="Free space on the disk, or set TMPDIR to another one.")
    if kind in {"missing", "memory"}:
        raise TargetError(text, where="local", remedy=remedy or "Close other programs, or use a bigger machine.")
    remedy = remedy or "The packaged model does not run here: compare the runtime's version with the package's."
    raise IntegrityError(text, where="local", remedy=remedy)
