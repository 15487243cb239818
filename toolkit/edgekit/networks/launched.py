"""Several processes on one or many machines: what torchrun, `accelerate launch` and mpirun start.

    torchrun --nproc-per-node 2 -m edgekit build ...

The first process (the leader) builds, as it would alone. Whenever it trains, it tells the others over a store of
torch.distributed which job that is; each runs the same job in a child process of its own, takes its share of the
batches and writes nothing but its own temporary folder. Folders of the leader's store are read by all: on several
machines `EDGEKIT_HOME` must lie on a file system that they share.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from edgekit.errors import EdgekitError, TargetError, UsageError
from edgekit.networks.child import EXTRA, run_in_child

Given = ParamSpec("Given")
Made = TypeVar("Made")

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCALS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WRITTEN = ("out", "result")
"""Arguments of jobs that name a folder to write to."""

TOLD = "told by the first process"
"""Note of errors that followers raise because the leader did: it has said so itself."""

_POLL = 0.1
_PATIENCE = 60.0  # seconds in which the leader should notice that a follower's part failed
_FAREWELL = 30.0
_END = "end"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which of several processes this is: number, how many there are, number on this machine."""

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def follows(self) -> bool:
        """Whether another process leads."""
        return self.rank > 0


def place(environment: Mapping[str, str] | None = None) -> Place:
    """Return this process's place, from the variables of the launchers; alone without them."""
    known = os.environ if environment is None else environment
    found = [next((known[name] for name in names if name in known), None) for names in (_RANKS, _SIZES, _LOCALS)]
    try:
        rank, size, local = (int(value) if value is not None else None for value in found)
    except ValueError:
        raise UsageError("the launcher's variables are no numbers", where=", ".join(map(str, found))) from None
    if rank is None or size is None or size < 2:  # noqa: PLR2004 - one process is alone
        return Place()
    return Place(rank=rank, size=size, local=rank if local is None else local)


