"""The child of `aihub`: `aihub_child.py JOB.json`, with Qualcomm's client. Imports nothing of edgekit.

A process of its own: the client prints, waits without a limit, and wants another protobuf than edgekit may have, so its
interpreter may be another one. What was submitted is in the journal before anything waits for it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Job = dict[str, Any]
_MEANS = {401: "token", 403: "token", 404: "missing", 426: "old", 429: "link"}
"""HTTP status -> what it means for the parent."""
_SERVER = 500


class ToldError(Exception):
    """What went wrong, for the parent: `kind` decides the error there."""

    def __init__(self, kind: str, text: str, **more: Any) -> None:
        """Take the kind, what is wrong, and facts."""
        super().__init__(text)
        self.answer = {"kind": kind, "text": text, **more}


def main(argv: list[str]) -> int:
    """Do one job; the exit status is 0 whenever an answer was written."""
    job: Job = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    try:
        answer = _look(job) if job["command"] == "look" else _run(job)
    except ToldError as error:
        answer = {"error": error.answer}
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the answer
        answer = {"error": {"kind": kind_of(error), "text": plain(error)}}
    _write(Path(job["answer"]), answer)
    return 0


def kind_of(error: BaseException | None) -> str:
    """Return what an error of the client means: its causes have the status of the answer."""
    while error is not None:
        status = getattr(error, "status_code", None)
        if status in _MEANS:
            return _MEANS[status]
        if isinstance(error, FileNotFoundError):
            return "unconfigured"
        if isinstance(error, OSError) or (status or 0) >= _SERVER:
            return "link"
        error = error.__cause__ or error.__context__
    return "refused"


def plain(error: BaseException) -> str:
    """Return an error's text in one line, without the frames that the client draws around it."""
    words = "".join(char if char.isprintable() and not "\u2500" <= char <= "\u257f" else " " for char in str(error))
    return " ".join(words.split())[:600] or type(error).__name__


def _client() -> Any:
    import qai_hub

    client = qai_hub.Client()
    client.set_verbose(False)
    return client


def _look(job: Job) -> Job:
    """Find the device; that the account is a valid one shows by it."""
    import qai_hub

    client = _client()
    devices = client.get_devices()
    named = [device for device in devices if device.name == job["device"]]
    if not named:
        names = sorted({device.name for device in devices})
        raise ToldError("device", f"AI Hub has no device '{job['device']}'", names=names)
    last = named[-1]
    return {
        "device": {"name": last.name, "os": last.os, "attributes": list(last.attributes)},
        "client": str(qai_hub.__version__),
        "host": _host(client),
    }


def _host(client: Any) -> str:
    """Return where the service is; empty when it is Qualcomm's."""
    from qai_hub.public_rest_api import DEFAULT_HUB_API_URL

    url = str(client.config.api_url)
    return "" if url.rstrip("/") == DEFAULT_HUB_API_URL else url.partition("://")[2].rstrip("/")


def _run(job: Job) -> Job:
    """Compile a model and run it on feeds; jobs that are under way already are taken up again."""
    import qai_hub

    client, device = _client(), qai_hub.Device(job["device"])
    with np.load(job["inputs"], allow_pickle=False) as archive:
        names = list(job["order"])
        feeds = {name: [archive[f"{index}:{name}"] for index in range(job["count"])] for name in names}
    wait = _Wait(job)
    specs = {name: (tuple(arrays[0].shape), str(arrays[0].dtype)) for name, arrays in feeds.items()}

    def compiles() -> Any:
        return client.submit_compile_job(
            job["model"], device, name=job["name"], input_specs=specs, options=job["compile"], retry=False
        )

    def infers() -> Any:
        return client.submit_inference_job(
            made.get_target_model(),
            device,
            inputs=cast_inputs(feeds, made.get_target_shapes() or {}),
            name=job["name"],
            options=job["options"],
            profile=job["profile"],
            retry=False,
        )

    made = wait.until_done(client, "compile", job["journal"]["compile"], compiles)
    ran = wait.until_done(client, "inference", job["journal"]["inference"], infers)
    outputs = wait.patiently(ran.download_output_data)
    if outputs is None:
        raise ToldError("refused", f"inference job {ran.job_id} gave no outputs")
    _write_outputs(outputs, job["count"], Path(job["outputs"]))
    profile = wait.patiently(ran.download_profile) if job["profile"] else {}
    Path(job["journal"]["inference"]).unlink()  # done and fetched: the next measurement is a new one
    return {"profile": profile, "compile_job": made.job_id, "job": ran.job_id, "resumed": wait.resumed}


