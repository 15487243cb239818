"""A result as text rows and as one self-contained HTML page. Pure functions: nothing is read, written or printed.

A result is the object that `--json` prints, as a dict. The page loads nothing, runs nothing, works without color
(every status is a word) and with a screen reader (captions, row and column headings).
"""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
Row = tuple[str, ...]

CHECKS = ("check", "value", "95 % bounds", "budget", "status", "obtained")
STAGES = ("stage", "time", "facts")
FINDINGS = ("severity", "rule", "where", "text", "remedy")
COVERAGE = ("what", "share")

_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_LONG = 300


def shown(value: float | None, unit: str) -> str:
    """Format a value for people: bytes with a decimal prefix, shares (unit `1`) as percent, `-` for nothing."""
    if value is None:
        return "-"
    if unit == "B":
        scale, word = next(((scale, word) for scale, word in _SIZES if abs(value) >= scale), (1.0, "B"))
        return f"{value / scale:.2f} {word}" if scale > 1 else f"{value:.0f} B"
    if unit == "1":
        return f"{value:.2%}"
    return f"{value:.3g} {unit}".strip()


def check_rows(result: Result) -> list[Row]:
    """Return the rows under `CHECKS`: one per figure, the reason beside how it was obtained unless it passed."""
    return [_check_row(check) for check in result.get("checks") or ()]


def stage_rows(result: Result) -> list[Row]:
    """Return the rows under `STAGES`: what ran, how long it took or that it was cached, and what it reported."""
    rows: list[Row] = []
    for stage in result.get("stages") or ():
        time = "cached" if stage["cached"] else f"{stage['seconds']:.1f} s"
        rows.append((str(stage["name"]), time, _brief(stage.get("facts") or {})))
    return rows


def finding_rows(result: Result) -> list[Row]:
    """Return the rows under `FINDINGS`, errors first."""
    order = {"error": 0, "warning": 1, "note": 2}
    findings = sorted(result.get("findings") or (), key=lambda finding: order.get(finding["severity"], 3))
    keys = ("severity", "rule", "node", "text", "remedy")
    return [tuple(str(finding.get(key, "")) for key in keys) for finding in findings]


def coverage_rows(result: Result) -> list[Row]:
    """Return the rows under `COVERAGE`: which share got the asked precision, and what did not."""
    rows: list[Row] = []
    for key, value in (result.get("coverage") or {}).items():
        if isinstance(value, float) and 0 <= value <= 1:
            rows.append((key.replace("_", " "), f"{value:.1%}"))
        elif isinstance(value, list):
            rows.append((key.replace("_", " "), ", ".join(str(item) for item in value) or "none"))
        else:
            rows.append((key.replace("_", " "), _brief(value)))
    return rows


def text_table(headings: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """Return a table as lines of plain text: columns are aligned, the last is as long as it is.

    What a terminal would take for a command becomes U+FFFD: names of nodes come with the user's model.
    """
    table = [tuple(headings), *(tuple(" ".join(_plain(cell).split()) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings) - 1)]
    rule = ["-" * width for width in widths] + ["-" * len(headings[-1])]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in (table[0], tuple(rule), *table[1:])
    ]


def html_report(result: Result, *, title: str) -> str:
    """Return the page of a result.

    Args:
        result: the object that `--json` prints.
        title: the model's or package's name.
    """
    status = str(result.get("status", ""))
    parts = [f"<h1>{_text(title)}</h1>", f'<p>Verdict: <strong class="{_text(status)}">{_text(status)}</strong></p>']
    parts += _outcome(result)
    parts.append(_table("Checks", CHECKS, check_rows(result), marked=4))
    parts.append(_table("Precision", COVERAGE, coverage_rows(result)))
    parts.append(_table("Findings", FINDINGS, finding_rows(result), marked=0))
    parts.append(_table("Stages", STAGES, stage_rows(result)))
    whole = json.dumps(result, indent=1, ensure_ascii=False, default=str)
    parts.append(f"<details><summary>The whole result as JSON</summary><pre>{_text(whole)}</pre></details>")
    return "".join([_START, _text(title), _MIDDLE, "\n".join(part for part in parts if part), _END])


