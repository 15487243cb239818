"""`edgekit validate`: accuracy delta, latency and memory of a package or model on a device."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgekit import events
from edgekit.budget import Budget, Figure, judge, merge, parse_budget, parse_seconds
from edgekit.data import Dataset, open_dataset
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.evaluate import evaluate, figures, load_outputs
from edgekit.evaluate.rows import leading_axis, rows_of, together
from edgekit.events import Finding
from edgekit.exporter import load_exporter
from edgekit.gate import RUNS, Gate, model_size
from edgekit.jobs import read_feeds
from edgekit.metrics import Metric, find_metric
from edgekit.original import Original, feeds_of
from edgekit.package import Extracted, extract_package
from edgekit.payload import PREPROCESSING
from edgekit.pipeline import Pipeline
from edgekit.profile import Profile, load_profile
from edgekit.result import ErrorReport, Result, exit_of
from edgekit.shipping import bundle_of
from edgekit.sources import ingest, read_data
from edgekit.store import Store, default_root
from edgekit.target import Feed, Target
from edgekit.targets import open_target
from edgekit.targets.engines import engine_error, is_engine

_Told = TypeVar("_Told")


class _Data(msgspec.Struct, frozen=True):
    """With which data a package was built: its id, and the options that split it."""

    id: str | None = None
    calibration: int | None = None
    seed: int = 0


class _Built(msgspec.Struct, frozen=True):
    """What `verdict.json` says under `details` of how a package was judged when it was built."""

    metric: str = "agreement"
    budget: Budget = Budget()
    data: _Data = _Data()


def validate(  # noqa: PLR0913 - one keyword per option of the command line
    model: str,
    *,
    target: str,
    profile: str | None = None,
    data: str | None = None,
    metric: str | None = None,
    reference: str | None = None,
    label_map: str | None = None,
    calibration: int | None = None,
    budget: Budget | Mapping[str, str] | None = None,
    threads: int = 1,
    sustained: str | None = None,
    simulate: str | None = None,
    strict: bool = False,
    seed: int = 0,
    store: Path | None = None,
    listen: events.Listener = events.ignore,
) -> Result:
    """Run a package or model on a target and judge it.

    A package brings the original's outputs: with the data it was built with, the accuracy delta needs no original.

    Args:
        model: an edgekit package, or a model as `build` takes it.
        target: URL of the machine.
        profile: the device; a package knows it.
        data: evaluation data; for a package the data that it was built with.
        metric: a built-in metric's name or `python:module:function`; default: as the package was judged.
        reference: the float original of a model that is not a package; default: the model itself.
        label_map: a file with one class name per line, in the order of the outputs.
        calibration: number of calibration samples, as in the build.
        budget: what must be kept; laid over the profile's own budgets.
        threads: CPU threads on the target.
        sustained: how long the target is also kept at work, e.g. `10m`; latency is then that of the last minute.
        simulate: how many evaluation samples a simulator runs (`500`), or how long it may take for them (`10m`).
        strict: what is unproven counts as missed.
        seed: as in the build.
        store: the store's folder.
        listen: gets progress events.
    """
    asked = budget if isinstance(budget, Budget) else parse_budget(budget or {})
    seconds = parse_seconds(sustained, "sustained") if sustained else 0
    if not model.endswith(".edgekit"):
        options: dict[str, Any] = {"calibration": calibration, "threads": threads, "seed": seed, "strict": strict}
        options |= {"sustained": seconds, "listen": listen}
        device = load_profile(profile or "host")
        with (
            Store(store) as shelf,
            open_target(
                target, device, keep=shelf.root / "scratch", simulate=simulate, threads=threads, listen=listen
            ) as machine,
        ):
            return _model(model, machine, shelf, device, asked, (data, metric, reference, label_map), options)
    if profile or reference:
        raise UsageError("a package knows its profile and its original", remedy="Leave --profile and --reference out.")
    if simulate:
        remedy = "Leave it out, give less data, or build again with it."
        raise UsageError("a package is judged on all samples", where="simulate", remedy=remedy)
    with tempfile.TemporaryDirectory() as scratch:
        extracted = extract_package(Path(model), Path(scratch) / "package")
        device = _told(extracted, extracted.package.manifest.profile.values, Profile)
        keep = (store or default_root()) / "scratch"
        with open_target(target, device, keep=keep, simulate=simulate, threads=threads, listen=listen) as machine:
            load = {"threads": threads, **({"sustained": seconds} if seconds else {})}
            return _package(extracted, machine, asked, (data, metric), load, strict=strict, listen=listen)


def _package(
    extracted: Extracted,
    machine: Target,
    asked: Budget,
    given: tuple[str | None, str | None],
    load: dict[str, Any],
    *,
    strict: bool,
    listen: events.Listener,
) -> Result:
    """Judge a package: the original's outputs come with it."""
    data, metric = given
    package, bundle = extracted.package, extracted.compiled()
    built = _told(extracted, package.verdict.details, _Built)
    budgets = merge(built.budget, asked)
    judged_by = _metric(metric, built.metric, package.path)
    samples = _samples(extracted, built.data, data, listen) if data else None
    feed = _one_feed(extracted, samples)
    runs = 3 * RUNS if "p99" in budgets.latency_ms else RUNS
    found = list(machine.measure(bundle, feed, runs=runs, **load))
    findings = [*(samples.findings if samples else ()), *_check_golden(extracted, machine)]
    on = found[0].on
    if samples is None or extracted.reference is None:
        note = "accuracy was not looked at: give the data that the package was built with, --data"
        found.append(Figure(name="drop", value=None, unit="1", provenance="measured", on=on, note=note))
    else:
        leading = leading_axis(package.manifest.inputs, package.manifest.outputs)
        feeds = feeds_of(samples.evaluation, "evaluation", listen)
        comparison = evaluate(
            load_outputs(extracted.reference[0]),
            together(machine.run(bundle, feeds), leading),
            rows_of(samples.evaluation.labels, leading),
            judged_by,
            batched=leading is not None,
        )
        found += figures(comparison, on=on, provenance=machine.provenance)
        findings += comparison.findings
    found.append(model_size(bundle.folder, bundle.facts.get("loads")))
    findings += machine.findings  # the last ones came while it ran
    return _judged(budgets, found, findings, package.manifest.artifact.id, strict=strict)