class _Wait:
    """Submits, polls, and gives up at the deadline; what is cut off meanwhile is tried again for a while."""

    def __init__(self, job: Job) -> None:
        self._end = time.monotonic() + job["seconds"]
        self._poll = job["poll"]
        self._patience = job["patience"]
        self._job = job
        self._known: dict[str, str] = {}
        self.resumed: list[str] = []

    def until_done(self, client: Any, what: str, journal: str, submit: Callable[[], Any]) -> Any:
        """Return a job that has succeeded."""
        job = self._take_up(client, journal, what)
        if job is None:
            job = submit()
            _write(Path(journal), {"job": job.job_id, "what": what, "device": self._job["device"]})
        self._known[what] = job.job_id
        status = self.patiently(job.get_status)
        while not status.finished:
            if time.monotonic() >= self._end:
                raise ToldError("deadline", f"{what} job {job.job_id} is not done ({status.code})", jobs=self._known)
            time.sleep(self._poll)
            status = self.patiently(job.get_status)
        if status.failure:
            Path(journal).unlink()
            raise ToldError("failed", f"{what} job {job.job_id} failed: {plain(Exception(status.message or ''))}")
        known = job.job_id
        return self.patiently(lambda: client.get_job(known))  # what it made may not have been there at its start

    def _take_up(self, client: Any, journal: str, what: str) -> Any:
        if not Path(journal).exists():
            return None
        known = json.loads(Path(journal).read_text(encoding="utf-8"))["job"]
        try:
            job = self.patiently(lambda: client.get_job(known))
        except Exception as error:
            if kind_of(error) != "missing":
                raise
            Path(journal).unlink()  # the account has no such job any more
            return None
        if what == "inference":  # a compiled model is simply used again
            self.resumed.append(known)
        return job

    def patiently(self, call: Callable[[], Any]) -> Any:
        """Call, and again while the link is broken, for as long as patience and deadline allow."""
        end = min(time.monotonic() + self._patience, self._end)
        while True:
            try:
                return call()
            except Exception as error:
                if kind_of(error) != "link":
                    raise
                if time.monotonic() >= end:
                    raise ToldError("link", plain(error), jobs=self._known) from error
            time.sleep(self._poll)


def cast_inputs(feeds: dict[str, list[Any]], wanted: dict[str, Any]) -> dict[str, list[Any]]:
    """Return feeds in the dtypes that the compiled model takes: it may have 32-bit integers where the graph has 64."""
    found: dict[str, list[Any]] = {}
    for name, arrays in feeds.items():
        dtype = np.dtype(wanted[name][1] if name in wanted else arrays[0].dtype)
        for array in arrays:
            if array.dtype.kind in "iu" and array.size and not _fits(array, dtype):
                text = f"values of input '{name}' do not fit into {dtype}, which the compiled model takes"
                raise ToldError("input", text)
        found[name] = [array.astype(dtype) for array in arrays]
    return found


def _fits(array: Any, dtype: Any) -> bool:
    if dtype.kind not in "iu":
        return True
    limits = np.iinfo(dtype)
    return bool(array.min() >= limits.min and array.max() <= limits.max)


def _write_outputs(outputs: dict[str, list[Any]], count: int, path: Path) -> None:
    if any(len(arrays) != count for arrays in outputs.values()):
        raise ToldError("refused", f"outputs of {count} inputs should have come back, not of all did")
    arrays = {f"{i}:{name}": array for name, column in outputs.items() for i, array in enumerate(column)}
    if any(array.dtype.kind not in "biuf" for array in arrays.values()):
        raise ToldError("refused", "what came back are no plain numbers")
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def _write(path: Path, content: Job) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
