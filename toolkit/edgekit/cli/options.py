"""Options that several commands share, and how flags, `edgekit.toml` and defaults come together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

BUDGETS = {
    "max_drop": ("max-drop", "Largest loss of the metric: 1% (points for metrics in 0..1, else relative)."),
    "latency_p50": ("latency-p50", "Latency budget, e.g. 20ms."),
    "latency_p90": ("latency-p90", "Latency budget, e.g. 20ms."),
    "latency_p95": ("latency-p95", "Latency budget, e.g. 20ms."),
    "latency_p99": ("latency-p99", "Latency budget, e.g. 20ms; takes at least 300 runs."),
    "max_size": ("max-size", "Size of the model files, e.g. 5MB."),
    "max_memory": ("max-memory", "Peak memory while running, e.g. 200MB."),
    "energy": ("energy", "Energy per inference, e.g. 50mJ."),
}


def json_option(command: Command) -> Command:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else.")(
        command
    )


def quiet_option(command: Command) -> Command:
    """Add --quiet."""
    return click.option("--quiet", is_flag=True, help="Print the verdict and errors only.")(command)


def budget_options(command: Command) -> Command:
    """Add one option per budget."""
    for name, (flag, text) in reversed(BUDGETS.items()):
        command = click.option(f"--{flag}", name, metavar="BUDGET", help=text)(command)
    return command


def data_options(command: Command) -> Command:
    """Add what says how data is read and judged."""
    options = [
        click.option("--data", metavar="DIR|FILE|python:module:factory", help="Calibration and evaluation data."),
        click.option(
            "--metric", metavar="NAME|python:module:function", help="Default: accuracy with labels, else agreement."
        ),
        click.option("--label-map", metavar="FILE", help="One class name per line, in the order of the outputs."),
        click.option("--calibration", type=click.IntRange(1), help="Number of calibration samples (default 256)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def run_options(command: Command) -> Command:
    """Add what surrounds a run."""
    options = [
        click.option("--threads", type=click.IntRange(1), help="CPU threads (default: one; trainings take all)."),
        click.option("--sustained", metavar="TIME", help="Also run for so long on the target (10m): latency when hot."),
        click.option(
            "--simulate",
            metavar="COUNT|TIME",
            help="Samples to simulate (500), or CPU time for them (10m; default 1m).",
        ),
        click.option("--strict", is_flag=True, default=None, help="What is unproven counts as missed."),
        click.option("--config", metavar="FILE", help="Options as TOML (default: edgekit.toml beside the model)."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def settle(model: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Lay flags over `edgekit.toml`: what was not given on the command line is None or empty there."""
    from edgekit.config import find_config, load_config

    config = flags.pop("config", None)
    path = Path(config) if config else find_config(model)
    table = load_config(path) if path else {}
    merged = {key.replace("-", "_"): value for key, value in table.items()}
    merged.update({key: value for key, value in flags.items() if value not in (None, ())})
    return merged


def split_budget(options: dict[str, Any]) -> dict[str, str]:
    """Take the budgets out of the options, by the words of `edgekit.toml`."""
    return {flag: options.pop(name) for name, (flag, _) in BUDGETS.items() if options.get(name) is not None}
