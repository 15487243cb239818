"""`edgekit inspect` and `edgekit predict`."""

from __future__ import annotations

from typing import Any

import click

from edgekit.cli.options import json_option


@click.command()
@click.argument("model")
@click.option("--profile", metavar="NAME", help="Also say what this device lacks for it.")
@click.option("--plan", is_flag=True, help="Print what a build would decide for every tensor, and why.")
@click.option("--blame", is_flag=True, help="Measure which layers lose the accuracy; needs --data.")
@click.option("--recipe", metavar="NAME|FILE", help="The recipe of --plan and --blame (default: the profile's).")
@click.option("--data", metavar="DIR|FILE", help="The data of --plan and --blame.")
@click.option("--weights", metavar="FILE", help="A safetensors file for a python: model.")
@click.option("--shape", multiple=True, metavar="x=MIN/OPT/MAX", help="Fix or bound an input's shape: x=1x3x224x224.")
@click.option("--threads", type=click.IntRange(1), default=1, help="CPU threads for --plan and --blame.")
@json_option
def inspect(model: str, as_json: bool, **options: Any) -> int:
    """Say what is in MODEL: inputs, operators, MACs, parameters, shapes, and what a device lacks for it.

    MODEL may also be a package or the id of an artifact in the store; --plan then tells what was decided for it.
    """
    from edgekit.cli.printing import Teller, console_for_stdout, finding_line, print_json, rows_table
    from edgekit.inspect import inspect as run_inspect

    with Teller(quiet=as_json or not (options["plan"] or options["blame"])) as teller:
        report = run_inspect(model, listen=teller.listen, **options)
    if as_json:
        print_json({"status": "pass", "exit": 0, "error": None, **report.to_dict()})
        return 0
    console = console_for_stdout()
    for title, headings, rows in report.tables():
        console.print(rows_table(title, headings, rows))
    for finding in report.findings:
        console.print(finding_line(finding))
    return 0


@click.command()
@click.argument("model")
@click.option("--profile", metavar="NAME", required=True, help="The device.")
@click.option("--weights", metavar="FILE", help="A safetensors file for a python: model.")
@click.option("--shape", multiple=True, metavar="x=MIN/OPT/MAX", help="Fix or bound an input's shape: x=1x3x224x224.")
@click.option(
    "--protocol",
    type=click.Choice(["graph", "plain"]),
    default="graph",
    help="On a GPU: kernels started at once as a CUDA graph (as the runner measures), or one by one.",
)
@json_option
def predict(model: str, as_json: bool, **options: Any) -> int:
    """Predict latency and memory of MODEL as it is on a device, with an interval. Nothing is measured."""
    from edgekit.cli.printing import console_for_stdout, print_json, rows_table
    from edgekit.predict import predict as run_predict
    from edgekit.predict import tables, to_dict

    found = run_predict(model, **options)
    if as_json:
        print_json({"status": "pass", "exit": 0, "error": None, **to_dict(found)})
        return 0
    console = console_for_stdout()
    for title, headings, rows in tables(found):
        console.print(rows_table(title, headings, rows))
    return 0


COMMANDS = (inspect, predict)