def _told(extracted: Extracted, values: Any, kind: type[_Told]) -> _Told:
    """Read what a package says of its build; InputError when it is not what edgekit writes."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        where = str(extracted.package.path)
        raise InputError(f"what it says of its build: {error}", where=where, remedy="Build it again.") from None


def _metric(asked: str | None, built: str, package: Path) -> Metric:
    """Return the metric; code is only run when the user names it, never because a package does."""
    if asked is None and built.startswith("python:"):
        raise UsageError(
            f"it was judged by a function of its builder's, {built}",
            where=str(package),
            remedy=f"Name what to judge by; if you have and trust that function: --metric {built}",
        )
    return find_metric(asked or built)


def _one_feed(extracted: Extracted, samples: Dataset | None) -> Feed:
    """Return what latency is measured with: a sample, else the first golden input."""
    for split in (samples.evaluation, samples.calibration) if samples else ():
        if len(split):
            return split.sample(0)
    golden = read_feeds(extracted.golden[0]) if extracted.golden else []
    if not golden:
        where = str(extracted.package.path)
        raise InputError("there is nothing to feed it", where=where, remedy="Give the data with --data.")
    return golden[0]


def _samples(extracted: Extracted, built: _Data, data: str, listen: events.Listener) -> Dataset:
    """Open the data that a package was built with; InputError when it is another."""
    manifest = extracted.package.manifest
    processor = extracted.folder / PREPROCESSING
    samples = open_dataset(
        data,
        manifest.inputs,
        preprocessing=manifest.preprocessing or None,
        processor=processor if processor.is_dir() else None,
        class_names=manifest.labels,
        limit=built.calibration,
        seed=built.seed,
        listen=listen,
    )
    if samples.id != built.id:
        raise InputError(
            "this is not the data that the package was built with, so its original says nothing about it",
            where=data,
            remedy="Give the same data, or validate the model itself with --reference MODEL.",
        )
    return samples


def _check_golden(extracted: Extracted, machine: Target) -> list[Finding]:
    """Let the target reproduce the golden outputs; an error finding when it does not."""
    if extracted.golden is None or extracted.variant.golden is None:
        return []
    inputs, outputs = extracted.golden
    if outputs is None:
        return []
    result = machine.golden(extracted.compiled(), inputs, outputs, tolerance=extracted.variant.golden.tolerance)
    return [
        Finding(
            severity="error",
            node=name,
            rule="golden-mismatch",
            text=f"the target does not reproduce the golden output: {found['text']}",
            remedy="Compare runtime versions: edgekit doctor, on both machines.",
        )
        for name, found in result.outputs.items()
        if not found["matches"]
    ]


def _model(
    model: str,
    machine: Target,
    store: Store,
    device: Profile,
    asked: Budget,
    given: tuple[str | None, str | None, str | None, str | None],
    options: dict[str, Any],
) -> Result:
    """Judge an ONNX model as it is, against its float original (itself when none is given)."""
    data, metric, reference, label_map = given
    calibration, strict = options.pop("calibration"), options.pop("strict")
    exporter = load_exporter(device.runtime)
    if is_engine(model):
        raise engine_error(Path(model), machine.fingerprint())
    candidate = ingest(model, store, listen=options["listen"])
    original = ingest(reference, store, listen=options["listen"]) if reference else candidate
    if candidate.kind != "onnx" or original.kind != "onnx":
        raise UnsupportedError("only ONNX models and packages can be validated", where=model, remedy="Build it first.")
    samples = read_data(
        data,
        original,
        source=store.folder(original.id),
        label_map=label_map,
        limit=calibration,
        strict=strict,
        seed=options["seed"],
        listen=options["listen"],
    )
    budgets = merge(parse_budget(device.budget), asked)
    sustained = options.pop("sustained")
    gate = Gate(
        original=Original(store=store, artifact=original, data=samples, metric=metric, **options),
        profile=device,
        exporter=exporter,
        budget=budgets,
        threads=options["threads"],
        sustained=sustained,
        listen=options["listen"],
    )
    pipeline = Pipeline(store=store, profile=device, dialect=exporter.dialect(device), data=samples, **options)
    trial = gate.trial(bundle_of(pipeline.compile(exporter, candidate), store), machine, candidate)
    findings = [*(samples.findings if samples else ()), *trial.findings]
    return _judged(budgets, trial.figures, findings, candidate.id, strict=strict)


def _judged(budget: Budget, found: Any, findings: list[Finding], artifact: str, *, strict: bool) -> Result:
    verdict = judge(budget, tuple(found))
    broken = [finding for finding in findings if finding.severity == "error"]
    missed = [check for check in verdict.checks if check.status == "fail"]
    unproven = [check for check in verdict.checks if check.status == "unproven"] if strict else []
    why = [check.reason or check.name for check in (*missed, *unproven)] + [f"{f.node}: {f.text}" for f in broken]
    error = ErrorReport(kind="budget", text="; ".join(why), where="", remedy="It does not keep its contract here.")
    return Result(
        status="fail" if why else verdict.status,
        exit=3 if why else exit_of(verdict, strict=strict),
        error=error if why else None,
        checks=verdict.checks,
        artifact=artifact,
        findings=tuple(findings),
    )