def lead(task: str, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Mapping[str, str]:
    """Tell the followers of a job, and return the variables that the leader's child needs to take part.

    Args:
        task: `module:function`.
        arguments: the job's, as JSON values.
        environment: variables that the job needs anyway.
    """
    here = place()
    if here.size == 1:
        return environment
    store = _store()
    meeting = {"MASTER_ADDR": os.environ["MASTER_ADDR"], "MASTER_PORT": str(_free_port())}
    job = {"task": task, "arguments": {**arguments}, "environment": {**environment}, "meeting": meeting}
    number = store.add("jobs", 1)
    store.set(f"job/{number}", json.dumps(job))
    return {**environment, **meeting, **_variables(here)}


def together(kind: type[Made]) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Decorate what the first of several processes does alone: the others help it to train, and return the same.

    Args:
        kind: what the function returns, which must be JSON values to msgspec.
    """

    def decorate(function: Callable[Given, Made]) -> Callable[Given, Made]:
        @functools.wraps(function)
        def run(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            here = place()
            if here.follows:
                return msgspec.convert(follow(), kind)
            if here.size == 1:
                return function(*args, **kwargs)
            with _telling_end() as tell:
                made = function(*args, **kwargs)
                tell(msgspec.to_builtins(made))
                return made

        return run

    return decorate


@contextmanager
def _telling_end() -> Iterator[Callable[[Any], None]]:
    """Let followers end with the body: with what is told to the function that is given, or with the error."""
    told: list[Any] = []
    try:
        yield told.append
    except EdgekitError as error:
        _say_end({"error": [type(error).__name__, error.text, error.where, error.remedy]})
        raise
    except BaseException as error:
        _say_end({"error": ["EdgekitError", f"the first process ended with {type(error).__name__}", "", ""]})
        raise
    _say_end({"result": told[-1]})


def follow() -> Any:
    """Take part in the leader's jobs until it ends, and return what it told last.

    Raises:
        EdgekitError: of the class that the leader ended with.
        TargetError: the leader is gone.
    """
    store, number, parent = _store(), 1, os.getppid()
    fault: EdgekitError | None = None
    late = 0.0
    while True:
        try:
            if store.check([f"job/{number}"]):
                fault = _take_part(json.loads(store.get(f"job/{number}")))
                number, late = number + 1, time.monotonic() + _PATIENCE
                continue
            ended = json.loads(store.get(_END)) if store.check([_END]) else None
        except (RuntimeError, OSError) as error:
            raise TargetError(f"the first process is gone: {str(error)[:200]}", where="torch.distributed") from error
        if ended is not None:
            with suppress(RuntimeError, OSError):  # the leader waits no longer
                store.add("ended", 1)
            return _ended(ended)
        if fault is not None and time.monotonic() > late:
            raise fault  # the launcher ends the leader, which waits for this process
        if os.getppid() != parent:
            raise TargetError("the launcher is gone", where="torch.distributed")
        time.sleep(_POLL)


def _ended(message: dict[str, Any]) -> Any:
    """Return what the leader told last, or raise the error that it ended with."""
    from edgekit import errors

    if "error" not in message:
        return message["result"]
    kind, text, where, remedy = message["error"]
    error: EdgekitError = getattr(errors, kind, EdgekitError)(text, where=where, remedy=remedy)
    error.add_note(TOLD)
    raise error


def _take_part(job: dict[str, Any]) -> EdgekitError | None:
    """Run a job in a child, whose files are thrown away; return what went wrong."""
    with tempfile.TemporaryDirectory(prefix="edgekit-follow-") as folder:
        own = {key: os.fspath(Path(folder) / key) for key in _WRITTEN if key in job["arguments"]}
        for path in own.values():
            Path(path).mkdir()
        arguments = {**job["arguments"], **own}
        environment = {**job["environment"], **job["meeting"], **_variables(place())}
        try:
            run_in_child(job["task"], arguments, threads=int(arguments["threads"]), environment=environment)
        except EdgekitError as error:
            return error
    return None


def _say_end(message: dict[str, Any]) -> None:
    """Tell the followers that nothing comes any more, and wait a while until they know."""
    with suppress(RuntimeError, OSError, EdgekitError):  # what has been built stands, whoever listens
        store = _store()
        store.set(_END, json.dumps(message))
        until = time.monotonic() + _FAREWELL
        while store.add("ended", 0) < place().size - 1 and time.monotonic() < until:
            time.sleep(_POLL)


def _variables(here: Place) -> dict[str, str]:
    """Return what accelerate in a child process reads; the launcher's own store is not used for training."""
    return {
        "RANK": str(here.rank),
        "WORLD_SIZE": str(here.size),
        "LOCAL_RANK": str(here.local),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


@functools.cache
def _store() -> Any:
    """Return the store over which leader and followers talk: the launcher's, else the leader's own.

    Raises:
        TargetError: torch is missing, or nobody answers. UsageError: the launcher did not say where to meet.
    """
    try:
        import torch.distributed as torch_distributed
    except ImportError as error:
        raise TargetError("torch is not installed", remedy=f"Several processes need it: {EXTRA}") from error
    if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        remedy = "Start it with torchrun or accelerate launch."
        raise UsageError("the launcher does not say where processes meet", where="MASTER_ADDR", remedy=remedy)
    hosts = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and not place().follows
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = torch_distributed.TCPStore(  # type: ignore[attr-defined]  # torch does not list it
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, hosts, wait_for_workers=False
        )
    except (RuntimeError, OSError, ValueError) as error:
        remedy = "Choose another port: --main_process_port (accelerate) or --master-port (torchrun)."
        raise TargetError(f"no store to meet at: {str(error)[:200]}", where="MASTER_PORT", remedy=remedy) from error
    return torch_distributed.PrefixStore(  # type: ignore[attr-defined]
        f"edgekit/{attempt}", store
    )


def _free_port() -> int:
    """Return a port that is free on this machine, where the leader's child will listen."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
