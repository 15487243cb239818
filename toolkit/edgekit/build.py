"""`edgekit build`: from a trained model to a validated package. Reads top to bottom like the way of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit import events, gate
from edgekit.budget import Budget, judge, merge_budgets, parse_budget
from edgekit.errors import UnsupportedError
from edgekit.exporter import Exporter, load_exporter
from edgekit.pipeline import Pipeline
from edgekit.plan import Given, Plan, make_plan
from edgekit.profile import Profile, load_profile
from edgekit.recipe import load_recipe
from edgekit.result import Result, exit_of
from edgekit.sources import ingest
from edgekit.store import Store


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
    threads: int = 1,
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
        threads: CPU threads for calibration and measurement.
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
    device = load_profile(profile)
    exporter = load_exporter(device.runtime)
    asked = budget if isinstance(budget, Budget) else parse_budget(budget or {})
    budgets = merge_budgets(parse_budget(device.budget), asked)
    chosen = load_recipe(recipe or device.recipe)

    with Store(store) as shelf:
        source = ingest(model, shelf, weights=Path(weights) if weights else None, listen=listen)
        mentor = ingest(teacher, shelf, listen=listen) if teacher else None
        given = Given(kind=source.kind, data=data is not None, teacher=mentor is not None, shapes=tuple(shape))
        plan = make_plan(chosen, device, exporter, given)
        if dry_run:
            return _planned(plan)

        pipeline = Pipeline(
            store=shelf,
            profile=device,
            dialect=exporter.dialect(device),
            teacher=mentor,
            listen=listen,
            seed=seed,
            threads=threads,
            allow_partial=allow_partial,
        )
        reference = pipeline.capture(plan, source)
        samples = gate.read_data(
            data,
            reference,
            folder=shelf.folder(source.id),
            preprocessing=preprocessing,
            label_map=label_map,
            limit=calibration,
            strict=strict,
            seed=seed,
            listen=listen,
        )
        pipeline.data = samples

        court = gate.Gate(
            store=shelf,
            profile=device,
            exporter=exporter,
            reference=reference,
            data=samples,
            metric=metric,
            budget=budgets,
            threads=threads,
            listen=listen,
        )
        candidate = pipeline.run(plan, reference, court.score)
        findings = [*gate.findings_of(candidate), *(samples.findings if samples else ())]
        findings += _lint(exporter, pipeline, device)
        bundle = pipeline.compile(exporter, candidate)
        trial = court.try_bundle(bundle, candidate, target or device.target or None, allow_fallback=allow_fallback)
        verdict = judge(budgets, trial.figures)
        worse = None if allow_dominated else court.dominated(trial, candidate)

        result = Result(...)
