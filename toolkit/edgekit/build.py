"""`edgekit build`: from a trained model to a validated package. Reads top to bottom like the way of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgekit import events
from edgekit.artifact import MAIN, Artifact
from edgekit.atomic import replacing
from edgekit.budget import Budget, Verdict, merge, parse_budget, parse_seconds
from edgekit.errors import UsageError
from edgekit.exporter import Exporter, load_exporter, refuse
from edgekit.gate import Gate, Trial
from edgekit.host import training_threads
from edgekit.jury import Jury
from edgekit.metrics import find_metric
from edgekit.networks.launched import together
from edgekit.original import Original
from edgekit.pipeline import Pipeline
from edgekit.plan import Given, Plan, make_plan
from edgekit.profile import Profile, load_profile
from edgekit.recipe import load_recipe
from edgekit.report import html_report
from edgekit.result import Result, exit_of
from edgekit.shipping import Shipment, check_place, golden_feeds, pack_extras, recall, remember, ship
from edgekit.signing import load_private_key
from edgekit.sources import ingest, read_data
from edgekit.stage_runs import StageRun
from edgekit.store import Store
from edgekit.target import is_simulator
from edgekit.targets import default_target, open_target


@together(Result)
def build(  # noqa: PLR0913 - one keyword per option of the command line
    model: str,
    *,
    profile: str = "host",
    data: str | None = None,
    recipe: str | None = None,
    target: str | None = None,
    out: str | Path = "edgekit-out",
    budget: Budget | Mapping[str, str] | None = None,
    metric: str | None = None,
    teacher: str | None = None,
    weights: str | None = None,
    label_map: str | None = None,
    shape: Sequence[str] = (),
    preprocessing: Mapping[str, Any] | None = None,
    calibration: int | None = None,
    sign: str | None = None,
    seed: int = 0,
    threads: int | None = None,
    sustained: str | None = None,
    simulate: str | None = None,
    strict: bool = False,
    allow_fallback: bool = False,
    allow_partial: bool = False,
    allow_dominated: bool = False,
    dry_run: bool = False,
    package: bool = True,
    store: Path | None = None,
    listen: events.Listener = events.ignore,
) -> Result:
    """Turn a model into a validated package for a device.

    Started several times over by torchrun or `accelerate launch`, the first process builds and the others help it to
    train; all return the same.

    Args:
        model: a `.onnx` or `.pt2` file, a Hugging Face directory, `python:module:factory`, or a package.
        profile: the device's name: `edgekit profiles list`.
        data: where calibration and evaluation samples come from; without it nothing can be said about accuracy.
        recipe: a shipped recipe's name or a `.toml` file; default: the profile's.
        target: URL of the machine to measure on; default: the profile's.
        out: the folder that gets the package and its report.
        budget: what must be kept; laid over the profile's own budgets.
        metric: a built-in metric's name or `python:module:function`; default: accuracy with labels, else agreement.
        teacher: the model to distil from.
        weights: a safetensors file for a `python:` model.
        label_map: a file with one class name per line, in the order of the outputs.
        shape: `input=MIN/OPT/MAX` or `input=SHAPE`, e.g. `x=1x3x224x224`.
        preprocessing: how raw samples become inputs; default: declared beside the data, or by the model.
        calibration: number of calibration samples.
        sign: a private Ed25519 key (PEM) to sign the package with.
        seed: the seed of everything random.
        threads: CPU threads; default: one for calibration and measurement, all cores for training.
        sustained: how long the target is also kept at work, e.g. `10m`; latency is then that of the last minute.
        simulate: how many evaluation samples a simulator runs (`500`), or how long it may take for them (`10m`).
        strict: what is unproven counts as missed.
        allow_fallback: nodes may run off the accelerator.
        allow_partial: less than 90 % of the weights may get the asked precision.
        allow_dominated: a candidate that is worse than its input on every axis may ship.
        dry_run: check everything, return the plan, run nothing.
        package: write a package when nothing is missed.
        store: the store's folder; default: `$EDGEKIT_HOME` or the user's cache.
        listen: gets progress events.

    Raises:
        EdgekitError: of the class that fits; its `exit_status` is the command's.
    """
    all_threads, threads = threads or training_threads(), threads or 1
    device = load_profile(profile)
    exporter = load_exporter(device.runtime)
    asked = budget if isinstance(budget, Budget) else parse_budget(budget or {})
    budgets = merge(parse_budget(device.budget), asked)
    chosen = load_recipe(recipe or device.recipe)
    place = target or default_target(device)
    _check_given(metric, place, device, simulate, sign, Path(out) if package else None)

    with Store(store) as shelf:
        source = ingest(model, shelf, weights=Path(weights) if weights else None, listen=listen)
        mentor = ingest(teacher, shelf, listen=listen) if teacher else None
        given = Given(
            model=model, kind=source.kind, data=data is not None, teacher=mentor is not None, shapes=tuple(shape)
        )
        plan = make_plan(chosen, device, exporter, given)
        if dry_run:
            return _planned(plan)
        keep = shelf.root / "scratch"
        machine = (
            open_target(place, device, keep=keep, simulate=simulate, threads=threads, listen=listen) if place else None
        )
        if machine is not None:
            machine.reach()  # an hour of work is not lost to a machine that is off

        pipeline = Pipeline(
            store=shelf,
            profile=device,
            dialect=exporter.dialect(device),
            teacher=mentor,
            listen=listen,
            seed=seed,
            threads=threads,
            training_threads=all_threads,
            allow_partial=allow_partial,
        )
        reference = pipeline.capture(plan, source)
        _refuse_early(reference, shelf.folder(reference.id), exporter, device)
        pipeline.data = samples = read_data(
            data,
            reference,
            source=shelf.folder(source.id),
            preprocessing=preprocessing,
            label_map=label_map,
            limit=calibration,
            training=plan.trains,
            strict=strict,
            seed=seed,
            listen=listen,
        )
        original = Original(
            store=shelf,
            artifact=reference,
            data=samples,
            metric=metric,
            threads=threads,
            seed=seed,
            listen=listen,
        )
        gate = Gate(
            original=original,
            profile=device,
            exporter=exporter,
            budget=budgets,
            threads=threads,
            sustained=parse_seconds(sustained, "sustained") if sustained else 0,
            listen=listen,
            simulator=machine if is_simulator(machine) else None,
            allow_fallback=allow_fallback,
        )
        pipeline.fits = gate.check_fit
        jury = Jury(pipeline=pipeline, gate=gate, target=machine, strict=strict, allow_dominated=allow_dominated)
        found = jury.first_to_ship(pipeline.candidates(plan, reference, gate.score))
        candidate, verdict, why_not = found.candidate, found.verdict, found.why_not
        findings = [*pipeline.findings, *(samples.findings if samples else ()), *found.findings]

        shipment = Shipment(
            artifact=candidate.id,
            bundle=found.compiled.id,
            extras=pack_extras(
                shelf, found.bundle, samples, golden_feeds(original.golden_samples, original.seeded_feeds)
            ).id,
            reference=original.outputs_id,
            name=f"{_stem(model)}-{device.name}",
            profile=device,
            preprocessing=samples.preprocessing if samples else {},
            labels=samples.labels if samples else tuple(reference.facts.get("labels", ())),
            verdict=verdict if why_not is None else Verdict(status="fail", checks=verdict.checks),
            details=_details(found.trial, pipeline.runs, original, budgets, calibration=calibration),
        )
        remember(shipment, shelf)
        packed = ship(shipment, shelf, Path(out), key=Path(sign) if sign else None) if package and not why_not else None
        result = Result(
            status="fail" if why_not else verdict.status,
            exit=3 if why_not else exit_of(verdict, strict=strict),
            error=why_not,
            checks=verdict.checks,
            artifact=candidate.id,
            package=str(packed.path) if packed else None,
            stages=tuple(pipeline.runs),
            coverage=candidate.facts.get("coverage", {}),
            findings=tuple(events.grouped(findings)),
        )
        if packed:
            _write_report(result, packed.path)
        return result


def repackage(artifact: str, *, sign: str | None = None, out: str | None = None, store: Path | None = None) -> Result:
    """Write the package of a judged candidate again: what `build` does last.

    Args:
        artifact: the candidate's id, or its first characters, as `build` told it.
        sign: a private Ed25519 key (PEM).
        out: the folder that gets the package.
        store: the store's folder.
    """
    with Store(store) as shelf:
        known = shelf.find(artifact)
        shipment = recall(known.id if known else artifact, shelf)
        packed = ship(shipment, shelf, Path(out or "edgekit-out"), key=Path(sign) if sign else None)
        verdict = shipment.verdict
        result = Result(
            status=verdict.status,
            exit=0,
            checks=verdict.checks,
            artifact=shipment.artifact,
            package=str(packed.path),
        )
        _write_report(result, packed.path)
        return result


def _check_given(
    metric: str | None, place: str, device: Profile, simulate: str | None, key: str | None, out: Path | None
) -> None:
    """Find out now, not after hours of work, that a metric, a target's URL, a key or a folder is of no use."""
    if metric:
        find_metric(metric)
    if place:
        open_target(place, device, simulate=simulate).close()
    elif simulate:
        raise UsageError(f"'{simulate}', and nothing is simulated", where="simulate", remedy="Name a --target.")
    if key:
        load_private_key(Path(key))
    if out:
        check_place(out)


