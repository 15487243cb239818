"""Which way of quantizing a whole graph to take: decided by running the candidates on held-out calibration samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from edgekit.data import Samples
from edgekit.graphs.calibrate import Reference, Statistics, spread
from edgekit.graphs.canonical import Canonical
from edgekit.graphs.int8_edits import edited_mode, int8_edits
from edgekit.graphs.int8_plan import Mode, Planner
from edgekit.graphs.int8_search import Search, Trial
from edgekit.graphs.int8_write import Writer
from edgekit.graphs.original import open_original
from edgekit.graphs.plan_edits import Int8Edit, reason_of
from edgekit.graphs.qdq import ENOUGH, coverage
from edgekit.graphs.seeded import SeededSamples
from edgekit.graphs.weights import Weights
from edgekit.numerics.ranges import Method

MOST_JUDGED = 32
"""Calibration samples on which candidates and the result are compared with the original."""

_TRIED: tuple[Method, ...] = ("minmax", "mse", "percentile")
_HELD_EVERY = 5
_LEAST_HELD = 8
"""Held-out samples that can show what clipping costs; with fewer, candidates are judged on what they were fitted on."""
_MATMUL_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What was asked for.

    Attributes:
        method: how ranges are chosen; `auto` tries several.
        mode: how nodes are computed; `auto` tries several.
        edits: what the recipe wants of single nodes; of several that match, the last counts.
        skip: which of their globs came from the option skip.
        floor: lowest signal-to-noise ratio of an output, in dB.
        aim: ratio for which nodes are left float as long as coverage stays enough, in dB.
    """

    method: Literal["auto", "minmax", "percentile", "mse", "entropy"]
    mode: Literal["auto", "static", "dynamic", "weights"]
    edits: tuple[Int8Edit, ...]
    skip: tuple[str, ...]
    floor: float
    aim: float


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to quantize the whole graph."""

    label: str
    wish: Mode
    products: bool = True


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A form with its best range method, tried on held-out samples; `macs` is its share of integer products."""

    form: Form
    method: Method
    trial: Trial
    macs: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The form and range method chosen, and what each candidate reached (dB on held-out samples)."""

    form: Form
    method: Method
    scores: dict[str, float]
    why: str


@dataclass(kw_only=True)
class Job:
    """One model being quantized.

    Attributes:
        wishes: what was asked for.
        source: the model in canonical form.
        weights: its weight operands.
        planner: makes plans.
        writer: writes them.
        samples: what it is calibrated on.
        path: the caller's model file.
        statistics: what calibration saw.
        macs: node name -> multiply-accumulates.
        threads: CPU threads.
        tell: called before each trial.
    """

    wishes: Wishes
    source: Canonical
    weights: Weights
    planner: Planner
    writer: Writer
    samples: Samples
    path: Path
    statistics: Statistics
    macs: Mapping[str, float]
    threads: int
    tell: Callable[[], None]

    @cached_property
    def original(self) -> Any:
        """A session of the caller's model; of its float32 form when the CPU cannot run it as it is."""
        return open_original(self.source, self.path, self.threads)

    @cached_property
    def edits(self) -> dict[str, Int8Edit]:
        """The entry of the recipe that counts for each node that one names; UsageError for one that does nothing."""
        return int8_edits(self.wishes.edits, self.planner)

    @property
    def seeded(self) -> bool:
        """Whether there is no data, so that nothing can be judged."""
        return isinstance(self.samples, SeededSamples)

    def choose(self) -> Choice:
        """Try the forms and methods that come into question on held-out samples, and take the best.

        With few samples, which may hold no large value at all, on all of them.
        """
        forms = self._forms()
        methods = _TRIED if self.wishes.method == "auto" else (self.wishes.method,)
        static = any(form.wish == "static" or self._has_static(form) for form in forms)
        if self.seeded or (len(forms) == 1 and (len(methods) == 1 or not static)):
            return Choice(form=forms[0], method=methods[0], scores={}, why=f"{forms[0].label}: the only candidate")
        held = sorted(held_out(len(self.samples)))
        if len(held) < _LEAST_HELD:
            search = self.search_on(range(len(self.samples)))
        else:
            search = self._search([held[i] for i in spread(len(held), MOST_JUDGED)], self.statistics.fit)
        scores: dict[str, float] = {}
        best: list[Candidate] = []
        for form in forms:
            modes, reasons = self.modes(form)
            trials = [
                (method, search.attempt(modes, reasons, method))
                for method in (methods if self._has_static(form) else methods[:1])
            ]
            for method, trial in trials:
                scores[f"{form.label}, {method}" if len(trials) > 1 else form.label] = round(trial.score, 2)
            method, trial = max(trials, key=lambda item: item[1].score)
            share = coverage(trial.plan, self.planner, self.macs)["macs"]
            best.append(Candidate(form=form, method=method, trial=trial, macs=share))
            if share >= ENOUGH and not trial.faults(self.wishes.floor):
                break  # what follows is slower
        count, kind = len(search.reference.indices), "" if len(held) < _LEAST_HELD else "held-out "
        on = f"on {count} {kind}calibration sample{'s' * (count > 1)}"
        return _pick(best, scores, self.wishes.floor, on, alone=len(forms) == 1)

    def _forms(self) -> list[Form]:
        """Return the candidates, the fastest on the device first."""
        wish = self.wishes.mode
        products = any(
            node.name not in self.planner.operands and not self.planner.refusal(node, "static")
            for node in self.planner.compute_nodes()
        )
        static, dynamic = (
            [Form(label=label, wish=label)]
            + [Form(label=f"{label}, constant weights only", wish=label, products=False)] * products
            for label in ("static", "dynamic")
        )
        weights = [Form(label="weights", wish="weights")]
        if wish != "auto":
            return {"static": static, "dynamic": dynamic, "weights": weights}[wish]
        if not self._matmul_heavy():
            return static if any(self._has_static(form) for form in static) else weights
        return [*reversed(dynamic), *reversed(static), *weights] if not self.seeded else dynamic[-1:]

    def _matmul_heavy(self) -> bool:
        if not self.planner.dialect.dynamic_transformers:
            return False
        nodes = {node.name for node in self.planner.compute_nodes() if node.op_type in {"MatMul", "Gemm"}}
        share = sum(count for name, count in self.macs.items() if name in nodes)
        return bool(nodes) and share >= _MATMUL_SHARE * sum(self.macs.values())

    def _has_static(self, form: Form) -> bool:
        return "static" in self.modes(form)[0].values()

    def modes(self, form: Form) -> tuple[dict[str, Mode], dict[str, str]]:
        """Return the modes that a form and the recipe's edits give each node, and why some get less."""
        modes, reasons = self.planner.first_modes(form.wish, products=form.products)
        for name, edit in self.edits.items():
            mode, refusal = edited_mode(self.planner, name, edit.mode, form.wish)
            why = reason_of(edit, self.wishes.skip)
            if refusal:
                reasons[name] = f"{why}, but {refusal}; " + reasons.get(name, f"it is {modes.get(name, 'float')}")
            else:
                modes[name], reasons[name] = mode, why
        return modes, reasons

    def _search(self, indices: Sequence[int], meters: Mapping[str, Any]) -> Search:
        return Search(
            source=self.source,
            planner=self.planner,
            writer=self.writer,
            reference=Reference(self.original, self.samples, indices),
            samples=self.samples,
            meters=meters,
            threads=self.threads,
            pinned=frozenset(self.edits),
            covers=lambda plan: float(coverage(plan, self.planner, self.macs)["macs"]) >= ENOUGH,
            tell=self.tell,
        )

    def search_on(self, indices: Sequence[int]) -> Search:
        """Return a search that judges on some samples, with the ranges of all."""
        return self._search([indices[i] for i in spread(len(indices), MOST_JUDGED)], self.statistics.all())

    def final(self, choice: Choice) -> tuple[Trial, Search]:
        """Quantize with the ranges of all samples and leave nodes float until the floor holds."""
        search = self._search(spread(len(self.samples), MOST_JUDGED), self.statistics.all())
        modes, reasons = self.modes(choice.form)
        trial = search.attempt(modes, reasons, choice.method)
        if not self.seeded:
            trial = search.settle(trial, choice.method, floor=self.wishes.floor, aim=self.wishes.aim)
        return trial, search


