"""Profile + recipe -> a checked chain of stages, before anything heavy is imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from edgekit.errors import InputError, UnsupportedError, UsageError, did_you_mean
from edgekit.exporter import Exporter
from edgekit.profile import Profile
from edgekit.recipe import Choose, Entry, Recipe, Repeat, StageEntry
from edgekit.stage import Stage, stage_class


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """A body that runs up to `rounds` times; the last round that keeps the budget is kept."""

    rounds: int
    body: tuple[Stage, ...]


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """Named bodies, of which the best within the budget is kept; `refused` says what the device cannot run and why."""

    options: tuple[tuple[str, tuple[Stage, ...]], ...]
    refused: tuple[tuple[str, str], ...] = ()


PlanEntry = Stage | Rounds | Alternatives


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a build will do.

    Attributes:
        capture: gives the float reference.
        training: what changes the model of PyTorch before it is captured again; empty where nothing does.
        entries: turn the reference, or what training made of it, into the candidate.
    """

    profile: Profile
    recipe: Recipe
    capture: tuple[Stage, ...]
    entries: tuple[PlanEntry, ...]
    training: tuple[PlanEntry, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether a stage needs the training split."""
        bodies = [body for entry in (*self.training, *self.entries) for body in stages_of(entry)]
        return any("training" in stage.needs for body in bodies for stage in body)

    def lines(self) -> list[str]:
        """Return one line per stage, for people."""
        trained = [line for entry in self.training for line in _entry_lines(entry)]
        again = [_line(stage) for stage in self.capture] if trained else []
        lines = [_line(stage) for stage in self.capture] + trained + again
        return lines + [line for entry in self.entries for line in _entry_lines(entry)]


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user gave, as far as the plan depends on it."""

    model: str
    kind: str
    data: bool
    teacher: bool
    shapes: tuple[str, ...] = ()


def make_plan(recipe: Recipe, profile: Profile, exporter: Exporter, given: Given) -> Plan:
    """Check a recipe against a profile and what is given, and build its stages.

    Raises:
        UsageError: an unknown stage or option, missing data or teacher.
        UnsupportedError: a precision that the device does not have.
        InputError: a stage that cannot take what the one before it makes.
    """
    if profile.abstract:
        raise UsageError(f"'{profile.name}' is a base for other profiles", remedy="Choose one: edgekit profiles list")
    capture = capture_stages(given.model, given.kind, given.shapes)
    prepared = [make_stage(spec.name, spec.options, f"exporter {exporter.name}") for spec in exporter.prepare(profile)]
    built = [_with_shapes(_build_entry(entry, i), capture) for i, entry in enumerate(recipe.entries, 1)]
    trains = next((i for i, entry in enumerate(built) if not _on_networks(entry)), len(built))
    where = f"recipe {recipe.name}"
    training, kind = _checked(built[:trains], given.kind, profile, given, where=where)
    for stage in capture:
        kind = _check_stage(stage, kind, profile, given)
    entries, kind = _checked([*prepared, *built[trains:]], kind, profile, given, where=where)
    if kind != "onnx":
        raise InputError(
            f"the recipe ends with a '{kind}' artifact, exporters take 'onnx'",
            where=f"recipe {recipe.name}",
            remedy="End the recipe with a stage that makes an ONNX graph.",
        )
    return Plan(profile=profile, recipe=recipe, capture=capture, entries=entries, training=training)


def _checked(
    entries: Sequence[PlanEntry], kind: str, profile: Profile, given: Given, *, where: str
) -> tuple[tuple[PlanEntry, ...], str]:
    """Check entries one after the other; return what the device runs of them, and the kind that they end in."""
    checked = []
    for entry in entries:
        possible = _possible(entry, kind, profile, given)
        kind = _check(possible, kind, profile, given, where=where)
        checked.append(possible)
    return tuple(checked), kind


def _on_networks(entry: PlanEntry) -> bool:
    """Say whether an entry works on models of PyTorch: such entries run before the model is captured."""
    return all("torch" in body[0].takes and body[0].makes == "torch" for body in stages_of(entry))


def _with_shapes(entry: PlanEntry, capture: tuple[Stage, ...]) -> PlanEntry:
    """Let stages on networks know the inputs that the capture was told of by `--shape`."""
    stated = {key: getattr(stage, key) for stage in capture[:1] for key in ("shapes", "dtypes") if hasattr(stage, key)}

    def told(stage: Stage) -> Stage:
        fits = "torch" in stage.takes and hasattr(stage, "shapes") and not stage.shapes
        known = {key: value for key, value in stated.items() if hasattr(stage, key)}
        return dataclasses.replace(stage, **known) if fits and stated.get("shapes") else stage  # type: ignore[type-var]

    if isinstance(entry, Rounds):
        return dataclasses.replace(entry, body=tuple(map(told, entry.body)))
    if isinstance(entry, Alternatives):
        options = tuple((name, tuple(map(told, body))) for name, body in entry.options)
        return dataclasses.replace(entry, options=options)
    return told(entry)


def capture_stages(model: str, kind: str, shapes: tuple[str, ...]) -> tuple[Stage, ...]:
    """Return the stages that turn Artifact#0 into the float graph: none for an ONNX model whose shapes stay."""
    stages = []
    if kind != "onnx":
        stated = {"shapes": _stated(shapes)} if model.startswith("python:") and shapes else {}
        stages.append(make_stage("capture", stated, "the model"))
    if shapes:
        stages.append(make_stage("freeze-shapes", {"shapes": list(shapes)}, "--shape"))
    return tuple(stages)


def _stated(shapes: tuple[str, ...]) -> dict[str, list[int | str]]:
    """Turn `--shape` into what a network without inputs of its own is traced with: sizes, named where they vary."""
    from edgekit.graphs.shape_text import parse_shape

    found: dict[str, list[int | str]] = {}
    for text in shapes:
        name, low, usual, high = parse_shape(text)
        axes = zip(low, usual, high, strict=True)
        found[name] = [at if first == last else f"{name}_{i}={at}" for i, (first, at, last) in enumerate(axes)]
    return found


def make_stage(name: str, options: dict[str, Any], where: str) -> Stage:
    """Build one stage from its name and options, every option checked by name and type."""
    cls = stage_class(name)
    known = [field.name for field in dataclasses.fields(cls)]
    for key in options:
        if key not in known:
            raise UsageError(f"stage '{name}' has no option '{key}'", where=where, remedy=did_you_mean(key, known))
    try:
        stage: Stage = msgspec.convert(options, type=cls)
    except msgspec.ValidationError as error:
        raise UsageError(f"stage '{name}': {error}", where=where, remedy=f"Options: {', '.join(known)}.") from None
    return stage


def stages_of(entry: PlanEntry) -> list[tuple[Stage, ...]]:
    """Return the bodies of an entry: one for a stage or rounds, one per alternative."""
    if isinstance(entry, Rounds):
        return [entry.body]
    if isinstance(entry, Alternatives):
        return [body for _, body in entry.options]
    return [(entry,)]


def _build_entry(entry: Entry, number: int) -> PlanEntry:
    def body(entries: tuple[StageEntry, ...]) -> tuple[Stage, ...]:
        return tuple(make_stage(e.use, e.options, f"recipe entry {number}") for e in entries)

    if isinstance(entry, Repeat):
        return Rounds(rounds=entry.rounds, body=body(entry.body))
    if isinstance(entry, Choose):
        return Alternatives(options=tuple((option.name, body(option.body)) for option in entry.options))
    return body((entry,))[0]


def _possible(entry: PlanEntry, kind: str, profile: Profile, given: Given) -> PlanEntry:
    """Leave out the alternatives that the device does not run; UnsupportedError when none is left."""
    if not isinstance(entry, Alternatives):
        return entry
    kept, refused = [], []
    for name, body in entry.options:
        try:
            end = kind
            for stage in body:
                end = _check_stage(stage, end, profile, given)
        except UnsupportedError as error:
            refused.append((name, error.text))
        else:
            kept.append((name, body))
    if not kept:
        raise UnsupportedError(
            "; ".join(f"{name}: {why}" for name, why in refused),
            where=profile.name,
            remedy=f"It runs {', '.join(profile.precisions)}: choose another recipe.",
        )
    return Alternatives(options=tuple(kept), refused=tuple(refused))


def _check(entry: PlanEntry, kind: str, profile: Profile, given: Given, *, where: str) -> str:
    """Check the bodies of an entry; return the kind that all of them end in."""
    ends = set()
    for body in stages_of(entry):
        end = kind
        for stage in body:
            end = _check_stage(stage, end, profile, given)
        ends.add(end)
    if len(ends) != 1:
        raise InputError(
            f"alternatives end in different kinds: {', '.join(sorted(ends))}",
            where=where,
            remedy="Let every alternative make the same kind.",
        )
    return ends.pop()


def _check_stage(stage: Stage, kind: str, profile: Profile, given: Given) -> str:
    if kind not in stage.takes:
        raise InputError(
            f"takes {', '.join(sorted(stage.takes))}, but gets '{kind}'",
            where=f"stage {stage.name}",
            remedy="Reorder the recipe, or give a model of the other kind."
            if kind != "onnx"
            else "Give the model of PyTorch, not its export: a Hugging Face directory, python:module:factory or .pt2.",
        )
    missing = [need for need in ("data", "teacher") if need in stage.needs and not getattr(given, need)]
    if missing:
        raise UsageError(
            f"stage '{stage.name}' needs {missing[0]}", where=stage.name, remedy=f"Add --{missing[0]} to the command."
        )
    precision = getattr(stage, "precision", None)
    if precision is not None and precision not in profile.precisions:
        raise UnsupportedError(
            f"{profile.name} does not run {precision}",
            where=f"stage {stage.name}",
            remedy=f"It runs {', '.join(profile.precisions)}: choose another recipe.",
        )
    return stage.makes


def _line(stage: Stage) -> str:
    options = dataclasses.asdict(stage)  # type: ignore[call-overload]  # every stage is a dataclass: see Stage
    shown = ", ".join(f"{key}={value}" for key, value in options.items() if value not in (None, (), [], {}))
    return f"{stage.name}({shown})"


def _entry_lines(entry: PlanEntry) -> list[str]:
    if isinstance(entry, Rounds):
        return [f"up to {entry.rounds} rounds of:"] + [f"  {_line(stage)}" for stage in entry.body]
    if isinstance(entry, Alternatives):
        lines = ["the best within the budget of:"]
        for name, body in entry.options:
            lines += [f"  {name}: " + ", ".join(_line(stage) for stage in body)]
        return lines + [f"  not {name}: {why}" for name, why in entry.refused]
    return [_line(entry)]
