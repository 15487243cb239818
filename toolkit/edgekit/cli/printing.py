"""Results as tables, and progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from edgekit import events
from edgekit.budget import Check
from edgekit.report import CHECKS, check_rows
from edgekit.result import Result

STATUS_STYLE = {"pass": "green", "fail": "bold red", "unproven": "yellow", "error": "bold red"}
SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "note": "dim"}


class Teller:
    """Shows events as progress on stderr; a machine that reads stdout sees nothing of it."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self.told: set[events.Finding] = set()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def listen(self, event: events.Event) -> None:
        """Show one event."""
        if isinstance(event, events.StageDone):
            how = "cached" if event.cached else f"{event.seconds:.1f} s"
            self._console.print(Text(f"{event.name:16} {how}", style="dim"))
            self._drop_tasks()
        elif isinstance(event, events.Found):
            self.told.add(event.finding)
            self._console.print(finding_line(event.finding))
        elif isinstance(event, events.Progress):
            if event.label not in self._tasks:
                self._tasks[event.label] = self._bar.add_task(event.label, total=event.total or None)
            self._bar.update(self._tasks[event.label], completed=event.done)

    def _drop_tasks(self) -> None:
        for task in self._tasks.values():
            self._bar.remove_task(task)
        self._tasks.clear()


def print_result(result: Result, *, as_json: bool, quiet: bool = False, told: Collection[events.Finding] = ()) -> None:
    """Print a result: the JSON object alone, or findings (but those told before), the verdict and the package."""
    if as_json:
        sys.stdout.write(result.to_json().decode() + "\n")
        return
    console = console_for_stdout()
    planned = [run.facts["plan"] for run in result.stages if "plan" in run.facts]
    if planned:
        console.print(rows_table("plan", ("stage",), [(line,) for line in planned]))
        return
    if not quiet:
        for finding in result.findings:
            if finding not in told:
                console.print(finding_line(finding))
        for run in result.stages:
            if run.name == "choose":
                console.print(alternatives_table(run.facts))
                console.print(Text(f"chosen: {run.facts['chosen']}, {run.facts.get('why', '')}"))
        if result.coverage:
            console.print(coverage_line(result.coverage))
    _print_verdict(console, result)


def alternatives_table(facts: dict[str, Any]) -> Table:
    """Return the table of a recipe's alternatives: what each would lose, take and weigh, or why it is none."""
    rows = []
    simulated = any("simulated_db" in score for score in facts["scores"].values())
    for name, score in facts["scores"].items():
        drop, latency = score["drop"], score["latency_ms"]
        rows.append(
            (
                f"{name} *" if name == facts["chosen"] else name,
                "" if drop is None else f"{drop:.2%}",
                *([f"{score['simulated_db']} dB"] if score.get("simulated_db") is not None else [""] * simulated),
                "" if latency is None else f"{latency:.3g} ms",
                f"{score['size'] / 1e3:.0f} kB",
                _standing(score),
            )
        )
    none = [""] * (3 + simulated)
    rows += [(name, *none, " ".join(why.split())[:120]) for name, why in facts["refused"].items()]
    near = ["simulator to CPU"] * simulated
    headings = ("alternative", "drop (calibration)", *near, "latency (predicted)", "size", "")
    return rows_table("alternatives", headings, rows)


def _standing(score: dict[str, Any]) -> str:
    if score.get("doubtful"):
        return "not ruled out"
    return "keeps the budgets" if score["within"] else "misses a budget"


def _print_verdict(console: Console, result: Result) -> None:
    if result.checks:
        console.print(verdict_table(result.checks))
    console.print(Text.assemble("verdict: ", (result.status, STATUS_STYLE[result.status])))
    if result.error:
        console.print(Text(f"reason: {result.error.text}"))
        if result.error.remedy:
            console.print(Text(f"next: {result.error.remedy}"))
    if result.package:
        console.print(Text(f"package: {result.package}"), soft_wrap=True)


def console_for_stdout() -> Console:
    """Return a console that neither wraps nor colors what a file or pipe gets."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def verdict_table(checks: Sequence[Check]) -> Table:
    """Return the table of checks: value, 95 % bounds, budget, status and how the value was obtained."""
    table = Table(title="verdict", title_justify="left")
    for heading in CHECKS:
        table.add_column(heading, justify="right" if heading in {"value", "95 % bounds", "budget"} else "left")
    for check, row in zip(checks, check_rows({"checks": msgspec.to_builtins(checks)}), strict=True):
        name, value, bounds, budget, _, obtained = row
        decided = check.budget is not None or check.status != "pass"
        status = Text(check.status if decided else "", style=STATUS_STYLE[check.status])
        table.add_row(name, value, bounds, budget, status, Text(obtained))
    return table


def finding_line(finding: events.Finding) -> Text:
    """Return one finding as a line."""
    place = f"{finding.node}: " if finding.node else ""
    remedy = f" {finding.remedy}" if finding.remedy else ""
    style = SEVERITY_STYLE[finding.severity]
    return Text.assemble((finding.severity, style), f" [{finding.rule}] {place}{finding.text}{remedy}")


def coverage_line(coverage: dict[str, Any]) -> Text:
    """Return which share got the asked precision."""
    parts = [f"coverage: {coverage.get('weights', 0):.1%} of the weights"]
    if "macs" in coverage:
        parts.append(f"{coverage['macs']:.1%} of the MACs")
    left = coverage.get("left_float", [])
    tail = f"; left float: {', '.join(left[:8])}{' ...' if len(left) > 8 else ''}" if left else ""  # noqa: PLR2004
    return Text(" and ".join(parts) + f" at {coverage.get('precision', '?')}{tail}")


def rows_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a plain table."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