def held_out(count: int) -> set[int]:
    """Return the samples that ranges are not fitted on while candidates are compared."""
    if count < _HELD_EVERY:
        return {count - 1} if count > 1 else set()
    return set(range(_HELD_EVERY - 1, count, _HELD_EVERY))


def _pick(best: list[Candidate], scores: dict[str, float], floor: float, on: str, *, alone: bool) -> Choice:
    """Take the fastest form without faults that covers enough; else what covers most, then what lies nearest."""
    whole = [found for found in best if not found.trial.faults(floor)]
    if whole:
        chosen = next((found for found in whole if found.macs >= ENOUGH), None) or max(whole, key=lambda f: f.macs)
        first = "the best range method" if alone else "the fastest form"
        why = f"{first} that keeps every output above {floor:g} dB {on} ({chosen.trial.score:.1f} dB)"
        passed = next((found for found in best[: best.index(chosen)] if found.trial.faults(floor)), None)
        if passed is not None:
            why += f"; {passed.form.label} did not: {passed.trial.faults(floor)[0]}"
    else:
        integer = [found for found in best if found.form.wish != "weights" and found.macs >= ENOUGH] or best
        chosen = max(integer, key=lambda found: found.trial.score)
        why = f"nearest to the original {on} ({chosen.trial.score:.1f} dB), then nodes were left float"
    return Choice(
        form=chosen.form, method=chosen.method, scores=scores, why=f"{chosen.form.label} ({chosen.method}): {why}"
    )
