"""The far side of a transport: a folder per connection, the device runner in it, the bundles and jobs sent there."""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgekit import events
from edgekit.artifact import digest, sha256_file
from edgekit.errors import EdgekitError, LinkError
from edgekit.events import Finding
from edgekit.jobs import PASSED_ON, PROGRESS, RUNNER, SCHEMA, runner_files
from edgekit.target import Bundle
from edgekit.targets import machines
from edgekit.targets.accidents import as_error, died
from edgekit.transport import Transport

PAUSES = (1.0, 5.0, 15.0)
"""Seconds after which a broken link is tried again."""
PROBE_SECONDS = 300

_Made = TypeVar("_Made")


class Workplace:
    """Where jobs run.

    Attributes:
        transport: the way there.
        findings: what is worth knowing of what happened there.
        runner: the name of the runner's folder there: of its content.
    """

    def __init__(self, transport: Transport, listen: events.Listener = events.ignore) -> None:
        """Take a transport, not yet open, and who is told of progress: from another thread."""
        self.transport = transport
        self.findings: list[Finding] = []
        self.runner = ""
        self._folder = _job_folder()
        self._left: list[str] = []
        self._program = ""
        self._jobs = 0
        self._sent: set[str] = set()
        self._listen = listen
        if hasattr(transport, "said"):
            transport.said = self._hear

    @property
    def is_far(self) -> bool:
        """Whether a network lies between."""
        return bool(getattr(self.transport, "far", False))

    def find(self, finding: Finding) -> None:
        """Keep a finding, once."""
        if finding not in self.findings:
            self.findings.append(finding)

    def clear(self) -> None:
        """Remove the data that was sent."""
        with contextlib.suppress(EdgekitError):  # the link may be gone: what is left is swept another time
            self.transport.run(["rm", "-rf", "--", self._folder, *self._left], timeout=60)
        self._sent.clear()

    def look(self) -> machines.Probe:
        """Push the runner and probe the machine."""
        files = runner_files()
        self.runner = f"runner-{digest({path.name: sha256_file(path) for path in files})[:12]}"
        pushed = {path.name: self.transport.push(path, f"{self.runner}/{path.name}") for path in files}
        self._program = pushed[RUNNER]
        with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
            name, local = f"{self.runner}/probe.json", Path(scratch, "probe.json")
            done = self.transport.run([self.transport.python, self._program, "probe", name], timeout=PROBE_SECONDS)
            if done.status:
                raise died(done.status, done.stderr, self.transport.url)
            self.transport.pull(name, local)
            found: machines.Probe = json.loads(local.read_bytes())
            return found

    def send(self, path: Path, name: str = "") -> str:
        """Push a file into the job folder, under its own name or another; return its name there."""
        self.transport.push(path, f"{self._folder}/{name or path.name}")
        return name or path.name

    def fetch(self, name: str, destination: Path) -> Path:
        """Copy a file of the job folder here."""
        self.transport.pull(f"{self._folder}/{name}", destination)
        return destination

    def start(self, command: str, bundle: Bundle, job: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Push the model and a job, run it, return its result.

        Raises:
            EdgekitError: what the runner told, as the class that fits it.
        """
        self._jobs += 1
        name = f"{self._jobs:06}"
        facts, url = bundle.facts, self.transport.url
        whole: dict[str, Any] = {
            "schema": SCHEMA,
            "id": name,
            "model": f"../{self._send_bundle(bundle)}/{facts['model']}",
            "runtime": facts["runtime"],
            "providers": list(facts.get("providers", ())),
            "threads": 0,
            "result": f"result-{name}.json",
            **{key: facts[key] for key in PASSED_ON if key in facts},
            **job,
        }
        with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
            local = Path(scratch, f"job-{name}.json")
            local.write_text(json.dumps(whole), encoding="utf-8")
            path = self.transport.push(local, f"{self._folder}/{local.name}")
            done = self.transport.run([self.transport.python, self._program, command, path], timeout=timeout)
            if done.status not in (0, 1):
                raise died(done.status, done.stderr, url)
            result: dict[str, Any] = json.loads(self.fetch(whole["result"], Path(scratch, "result.json")).read_bytes())
        if error := result.get("error"):
            raise as_error(error, str(facts["model"]), url)
        if fallback := result.get("fallback"):
            asked, ran = " ".join(fallback["asked"]), machines.engine_of(result["engine"])
            text, remedy = f"asked was {asked}, {ran} ran: {fallback['reason']}", "Install it there, or ask for less."
            self.find(Finding(severity="warning", node=url, rule="target-fallback", text=text, remedy=remedy))
        return result

    def persist(self, work: Callable[[], _Made]) -> _Made:
        """Do work that is not timed; when the link breaks, connect again and do it once more, a few times."""
        first: LinkError | None = None
        for pause in PAUSES:
            try:
                return work()
            except LinkError as error:
                first = first or error
                self._reconnect(pause, first)
        try:
            return work()
        except LinkError as error:
            raise first or error from error

    def _hear(self, line: str) -> None:
        """Pass on what the runner tells of its progress."""
        if not line.startswith(PROGRESS):
            return
        with contextlib.suppress(msgspec.DecodeError):  # garbled, or another version's
            what, done, total = msgspec.json.decode(line.removeprefix(PROGRESS), type=tuple[str, int, int])
            self._listen(events.Progress(label=f"{self.transport.title}: {what}", done=done, total=total))

    def _reconnect(self, pause: float, reason: LinkError) -> None:
        text = f"the link broke and was made again: {reason.text}"
        remedy = "Accuracy does not suffer; look at the network if this happens often."
        self.find(Finding(severity="note", node=self.transport.url, rule="target-link", text=text, remedy=remedy))
        self.transport.close()
        time.sleep(pause)
        try:
            self.transport.open()
        except LinkError:
            return  # the next try of the work tells, or the next pause mends it
        self._left.append(self._folder)  # what ran there may still write
        self._folder = _job_folder()

    def _send_bundle(self, bundle: Bundle) -> str:
        """Push the files of a bundle, once; return the folder's name."""
        files = files_of(bundle)
        home = f"bundle-{content_of(bundle)[:16]}"
        if home not in self._sent:
            for name, path in files.items():
                self.transport.push(path, f"{home}/{name}")
            self._sent.add(home)
        return home


def files_of(bundle: Bundle) -> dict[str, Path]:
    """Return the files of a bundle by their names in its folder; EdgekitError when the model is none of them."""
    files = {path.relative_to(bundle.folder).as_posix(): path for path in sorted(bundle.folder.rglob("*"))}
    files = {name: path for name, path in files.items() if path.is_file()}
    if bundle.facts["model"] not in files:
        raise EdgekitError(f"the bundle has no '{bundle.facts['model']}'", where=str(bundle.folder))
    return files


def content_of(bundle: Bundle) -> str:
    """Return the digest of a bundle's files, names included."""
    return digest({name: sha256_file(path) for name, path in files_of(bundle).items()})


def _job_folder() -> str:
    return f"job-{secrets.token_hex(6)}"
