"""A target made of an exporter's bundle and a transport: the device runner does the work on the far side."""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from edgekit.artifact import digest, sha256_file
from edgekit.budget import Figure, Provenance
from edgekit.errors import EdgekitError, LinkError
from edgekit.events import Finding
from edgekit.jobs import RUNNER, SCHEMA, encode_feeds, runner_files
from edgekit.profile import Profile
from edgekit.target import Bundle, Feed, GoldenResult, Tolerance
from edgekit.targets import machines
from edgekit.targets.accidents import as_error, died
from edgekit.targets.chunks import chunks, plain, read_outputs
from edgekit.targets.condition import condition_findings, throttled
from edgekit.targets.figures import energy_figure, latency_figures, memory_figure, settled_latency, unproven_figures
from edgekit.transport import Transport

PAUSES = (1.0, 5.0, 15.0)
"""Seconds after which a broken link is tried again."""
ENERGY_SECONDS = 6
"""How long a Jetson runs beside tegrastats: some 60 samples."""
PROBE_SECONDS, RUN_SECONDS, MEASURE_SECONDS = 300, 7200, 1800
"""How long a probe, a chunk (an engine may have to be built first) and the runs of a measurement may take."""


class CompositeTarget:
    """A machine behind a transport.

    Attributes:
        url: where it is.
        findings: what is worth knowing about it: of another kind than the profile, something else ran than was asked.
        details: what the runner told of the last measurement: raw series, memory, temperatures and clocks.
    """

    def __init__(self, transport: Transport, profile: Profile) -> None:
        """Take a transport, not yet open, and the profile that the machine should be of."""
        self.url = transport.url
        self.findings: list[Finding] = []
        self.details: dict[str, Any] = {}
        self._transport = transport
        self._profile = profile
        self._probe: machines.Probe | None = None
        self._folder = _job_folder()
        self._left: list[str] = []
        self._runner = ""
        self._jobs = 0
        self._sent: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the data that was sent, release the machine."""
        if self._probe is not None:
            with contextlib.suppress(EdgekitError):  # the link may be gone: what is left is swept another time
                self._transport.run(["rm", "-rf", "--", self._folder, *self._left], timeout=60)
        self._probe = None
        self._sent.clear()
        self._transport.close()

    def probe(self) -> machines.Probe:
        """Return what the machine says of itself; connects when that is not done yet.

        Raises:
            TargetError: it cannot be reached, is in use, or lacks Python or numpy.
        """
        if self._probe is None:
            self._transport.open()
            try:
                self._probe = self._look()
            except BaseException:
                self._transport.close()
                raise
            for finding in machines.compare(self._probe, self._profile, self.url):
                self._find(finding)
        return self._probe

    def reach(self) -> None:
        """Connect and let go of the machine: it is there, free, and has a Python."""
        self._transport.open()
        self._transport.close()

    @property
    def provenance(self) -> Provenance:
        """`measured`: it is what it is; `simulated` when the machine is an emulator. Connects, as `probe`."""
        return "simulated" if self.probe().get("emulator") else "measured"

    def fingerprint(self) -> dict[str, str]:
        """Say what the machine is: hardware, OS, runtimes, power mode."""
        return machines.fingerprint_of(self.probe())

    def run(self, bundle: Bundle, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Yield the outputs of each feed, in order; a chunk of feeds is held at a time, and one dict of outputs.

        Raises:
            InputError: a feed that does not fit the model: names the tensor.
            TargetError: the machine is lost, or lacks the runtime, memory or time.
            UnsupportedError: its runtime cannot load or run the model.
        """
        for chunk in chunks(feeds):
            with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
                count, inputs = len(chunk), self._pack(chunk, Path(scratch))
                chunk.clear()  # it is in a file now; the next one may fill the memory
                outputs = self._persist(partial(self._infer, bundle, inputs, Path(scratch)))
                yield from read_outputs(outputs, count, self.url)

    def _infer(self, bundle: Bundle, inputs: Path, scratch: Path) -> Path:
        """Send a file of feeds, run it, return the file of outputs."""
        job: dict[str, Any] = {"inputs": [self._send(inputs)], "outputs": "out"}
        job |= {"deflate": True} if self._is_far else {}
        result = self._start("infer", bundle, job, scratch, timeout=RUN_SECONDS)
        outputs = scratch / "outputs.npz"
        self._transport.pull(f"{self._folder}/{result['outputs'][0]}", outputs)
        return outputs

    def _persist(self, work: Callable[[], Path]) -> Path:
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

    def _reconnect(self, pause: float, reason: LinkError) -> None:
        text = f"the link broke and was made again: {reason.text}"
        remedy = "Accuracy does not suffer; look at the network if this happens often."
        self._find(Finding(severity="note", node=self.url, rule="target-link", text=text, remedy=remedy))
        self._transport.close()
        time.sleep(pause)
        try:
            self._transport.open()
        except LinkError:
            return  # the next try of the work tells, or the next pause mends it
        self._left.append(self._folder)  # what ran there may still write
        self._folder = _job_folder()

    def measure(
        self, bundle: Bundle, feed: Feed, *, runs: int, threads: int, sustained: float = 0
    ) -> tuple[Figure, ...]:
        """Measure latency and memory; a figure that must not decide a budget says why in its note.

        An emulator is not timed: its figures have no value, and say so.

        Raises: as `run`.
        """
        if emulator := self.probe().get("emulator"):
            return unproven_figures(str(emulator))
        with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
            inputs = [self._send(self._pack([feed], Path(scratch)))]
            job = {"inputs": inputs, "runs": runs, "threads": threads, "max_seconds": MEASURE_SECONDS}
            job |= {"energy_seconds": ENERGY_SECONDS} if self.probe().get("jetson") else {}
            job |= {"sustained": sustained} if sustained else {}
            timeout = RUN_SECONDS + MEASURE_SECONDS + 2 * ENERGY_SECONDS + 2 * sustained
            self.details = self._start("measure", bundle, job, Path(scratch), timeout=timeout)
        probe, notes, fallen = self.probe(), [], ""
        on = f"{self._transport.title} ({machines.name_of(probe)}, {machines.engine_of(self.details['engine'])})"
        if machines.is_of_kind(probe, self._profile):  # elsewhere the figures are known to be another machine's
            fallback = self.details["fallback"]
            ran = machines.engine_of(self.details["engine"])
            fallen = f"{ran} ran instead of {fallback['asked'][0]}: {fallback['reason']}" if fallback else ""
            notes += [fallen] if fallen else []
            mode = machines.other_power_mode(probe, self._profile)
            notes += [f"measured in {mode}"] if mode else []
        for one in condition_findings(self.details.get("machine") or {}, self._transport.title):
            self._find(one)
        held = throttled(self.details.get("machine") or {})
        notes += [held] if held else []
        summary, finding = settled_latency(self.details, sustained, self._transport.title)
        if finding is not None:
            self._find(finding)
        energy = self.details.get("energy")
        return (
            *(msgspec.structs.replace(figure, disqualified=fallen) for figure in latency_figures(summary, on, notes)),
            memory_figure(self.details["memory"], on, notes, unified="jetson" in probe),
            *([energy_figure(energy, on, notes)] if energy else []),
        )

    def golden(
        self,
        bundle: Bundle,
        inputs: Path,
        outputs: Path,
        *,
        tolerance: Tolerance,
        layout: str = "feeds",
    ) -> GoldenResult:
        """Compare the outputs of golden inputs with the golden outputs, on the machine.

        Args:
            bundle: the model.
            inputs: a `.npz` file of feeds.
            outputs: a `.npz` file of their outputs, of the same layout.
            tolerance: how far floating point outputs may be off; others must be equal.
            layout: `feeds` (key `3:x`, as `edgekit.jobs.encode_feeds` writes) or `plain` (key `x`, one feed).

        Raises: as `run`.
        """
        self.probe()
        for path, name in ((inputs, "golden-inputs.npz"), (outputs, "golden-outputs.npz")):
            self._transport.push(path, f"{self._folder}/{name}")
        job = {
            "inputs": ["golden-inputs.npz"],
            "expected": ["golden-outputs.npz"],
            "tolerance": {"absolute": tolerance.absolute, "relative": tolerance.relative},
            "layout": layout,
        }
        with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
            result = self._start("golden", bundle, job, Path(scratch), timeout=RUN_SECONDS)
        return GoldenResult(matches=result["matches"], outputs=result["outputs"], count=result["count"])

    def _look(self) -> machines.Probe:
        """Push the runner and probe the machine."""
        files = runner_files()
        home = f"runner-{digest({path.name: sha256_file(path) for path in files})[:12]}"
        pushed = {path.name: self._transport.push(path, f"{home}/{path.name}") for path in files}
        self._runner = pushed[RUNNER]
        with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
            name, local = f"{home}/probe.json", Path(scratch, "probe.json")
            done = self._transport.run([self._transport.python, self._runner, "probe", name], timeout=PROBE_SECONDS)
            if done.status:
                raise died(done.status, done.stderr, self.url)
            self._transport.pull(name, local)
            found: machines.Probe = json.loads(local.read_bytes())
            return found

    @property
    def _is_far(self) -> bool:
        return bool(getattr(self._transport, "far", False))

    def _pack(self, feeds: list[Feed], scratch: Path) -> Path:
        """Write feeds into a file, compressed when it goes through a network."""
        arrays = [{name: plain(name, array) for name, array in feed.items()} for feed in feeds]
        path = scratch / "feeds.npz"
        path.write_bytes(encode_feeds(arrays, deflate=self._is_far))
        return path

    def _send(self, inputs: Path) -> str:
        """Push a file of feeds into the job's folder; return its name there."""
        self.probe()
        self._transport.push(inputs, f"{self._folder}/{inputs.name}")
        return inputs.name

    def _start(
        self, command: str, bundle: Bundle, job: dict[str, Any], scratch: Path, *, timeout: float
    ) -> dict[str, Any]:
        """Push the model and a job, run it, return its result."""
        self._jobs += 1
        name = f"{self._jobs:06}"
        facts = bundle.facts
        whole: dict[str, Any] = {
            "schema": SCHEMA,
            "id": name,
            "model": f"../{self._send_bundle(bundle)}/{facts['model']}",
            "runtime": facts["runtime"],
            "providers": list(facts.get("providers", ())),
            "threads": 0,
            "result": f"result-{name}.json",
            **{key: facts[key] for key in ("shapes", "context", "dla_core") if key in facts},
            **job,
        }
        (scratch / "job.json").write_text(json.dumps(whole), encoding="utf-8")
        path = self._transport.push(scratch / "job.json", f"{self._folder}/job-{name}.json")
        done = self._transport.run([self._transport.python, self._runner, command, path], timeout=timeout)
        if done.status not in (0, 1):
            raise died(done.status, done.stderr, self.url)
        self._transport.pull(f"{self._folder}/{whole['result']}", scratch / "result.json")
        result: dict[str, Any] = json.loads((scratch / "result.json").read_bytes())
        if error := result.get("error"):
            raise as_error(error, str(facts["model"]), self.url)
        if fallback := result.get("fallback"):
            asked, ran = " ".join(fallback["asked"]), machines.engine_of(result["engine"])
            text, remedy = f"asked was {asked}, {ran} ran: {fallback['reason']}", "Install it there, or ask for less."
            self._find(Finding(severity="warning", node=self.url, rule="target-fallback", text=text, remedy=remedy))
        return result

    def _send_bundle(self, bundle: Bundle) -> str:
        """Push the files of a bundle, once; return the folder's name."""
        files = {path.relative_to(bundle.folder).as_posix(): path for path in sorted(bundle.folder.rglob("*"))}
        files = {name: path for name, path in files.items() if path.is_file()}
        if bundle.facts["model"] not in files:
            raise EdgekitError(f"the bundle has no '{bundle.facts['model']}'", where=str(bundle.folder))
        home = f"bundle-{digest({name: sha256_file(path) for name, path in files.items()})[:16]}"
        if home not in self._sent:
            for name, path in files.items():
                self._transport.push(path, f"{home}/{name}")
            self._sent.add(home)
        return home

    def _find(self, finding: Finding) -> None:
        if finding not in self.findings:
            self.findings.append(finding)


def _job_folder() -> str:
    return f"job-{secrets.token_hex(6)}"
