"""`edgekit build` and `edgekit validate`."""

from __future__ import annotations

import inspect
from typing import Any

import click

from edgekit.cli.options import (
    budget_options,
    data_options,
    json_option,
    quiet_option,
    run_options,
    settle,
    split_budget,
)


@click.command()
@click.argument("model")
@click.option("--profile", metavar="NAME", help="The device: edgekit profiles list.")
@data_options
@click.option("--recipe", metavar="NAME|FILE", help="What is done (default: the profile's): edgekit recipes list.")
@click.option(
    "--target",
    metavar="URL",
    help="Where it is measured: local, ssh://user@host[:port], adb://SERIAL, aihub://DEVICE, emulated-aarch64.",
)
@click.option("--out", metavar="DIR", help="Where the package goes (default: edgekit-out).")
@budget_options
@click.option("--teacher", metavar="MODEL", help="The model to distil from.")
@click.option("--weights", metavar="FILE", help="A safetensors file for a python: model.")
@click.option("--shape", multiple=True, metavar="x=MIN/OPT/MAX", help="Fix or bound an input's shape: x=1x3x224x224.")
@click.option("--sign", metavar="KEY", help="Sign the package with this Ed25519 private key (PEM).")
@click.option("--seed", type=int, help="Seed of everything random (default 0).")
@run_options
@click.option("--allow-fallback", is_flag=True, default=None, help="Accept nodes that run off the accelerator.")
@click.option("--allow-partial", is_flag=True, default=None, help="Accept under 90 % of weights at the precision.")
@click.option("--allow-dominated", is_flag=True, default=None, help="Accept a candidate worse than its input.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@click.option("--no-package", is_flag=True, help="Judge, but write no package.")
@json_option
@quiet_option
def build(model: str, as_json: bool, quiet: bool, no_package: bool, **flags: Any) -> int:
    """Turn MODEL into a validated package for a device.

    MODEL is a .onnx or .pt2 file, a Hugging Face directory, python:module:factory, or a package.
    """
    from edgekit.build import build as run_build
    from edgekit.cli.printing import Teller, print_result
    from edgekit.networks.launched import place

    follows = place().follows
    options = settle(model, flags)
    budget = split_budget(options)
    with Teller(quiet=quiet or as_json or follows) as teller:
        result = run_build(model, budget=budget, package=not no_package, listen=teller.listen, **options)
    if follows:
        return result.exit  # the first process says the rest
    print_result(result, as_json=as_json, quiet=quiet, told=teller.told)
    return result.exit


@click.command()
@click.argument("model", metavar="PACKAGE|MODEL")
@click.option(
    "--target",
    metavar="URL",
    required=True,
    help="Where it is run: local, ssh://user@host[:port], adb://SERIAL, aihub://DEVICE, emulated-aarch64.",
)
@click.option("--profile", metavar="NAME", help="The device, when MODEL is not a package.")
@data_options
@click.option("--reference", metavar="MODEL", help="The float original to compare with, when MODEL is not a package.")
@budget_options
@run_options
@json_option
@quiet_option
def validate(model: str, as_json: bool, quiet: bool, **flags: Any) -> int:
    """Measure accuracy and latency of a package or model on a device."""
    from edgekit.cli.printing import Teller, print_result
    from edgekit.validate import validate as run_validate

    asked = {name for name, value in flags.items() if value is not None}
    options = settle(model, flags)
    budget = split_budget(options)
    own = {"profile"} if model.endswith(".edgekit") else set()
    known = inspect.signature(run_validate).parameters.keys() - own
    options = {name: value for name, value in options.items() if name in known or name in asked}
    with Teller(quiet=quiet or as_json) as teller:
        result = run_validate(model, budget=budget, listen=teller.listen, **options)
    print_result(result, as_json=as_json, quiet=quiet, told=teller.told)
    return result.exit


COMMANDS = (build, validate)
