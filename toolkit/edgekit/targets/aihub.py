"""Qualcomm AI Hub as a target: compiles and runs on a device of Qualcomm's, with the user's own account and token.

`aihub://Samsung Galaxy S24`. Qualcomm's client (the extra `aihub`, or a Python of its own that `EDGEKIT_AIHUB_PYTHON`
names) does the talking, in a child process that is ended at the deadline. Jobs are kept in a journal: what a run has
waited for in vain, the next one takes up by its id.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from edgekit.artifact import digest, sha256_file
from edgekit.budget import Figure, Provenance
from edgekit.errors import UsageError
from edgekit.events import Finding
from edgekit.jobs import encode_feeds, read_feeds
from edgekit.profile import Profile
from edgekit.store import default_root
from edgekit.target import Bundle, Feed, GoldenResult, Tolerance
from edgekit.targets.aihub_job import check_feed, compared, compile_options, inputs_of, model_of, restored
from edgekit.targets.aihub_told import as_error, client_python, device_findings, profile_figures, unit_finding
from edgekit.targets.chunks import check_outputs, chunks, plain, read_outputs
from edgekit.transports.process import run_process

SCHEME = "aihub"
TOKEN_SECONDS, JOB_SECONDS = 60.0, 3600.0
"""How long AI Hub may take to answer, and a compilation and a run together; `EDGEKIT_AIHUB_SECONDS` sets the second."""
PATIENCE, POLL, GRACE = 300.0, 10.0, 60.0
"""Seconds for which a broken link is tried again, between two looks at a job, and from the deadline to the kill."""
CHUNK, CHUNK_FEEDS = 512 << 20, 4096
"""Bytes and number of feeds of one job: every job waits for a device."""

_CHILD = Path(__file__).with_name("aihub_child.py")


class AiHubTarget:
    """A device in Qualcomm's AI Hub.

    Attributes:
        url: `aihub://NAME`.
        findings: what is worth knowing of what was run: another SoC than the profile's, layers off the HTP.
        details: AI Hub's profile of the last measurement.
    """

    def __init__(self, url: str, profile: Profile) -> None:
        """Take the device's name; UsageError when there is none."""
        self.device = unquote(url.partition("://")[2]).strip().rstrip("/")
        if not self.device:
            raise UsageError(f"'{url}' names no device", remedy="For example: aihub://Samsung Galaxy S24")
        self.url = f"{SCHEME}://{self.device}"
        self.findings: list[Finding] = []
        self.details: dict[str, Any] = {}
        self.provenance: Provenance = "measured"
        self._profile = profile
        self._known: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open; jobs that are under way go on, and are taken up by the next run."""

    def reach(self) -> None:
        """See that the client is there, the token good, and the device on offer.

        Raises:
            TargetError: one of them is not; names like the device's are told.
        """
        self._look()

    def fingerprint(self) -> dict[str, str]:
        """Say which device it is and what the client is."""
        known = self._look()
        found = {
            "aihub": known["host"] or "Qualcomm",
            "device": known["device"]["name"],
            "os": known["device"]["os"],
            "chip": " ".join(
                word for word in known["device"]["attributes"] if word.startswith(("chipset:", "hexagon:"))
            ),
            "client": f"qai-hub {known['client']}",
        }
        return {key: str(value) for key, value in found.items() if value}

    @property
    def place(self) -> str:
        """What figures come from; another service than Qualcomm's is named."""
        host = self._look()["host"]
        return f"{self.device} via AI Hub" + (f" at {host}" if host else "")

    def run(self, bundle: Bundle, feeds: Iterable[Feed]) -> Iterator[Feed]:
        """Yield the outputs of each feed, in order; a job runs as many as `CHUNK` bytes of them.

        Raises:
            InputError: a feed that does not fit the model.
            TargetError: AI Hub cannot be reached or is not done at the deadline; the next run takes its jobs up again.
            UnsupportedError: it cannot compile or run the model; its reason is told.
        """
        self._look()
        for chunk in chunks(feeds, most=CHUNK, feeds_at_most=CHUNK_FEEDS):
            count = len(chunk)
            with tempfile.TemporaryDirectory(prefix="edgekit-aihub-") as scratch:
                self._infer(bundle, chunk, Path(scratch), profile=False)
                chunk.clear()
                path = Path(scratch, "outputs.npz")
                for outputs in read_outputs(path, check_outputs(path, count, self.url)):
                    yield restored(outputs, bundle)

    def measure(
        self, bundle: Bundle, feed: Feed, *, runs: int, threads: int, sustained: float = 0
    ) -> tuple[Figure, ...]:
        """Measure latency and memory in a profiled inference job of `runs` iterations.

        Raises: as `run`.
        """
        del threads  # it is the HTP's work
        self._look()
        with tempfile.TemporaryDirectory(prefix="edgekit-aihub-") as scratch:
            told = self._infer(bundle, [feed], Path(scratch), profile=True, options=f"--max_profiler_iterations {runs}")
        self.details = told["profile"]
        off = unit_finding(self.details, self.device)
        if off is not None:
            self._find(off)
        notes = ["AI Hub cannot keep a device at work for a time"] if sustained else []
        return profile_figures(self.details, f"{self.place}, job {told['job']}", notes, off.text if off else "")

    def golden(self, bundle: Bundle, inputs: Path, outputs: Path, *, tolerance: Tolerance) -> GoldenResult:
        """Compare the outputs of golden inputs with the golden outputs, on the device."""
        expected = read_feeds(outputs)
        rows: dict[str, dict[str, Any]] = {}
        for found, wanted in zip(self.run(bundle, read_feeds(inputs)), expected, strict=True):
            for name, array in wanted.items():
                row = compared(found.get(name), array, tolerance)
                if name not in rows or (rows[name]["matches"] and not row["matches"]):
                    rows[name] = row
        return GoldenResult(matches=all(row["matches"] for row in rows.values()), outputs=rows, count=len(expected))

    def _look(self) -> dict[str, Any]:
        if not self._known:
            with tempfile.TemporaryDirectory(prefix="edgekit-aihub-") as scratch:
                self._known = self._start({"command": "look"}, Path(scratch), seconds=TOKEN_SECONDS)
            for finding in device_findings(self._known["device"], self._profile, self.url):
                self._find(finding)
        return self._known

    def _infer(
        self, bundle: Bundle, feeds: list[Feed], scratch: Path, *, profile: bool, options: str = ""
    ) -> dict[str, Any]:
        """Compile the graph and run it on feeds; outputs lie in `outputs.npz` of the scratch folder then."""
        arrays = [{name: plain(name, array) for name, array in feed.items()} for feed in feeds]
        for feed in arrays:
            check_feed(feed, bundle)
        inputs = scratch / "feeds.npz"
        inputs.write_bytes(encode_feeds(arrays))
        model, sums = model_of(bundle, scratch)
        options_there = compile_options(bundle, arrays[0])
        host = self._look()["host"]
        compiled = digest([host, self.device, sums, options_there, [_spec(one) for one in arrays[0].values()]])
        ran = digest([compiled, sha256_file(inputs), options, profile])
        journal = default_root() / "aihub"
        journal.mkdir(parents=True, exist_ok=True)
        job = {
            "command": "run",
            "model": str(model),
            "name": f"edgekit-{compiled[:12]}",
            "inputs": str(inputs),
            "outputs": str(scratch / "outputs.npz"),
            "order": inputs_of(bundle, arrays[0]),
            "count": len(feeds),
            "compile": options_there,
            "options": options,
            "profile": profile,
            "journal": {"compile": f"{journal / compiled}.json", "inference": f"{journal / ran}.json"},
        }
        told = self._start(job, scratch, seconds=_seconds())
        text = f"AI Hub compiled the graph itself (job {told['compile_job']}): its binary was run, not the package's"
        self._find(Finding(severity="note", node=self.url, rule="aihub-compiled", text=text))
        if told["resumed"]:
            text = f"jobs of an earlier run were taken up again: {', '.join(told['resumed'])}"
            self._find(Finding(severity="note", node=self.url, rule="aihub-resumed", text=text))
        return told

    def _start(self, job: dict[str, Any], scratch: Path, *, seconds: float) -> dict[str, Any]:
        """Run the child to its end or the deadline; return its answer."""
        python = client_python(self.url)
        answer = scratch / "answer.json"
        timing = {"seconds": seconds, "poll": POLL, "patience": PATIENCE}
        whole = {**timing, **job, "device": self.device, "answer": str(answer)}
        (scratch / "job.json").write_text(json.dumps(whole), encoding="utf-8")
        grace = 0 if job["command"] == "look" else GRACE
        apart = ["-u", "PYTHONPATH"] if python != sys.executable else []
        argv = ["env", *apart, f"TMPDIR={scratch}", python, "-P", str(_CHILD), str(scratch / "job.json")]
        said = ""
        try:
            done = run_process(argv, timeout=seconds + grace, folder=scratch)
            said = done.stderr.strip()[-300:] or f"status {done.status}"
        except TimeoutError:
            pass
        told: dict[str, Any] = json.loads(answer.read_bytes()) if answer.is_file() else _silence(job, seconds, said)
        if error := told.get("error"):
            raise as_error(error, self.url)
        return told

    def _find(self, finding: Finding) -> None:
        if finding not in self.findings:
            self.findings.append(finding)


def _spec(array: Any) -> list[Any]:
    return [str(array.dtype), list(array.shape)]


def _seconds() -> float:
    told = os.environ.get("EDGEKIT_AIHUB_SECONDS", "")
    if not told:
        return JOB_SECONDS
    if not told.isdecimal() or not int(told):
        raise UsageError(f"'{told}' are no seconds", where="EDGEKIT_AIHUB_SECONDS", remedy="For example: 7200")
    return float(told)


def _silence(job: dict[str, Any], seconds: float, said: str) -> dict[str, Any]:
    """Return what a child that was ended, or died, would have answered; its jobs stand in the journal."""
    jobs = {}
    for what, path in job.get("journal", {}).items():
        if Path(path).exists():
            jobs[what] = json.loads(Path(path).read_bytes())["job"]
    if said:
        return {"error": {"kind": "died", "text": f"Qualcomm's client died: {said}", "jobs": jobs}}
    kind = "deadline" if jobs else "link"
    return {"error": {"kind": kind, "text": f"AI Hub gave no answer in {seconds:.0f} s", "jobs": jobs}}
