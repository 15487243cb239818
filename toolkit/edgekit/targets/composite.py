"""A target made of an exporter's bundle and a transport: the device runner does the work on the far side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from edgekit import events
from edgekit.artifact import sha256_file
from edgekit.budget import Figure, Provenance
from edgekit.jobs import PASSED_ON, encode_feeds
from edgekit.profile import Profile
from edgekit.target import Bundle, Feed, GoldenResult, Tolerance
from edgekit.targets import machines
from edgekit.targets.chunks import check_outputs, chunks, plain, read_outputs
from edgekit.targets.condition import condition_findings, throttled
from edgekit.targets.figures import energy_figure, latency_figures, memory_figure, settled_latency, unproven_figures
from edgekit.targets.kept import Kept, engine_key
from edgekit.targets.workplace import Workplace, content_of
from edgekit.transport import Transport

ENERGY_SECONDS = 6
"""How long a Jetson runs beside tegrastats: some 60 samples."""
RUN_SECONDS, MEASURE_SECONDS = 7200, 1800
"""How long a chunk (an engine may have to be built first) and the runs of a measurement may take."""


class CompositeTarget:
    """A machine behind a transport.

    Attributes:
        url: where it is.
        findings: what is worth knowing about it: of another kind than the profile, something else ran than was asked.
        details: what the runner told of the last measurement: raw series, memory, temperatures and clocks.
    """

    def __init__(
        self,
        transport: Transport,
        profile: Profile,
        *,
        keep: Path | None = None,
        listen: events.Listener = events.ignore,
    ) -> None:
        """Take a transport, not yet open.

        Args:
            transport: the way to the machine.
            profile: what the machine should be.
            keep: where the outputs of finished chunks are kept while an evaluation runs; None: nowhere.
            listen: gets progress events, from other threads too.
        """
        self.url = transport.url
        self.details: dict[str, Any] = {}
        self._transport = transport
        self._place = Workplace(transport, listen)
        self.findings = self._place.findings
        self._profile = profile
        self._probe: machines.Probe | None = None
        self._keep = keep

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the data that was sent, release the machine."""
        if self._probe is not None:
            self._place.clear()
        self._probe = None
        self._transport.close()

    def probe(self) -> machines.Probe:
        """Return what the machine says of itself; connects when that is not done yet.

        Raises:
            TargetError: it cannot be reached, is in use, or lacks Python or numpy.
        """
        if self._probe is None:
            self._transport.open()
            try:
                self._probe = self._place.look()
            except BaseException:
                self._transport.close()
                raise
            for finding in machines.compare(self._probe, self._profile, self.url):
                self._place.find(finding)
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

        Chunks that an interrupted run has finished, on the same machine with the same engine, are not run again.

        Raises:
            InputError: a feed that does not fit the model: names the tensor.
            TargetError: the machine is lost, or lacks the runtime, memory or time.
            UnsupportedError: its runtime cannot load or run the model.
        """
        kept = Kept(self._keep, self._identity(bundle) if self._keep is not None else {})
        engine, number = self._engine(bundle) if kept else "", 0
        for number, chunk in enumerate(chunks(feeds), 1):
            with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch:
                count, inputs = len(chunk), self._pack(chunk, Path(scratch))
                chunk.clear()  # it is in a file now; the next one may fill the memory
                name = f"{number:06}-{sha256_file(inputs)[:32]}"
                outputs, known = kept.find(name, engine), True
                if outputs is None:
                    outputs, engine = self._place.persist(partial(self._infer, bundle, inputs, Path(scratch)))
                    known = False
                keys = check_outputs(outputs, count, self.url)
                if not known:
                    kept.keep(name, engine, outputs)
                yield from read_outputs(outputs, keys)
        for finding in kept.findings(number, self.url):
            self._place.find(finding)
        kept.forget()

    def _infer(self, bundle: Bundle, inputs: Path, scratch: Path) -> tuple[Path, str]:
        """Send a file of feeds, run it; return the file of outputs and what ran it."""
        job: dict[str, Any] = {"inputs": [self._send(inputs)], "outputs": "out"}
        job |= {"deflate": True} if self._place.is_far else {}
        result = self._place.start("infer", bundle, job, timeout=RUN_SECONDS)
        return self._place.fetch(result["outputs"][0], scratch / "outputs.npz"), engine_key(result)

    def _engine(self, bundle: Bundle) -> str:
        """Return what would run a bundle, without running it."""
        self.probe()
        job: dict[str, Any] = {"inputs": [], "outputs": "out"}
        return engine_key(self._place.persist(lambda: self._place.start("infer", bundle, job, timeout=RUN_SECONDS)))

    def _identity(self, bundle: Bundle) -> dict[str, Any]:
        """Return what outputs depend on beside the data and the engine: model, machine, runner."""
        machine = {"url": self.url, "identity": self.probe().get("identity"), **self.fingerprint()}
        facts = {name: bundle.facts.get(name) for name in ("model", "runtime", "providers", *PASSED_ON)}
        return {"bundle": content_of(bundle), "facts": facts, "machine": machine, "runner": self._place.runner}

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
            self.details = self._place.start("measure", bundle, job, timeout=timeout)
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
            self._place.find(one)
        held = throttled(self.details.get("machine") or {})
        notes += [held] if held else []
        summary, finding = settled_latency(self.details, sustained, self._transport.title)
        if finding is not None:
            self._place.find(finding)
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
            self._place.send(path, name)
        job = {
            "inputs": ["golden-inputs.npz"],
            "expected": ["golden-outputs.npz"],
            "tolerance": {"absolute": tolerance.absolute, "relative": tolerance.relative},
            "layout": layout,
        }
        result = self._place.start("golden", bundle, job, timeout=RUN_SECONDS)
        return GoldenResult(matches=result["matches"], outputs=result["outputs"], count=result["count"])

    def _pack(self, feeds: list[Feed], scratch: Path) -> Path:
        """Write feeds into a file, compressed when it goes through a network."""
        arrays = [{name: plain(name, array) for name, array in feed.items()} for feed in feeds]
        path = scratch / "feeds.npz"
        path.write_bytes(encode_feeds(arrays, deflate=self._place.is_far))
        return path

    def _send(self, inputs: Path) -> str:
        """Push a file of feeds into the job's folder; return its name there."""
        self.probe()
        return self._place.send(inputs)
