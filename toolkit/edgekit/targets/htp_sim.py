"""Qualcomm's HTP simulator: the compiled artifact itself, run on this machine; what it gives, never how fast."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from edgekit.artifact import sha256_file
from edgekit.budget import Effort, Figure, Provenance
from edgekit.errors import IntegrityError, TargetError, UnsupportedError
from edgekit.events import Finding
from edgekit.jobs import encode_feeds, run_job, runner_files
from edgekit.profile import Profile
from edgekit.target import Bundle, Feed, GoldenResult, Tolerance
from edgekit.targets.chunks import check_outputs, chunks, read_outputs
from edgekit.targets.figures import PERCENTILES
from edgekit.targets.kept import Kept
from edgekit.targets.workplace import content_of

URL = "htp-sim"
PLUGIN = "onnxruntime-qnn"

SECONDS = 60.0
"""CPU seconds that simulating the samples of one model may take: a busy machine looks at the same samples."""
AT_ONCE = 16
"""Samples that the first child simulates; each further one as many as all before it: a kill loses half at most."""
FEWEST = 4
"""Samples that are simulated however long they take."""

_SHORT, _MANY = 1.0, 16
_TIMEOUT = 7200.0
_FEEDS = "feeds.npz"
_ENGINE = "htp"


@dataclass(frozen=True)
class _Chunk:
    """Outputs of some feeds in a file, of a child that took so many CPU seconds for so many of them; 0 when kept."""

    scratch: tempfile.TemporaryDirectory[str]
    outputs: Path
    keys: list[dict[str, str]]
    seconds: float
    ran: int

    def read(self, spent: list[float]) -> Iterator[Feed]:
        """Yield the outputs one by one; the files go away after the last. Seconds and samples are added to `spent`."""
        spent[0] += self.seconds
        spent[1] += self.ran
        with self.scratch:
            yield from read_outputs(self.outputs, self.keys)


def is_installed() -> bool:
    """Say whether the simulator is there (the extra `qnn`); it is not imported."""
    return importlib.util.find_spec("onnxruntime_qnn") is not None


def round_number(most: float) -> int:
    """Return the largest of 1, 2, 5, 10, 20, 50, ... that is not above `most`; 0 when `most` is below 1."""
    power = 10 ** max(0, len(str(int(most))) - 1)
    return max((step * power for step in (1, 2, 5) if step * power <= most), default=0)


class HtpSimTarget:
    """The simulator of a profile's SoC; one child process per chunk of samples, CPU fallback off.

    Attributes:
        url: `htp-sim`.
        provenance: `simulated`.
        findings: what was taken from an earlier run.
        seconds_each: CPU seconds that a sample took; 0 before one has run.
    """

    def __init__(
        self, profile: Profile, effort: Effort | None = None, *, keep: Path | None = None, threads: int = 1
    ) -> None:
        """Take the profile whose SoC is simulated.

        Args:
            profile: of a Qualcomm SoC.
            effort: how many samples, or how long; default: `SECONDS`.
            keep: the folder that holds the outputs of chunks, so that none is simulated twice; None: they are not kept.
            threads: how many children simulate at a time, each with one thread.

        Raises:
            TargetError: the simulator is not installed.
            UnsupportedError: the profile is of no Qualcomm chip.
        """
        self.url = URL
        self.provenance: Provenance = "simulated"
        self.findings: list[Finding] = []
        self.seconds_each = 0.0
        self._effort = effort or Effort()
        self._keep = keep
        self._threads = threads
        self._soc = profile.settings.get("htp", {}).get("soc_model")
        if self._soc is None:
            raise UnsupportedError(
                f"'{profile.name}' has no Qualcomm HTP to simulate",
                where=URL,
                remedy="Choose a Snapdragon profile, or measure on a machine of this one.",
            )
        if not is_installed():
            raise TargetError(
                "Qualcomm's simulator is not installed",
                where=URL,
                remedy="pip install 'edgekit-toolkit[qnn]' (x86-64 Linux).",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open."""

    @property
    def place(self) -> str:
        """What outputs come from."""
        return f"HTP simulator (SoC {self._soc}, {PLUGIN} {importlib.metadata.version(PLUGIN)})"

    def reach(self) -> None:
        """Do nothing: that it is installed was looked at when it was made."""

    def fingerprint(self) -> dict[str, str]:
        """Say what is simulated and by which versions."""
        found = {name: importlib.metadata.version(name) for name in ("onnxruntime", PLUGIN)}
        return {"simulator": URL, "soc_model": str(self._soc), **found}

    def affordable(self, bundle: Bundle, feed: Feed, wanted: int) -> int:
        """Return how many of `wanted` samples are asked for; else how many fit into the time, but `FEWEST` at least.

        Some are timed for that; it is rounded down to 1, 2 or 5 times a power of ten, so that the next build looks at
        the same samples.
        """
        if self._effort.samples:
            return min(wanted, self._effort.samples)
        seconds = self._seconds(bundle, [feed])
        if seconds < _SHORT:  # most of it was the first run's own
            seconds = self._seconds(bundle, [feed] * _MANY)
        self.seconds_each = seconds
        fit = max(FEWEST, round_number((self._effort.seconds or SECONDS) / max(seconds, 1e-6)))
        return min(wanted, fit)

    def run(self, bundle: Bundle, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Yield the outputs of each feed, in order; a chunk of feeds is held at a time.

        A simulator gives the same every time, so a chunk that was simulated in an earlier run is not again.

        Raises:
            UnsupportedError: the bundle was compiled for another SoC, or not at all, or the simulator refuses it.
            InputError: a feed that does not fit the model.
            TargetError: the simulator ran out of memory or time.
        """
        kept = Kept(self._keep, self._identity(bundle) if self._keep is not None else {})
        stop, waiting, spent, count = threading.Event(), deque[Future[_Chunk]](), [0.0, 0.0], 0
        pool = ThreadPoolExecutor(self._threads)
        try:
            for chunk in _growing(feeds, self._threads):
                count += 1
                waiting.append(pool.submit(self._simulated, bundle, chunk, kept, stop.is_set))
                if len(waiting) >= self._threads:
                    yield from waiting.popleft().result().read(spent)
            while waiting:
                yield from waiting.popleft().result().read(spent)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
        self.seconds_each = spent[0] / spent[1] if spent[1] else self.seconds_each
        if kept.found:
            text = f"outputs of {kept.found} of {count} chunks come from an earlier run of the same binary"
            self.findings.append(Finding(severity="note", node=self.url, rule="target-resumed", text=text))

    def _simulated(self, bundle: Bundle, feeds: list[Feed], kept: Kept, stop: Callable[[], bool]) -> _Chunk:
        """Simulate some feeds in a child, unless what they give is kept."""
        scratch = tempfile.TemporaryDirectory(prefix="edgekit-sim-")
        inputs = Path(scratch.name, _FEEDS)
        inputs.write_bytes(encode_feeds(feeds))
        name = sha256_file(inputs)[:32]
        outputs, seconds, ran = kept.find(name, _ENGINE), 0.0, 0
        if outputs is not None:
            return _Chunk(scratch, outputs, check_outputs(outputs, len(feeds), self.url), seconds, ran)
        result = self._infer(bundle, Path(scratch.name), stop)
        outputs = Path(scratch.name, result["outputs"][0])
        keys = check_outputs(outputs, len(feeds), self.url)
        kept.keep(name, _ENGINE, outputs)
        return _Chunk(scratch, outputs, keys, float(result["cpu_seconds"]), len(feeds))

    def measure(
        self, bundle: Bundle, feed: Feed, *, runs: int, threads: int, sustained: float = 0
    ) -> tuple[Figure, ...]:
        """Return figures without values: how long a simulator takes says nothing about the chip."""
        del bundle, feed, runs, threads, sustained
        note = "a simulator's time is no latency: see `edgekit predict`, or measure on a device"
        return tuple(
            Figure(
                name=f"latency-{name}", value=None, unit="ms", provenance=self.provenance, on=self.place, n=0, note=note
            )
            for name in PERCENTILES
        )

    def golden(self, bundle: Bundle, inputs: Path, outputs: Path, *, tolerance: Tolerance) -> GoldenResult:
        """Compare the outputs of golden inputs with the golden outputs, in the simulator."""
        job = self._job(bundle) | {
            "inputs": [str(inputs.resolve())],
            "expected": [str(outputs.resolve())],
            "tolerance": {"absolute": tolerance.absolute, "relative": tolerance.relative},
        }
        with tempfile.TemporaryDirectory(prefix="edgekit-sim-") as scratch:
            result = self._start("golden", job, Path(scratch))
        return GoldenResult(matches=result["matches"], outputs=result["outputs"], count=result["count"])

    def _seconds(self, bundle: Bundle, feeds: list[Feed]) -> float:
        with tempfile.TemporaryDirectory(prefix="edgekit-sim-") as scratch:
            Path(scratch, _FEEDS).write_bytes(encode_feeds(feeds))
            return float(self._infer(bundle, Path(scratch))["cpu_seconds"]) / len(feeds)

    def _identity(self, bundle: Bundle) -> dict[str, Any]:
        """Return what outputs depend on beside the samples: the binary, the simulator and the runner."""
        return {
            "bundle": content_of(bundle),
            "context": bundle.facts.get("context"),
            "simulator": self.fingerprint(),
            "runner": {path.name: sha256_file(path) for path in runner_files()},
        }

    def _infer(self, bundle: Bundle, scratch: Path, stop: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Simulate the feeds in a folder."""
        return self._start("infer", self._job(bundle) | {"inputs": [_FEEDS], "outputs": "out"}, scratch, stop)

    def _job(self, bundle: Bundle) -> dict[str, Any]:
        context = bundle.facts.get("context")
        if not context:
            raise UnsupportedError(
                "there is no context binary in it to simulate", where=URL, remedy="Build it with the extra qnn."
            )
        if context["soc_model"] != self._soc:
            raise UnsupportedError(
                f"the binary is for SoC {context['soc_model']}, the profile's is {self._soc}",
                where=URL,
                remedy="Build it for this profile.",
            )
        return {
            "model": str((bundle.folder / str(bundle.facts["model"])).resolve()),
            "context": context,
            "runtime": "onnxruntime",
            "providers": ["QNNExecutionProvider"],
            "threads": 1,
        }

    def _start(
        self, command: str, job: dict[str, Any], scratch: Path, stop: Callable[[], bool] | None = None
    ) -> dict[str, Any]:
        try:
            return run_job(command, job, scratch, timeout=_TIMEOUT, stop=stop)
        except IntegrityError as error:
            remedy = "Parts of it may run on the CPU (--allow-fallback): the simulator runs what is on the HTP alone."
            raise UnsupportedError(error.text, where=URL, remedy=remedy) from error


def _growing(feeds: Iterable[Feed], children: int) -> Iterator[list[Feed]]:
    """Yield feeds in lists that grow: starting a child for few cheap samples would cost more than these.

    Args:
        feeds: all of them.
        children: how many run at a time, and share what is left.
    """
    rest, size, done = iter(feeds), AT_ONCE, 0
    while True:
        before = done
        for chunk in chunks(itertools.islice(rest, size)):
            done += len(chunk)
            yield chunk
        if done == before:
            return
        size = max(AT_ONCE, done // children)