def _refuse_early(reference: Artifact, folder: Path, exporter: Exporter, profile: Profile) -> None:
    """Raise before any stage runs when the runtime refuses what no stage mends: the inputs' open shapes, the opset."""
    from edgekit.graphs.edit import load_model
    from edgekit.graphs.lower import lower_opset
    from edgekit.graphs.rules import unfit_inputs

    if unfit_inputs(reference, profile):
        found = [f for f in exporter.lint(reference, folder, profile) if f.rule.endswith("-dynamic-shape")]
        refuse(found, profile, allow_fallback=False)
    opset = reference.facts.get("opset")  # the stage capture has looked at the opset itself
    if isinstance(opset, int) and opset > profile.graph.max_opset:
        lower_opset(load_model(folder / MAIN), profile.graph.max_opset)


def _details(
    trial: Trial, runs: Sequence[StageRun], original: Original, budget: Budget, *, calibration: int | None
) -> dict[str, Any]:
    data = original.data.id if original.data else None
    return {
        "target": trial.fingerprint,
        "metric": original.judged_by.name,
        "budget": msgspec.to_builtins(budget),
        "data": {"id": data, "calibration": calibration, "seed": original.seed},
        "stages": [{"name": run.name, "seconds": run.seconds, "cached": run.cached} for run in runs],
    }


def _planned(plan: Plan) -> Result:
    """Return the plan as a result: nothing ran, so nothing is proven."""
    runs = [
        StageRun(name=line.partition("(")[0], seconds=0, cached=False, facts={"plan": line}) for line in plan.lines()
    ]
    return Result(status="unproven", exit=0, stages=tuple(runs))


def _write_report(result: Result, package: Path) -> None:
    page = html_report(json.loads(result.to_json()), title=package.stem)
    with replacing(package.with_suffix(".html")) as file:
        file.write(page.encode())


def _stem(model: str) -> str:
    """Return a name for the package from how the user wrote the model."""
    if model.startswith("python:"):
        return model.rsplit(":", 1)[1]
    name = Path(model).resolve().name if Path(model).exists() else model.rsplit("/", 1)[-1]
    stem = name.removesuffix(".onnx").removesuffix(".pt2").removesuffix(".edgekit")
    kept = "".join(c if c.isalnum() or c in "-_." else "-" for c in stem).strip("-.")
    return kept or "model"
