"""Run one function in a fresh Python process: what loads torch, or a user's code, stays out of this one.

The protocol is one JSON line to the child's stdin and JSON lines from its stdout (events, then a result or an error).
Whatever the child's libraries print goes to its stderr, of which the tail is kept for error messages. The child's
stdin stays open while its parent lives: when the parent dies, the child ends too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from edgekit import errors, events
from edgekit.children import how_ended, kill_group, start_group
from edgekit.errors import EdgekitError, InputError, TargetError

Tell = Callable[[events.Event], None]
Job = Callable[[dict[str, Any], Tell], Any]

EXTRA = "pip install 'edgekit-toolkit[torch]'"
_LIBRARIES = frozenset(
    {
        "torch",
        "transformers",
        "optimum",
        "safetensors",
        "onnxscript",
        "huggingface_hub",
        "onnx_ir",
        "tokenizers",
    }
)
_BOOT = (
    "import sys; root, job = sys.argv[1:3]; root in sys.path or sys.path.insert(0, root); "
    "from edgekit.networks.child import main; main(job)"
)
_TAIL = 4000
_QUIET = {
    "PYTHONHASHSEED": "0",  # sets and dicts of strings iterate alike in every child: exported bytes are the same
    "PYTHONDONTWRITEBYTECODE": "1",  # artifact folders are read-only, and a user's folder is not ours to write to
    "PYTHONIOENCODING": "utf-8",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def run_in_child(
    job: str,
    arguments: Mapping[str, Any],
    *,
    listen: events.Listener = events.ignore,
    threads: int = 1,
    deadline: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run `job` in a process of its own and return its result.

    Args:
        job: `module:function`; the function takes `arguments` and a `tell` for events, and returns a JSON value.
        arguments: JSON values.
        listen: gets the child's events.
        threads: CPU threads for the child's numeric libraries.
        deadline: `time.monotonic()` value at which the child is killed, or None.
        environment: variables laid over this process's and over the quiet defaults.

    Raises:
        EdgekitError: what the job raised, of the same class; InputError when the process died of a signal;
            TargetError when a library is missing or the deadline passed; EdgekitError itself for a bug.
    """
    root = os.fspath(Path(errors.__file__).resolve().parent.parent)
    variables = {**os.environ, **_QUIET, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    variables.update(environment or {})
    argv = [sys.executable, "-P", "-c", _BOOT, root, job]
    with tempfile.TemporaryFile() as log:
        process = start_group(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=variables)
        with _ended(process, deadline) as late:
            answer = _converse(process, {**arguments}, listen)
            status = process.wait()
        if answer is None or "result" not in answer:
            raise _failure(job, answer, status, late=late.is_set(), log=log)
        return answer["result"]


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes], deadline: float | None) -> Iterator[threading.Event]:
    """Kill the child and what it started at the deadline, and when the body is left early."""
    late = threading.Event()

    def expire() -> None:
        late.set()
        kill_group(process)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), expire) if deadline is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield late
    finally:
        if timer is not None:
            timer.cancel()
        if process.poll() is None:
            kill_group(process)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _converse(
    process: subprocess.Popen[bytes], arguments: dict[str, Any], listen: events.Listener
) -> dict[str, Any] | None:
    """Send the arguments, pass events on, and return the last word: a result, an error, a crash or None."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.stdin.flush()
    answer: dict[str, Any] | None = None
    for line in process.stdout:
        message = json.loads(line)
        if "progress" in message:
            label, done, total = message["progress"]
            listen(events.Progress(label=label, done=done, total=total))
        elif "finding" in message:
            listen(events.Found(finding=msgspec.convert(message["finding"], events.Finding)))
        else:
            answer = message
            break
    return answer


def _failure(job: str, answer: dict[str, Any] | None, status: int, *, late: bool, log: IO[bytes]) -> EdgekitError:
    """Return the error that fits how the child ended."""
    if late:
        remedy = "Allow more time or a smaller model."
        return TargetError("it did not end before the deadline and was stopped", where=job, remedy=remedy)
    if answer is not None and "error" in answer:
        kind, text, where, remedy = answer["error"]
        found = cast("type[EdgekitError]", getattr(errors, kind, EdgekitError))
        return found(text, where=where, remedy=remedy)
    if answer is not None:
        crash = EdgekitError(f"{answer['crash'][0]}: {answer['crash'][1]}", where=job)
        crash.add_note(answer["crash"][2])
        return crash
    if status == -signal.SIGKILL:
        text = "the process was killed, most likely because memory ran out"
        return InputError(text, where=job, remedy="Free memory, or use a smaller model.")
    return InputError(
        f"the process died of {how_ended(status)}; its last words: {_tail(log)[-600:] or 'none'}",
        where=job,
        remedy="A library crashed on this model: try another version of it, or report the model.",
    )


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _TAIL))
    return log.read().decode(errors="replace").strip()


def main(job: str) -> None:
    """Serve one job in this process: the child's side of `run_in_child`."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print, also from C, must not mix with the protocol
    arguments = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(message: dict[str, Any]) -> None:
        protocol.write(json.dumps(message) + "\n")
        protocol.flush()

    def tell(event: events.Event) -> None:
        if isinstance(event, events.Progress):
            say({"progress": [event.label, event.done, event.total]})
        elif isinstance(event, events.Found):
            say({"finding": msgspec.to_builtins(event.finding)})

    module, _, function = job.partition(":")
    try:
        result = cast("Job", getattr(importlib.import_module(module), function))(arguments, tell)
        say({"result": result})
    except EdgekitError as error:
        say({"error": [type(error).__name__, error.text, error.where, error.remedy]})
    except BaseException as error:  # noqa: BLE001 - the parent decides what an unforeseen failure means
        say(_unforeseen(error))
    sys.stderr.flush()
    os._exit(0)  # interpreter shutdown of some native libraries is slow or crashes; everything is written by now


def _unforeseen(error: BaseException) -> dict[str, Any]:
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if library in _LIBRARIES:
        return {"error": ["TargetError", f"{library} is not installed", "", f"Models of PyTorch need it: {EXTRA}"]}
    if isinstance(error, MemoryError):
        return {"error": ["InputError", "memory ran out", "", "Free memory, or use a smaller model."]}
    trace = "".join(traceback.format_exception(error))[-_TAIL:]
    return {"crash": [type(error).__name__, str(error)[:2000], trace]}


def _end_with_parent() -> None:
    while sys.stdin.read(1 << 16):
        pass
    os._exit(130)