def _check_row(check: Mapping[str, Any]) -> Row:
    unit, budget = str(check["unit"]), check.get("budget")
    low, high = check.get("low"), check.get("high")
    bounds = "" if low is None and high is None else f"{shown(low, unit)} .. {shown(high, unit)}"
    obtained = f"{check['provenance']} on {check['on']}"
    if check.get("n"):
        obtained += f", n = {check['n']}"
    if check.get("reason") and check["status"] != "pass":
        obtained += f"; {check['reason']}"
    return (
        str(check["name"]),
        shown(check["value"], unit),
        bounds,
        "" if budget is None else shown(budget, unit),
        "reported" if budget is None else str(check["status"]),
        obtained,
    )


def _outcome(result: Result) -> list[str]:
    """Return what became of it: the error, the package, the artifact."""
    parts = []
    if error := result.get("error"):
        where = f"{error['where']}: " if error.get("where") else ""
        parts.append(f'<p class="{_text(str(error["kind"]))}">{_text(where + str(error["text"]))}</p>')
        if error.get("remedy"):
            parts.append(f"<p>Next: {_text(str(error['remedy']))}</p>")
    told = [("package", result.get("package")), ("artifact", result.get("artifact")), ("exit", result.get("exit"))]
    names = {"package": "Package", "artifact": "Artifact", "exit": "Exit status"}
    items = [f"<dt>{names[key]}</dt><dd>{_text(str(value))}</dd>" for key, value in told if value is not None]
    return [*parts, f"<dl>{''.join(items)}</dl>"]


def _table(caption: str, headings: Sequence[str], rows: Sequence[Row], *, marked: int | None = None) -> str:
    """Return a table, or nothing without rows; the words of the column `marked` are classes of their cells too."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{_text(heading)}</th>' for heading in headings)
    body = []
    for row in rows:
        cells = []
        for column, cell in enumerate(row):
            kind = f' class="{_text(cell)}"' if column == marked else ""
            cells.append(f'<th scope="row"{kind}>{_text(cell)}</th>' if not column else f"<td{kind}>{_text(cell)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table><caption>{_text(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _brief(value: Any) -> str:
    """Return a JSON value as short text: `key value` pairs, cut where they get long."""
    if isinstance(value, Mapping):
        text = ", ".join(
            f"{key} {_brief(item) if not isinstance(item, Mapping) else '{..}'}" for key, item in value.items()
        )
    elif isinstance(value, float):
        text = f"{value:.4g}"
    elif isinstance(value, list | tuple):
        text = f"[{len(value)}]" if value and isinstance(value[0], list | tuple | Mapping) else json.dumps(value)
    else:
        text = str(value)
    return text if len(text) <= _LONG else text[: _LONG - 3] + "..."


def _text(value: str) -> str:
    """Escape text for an element or a quoted attribute; what HTML cannot hold becomes U+FFFD."""
    return html.escape(_plain(value), quote=True)


def _plain(value: str) -> str:
    """Replace control characters, tab and newline excepted, and halves of surrogate pairs."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in {"Cc", "Cs"} and char not in "\t\n" else char
        for char in value
    )


_START = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>"""

_MIDDLE = """ - edgekit</title>
<style>
:root { color-scheme: light dark; --line: #8886; --good: #17692f; --bad: #a8071a; --open: #7a4b00; }
@media (prefers-color-scheme: dark) { :root { --good: #7ee2a0; --bad: #ff9ea8; --open: #ffd27a; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1.5rem 0; }
caption { font-weight: bold; font-size: 1.2rem; text-align: left; padding-bottom: .3rem; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
tbody th { font-weight: normal; white-space: nowrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { overflow-x: auto; }
.wide { overflow-x: auto; }
.pass { color: var(--good); }
.fail, .error, .budget { color: var(--bad); font-weight: bold; }
.unproven, .warning { color: var(--open); }
</style>
</head>
<body>
<main>
"""

_END = """
</main>
</body>
</html>
"""
