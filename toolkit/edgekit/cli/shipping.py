"""`edgekit package`, `edgekit verify`, `edgekit run` and `edgekit keygen`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgekit.cli.options import json_option


@click.command()
@click.argument("artifact")
@click.option("--sign", metavar="KEY", help="Sign with this Ed25519 private key (PEM): edgekit keygen.")
@click.option("--out", metavar="DIR", help="Where the package goes (default: edgekit-out).")
@json_option
def package(artifact: str, sign: str | None, out: str | None, as_json: bool) -> int:
    """Package ARTIFACT of the store again: what build does last."""
    from edgekit.build import repackage
    from edgekit.cli.printing import print_result

    result = repackage(artifact, sign=sign, out=out)
    print_result(result, as_json=as_json)
    return result.exit


@click.command()
@click.argument("package_path", metavar="PACKAGE")
@click.option("--key", metavar="PUBLIC_KEY", help="Demand a signature by this key (PEM).")
@click.option("--no-golden", is_flag=True, help="Check hashes and the signature only.")
@json_option
def verify(package_path: str, key: str | None, no_golden: bool, as_json: bool) -> int:
    """Check a package: every hash, the signature, and that the model still gives its golden outputs."""
    from edgekit.cli.printing import console_for_stdout, print_json, rows_table
    from edgekit.verify import verify_package

    report = verify_package(Path(package_path), key=Path(key) if key else None, golden=not no_golden)
    if as_json:
        print_json({"status": "pass", "exit": 0, "error": None, **report.to_dict()})
    else:
        console_for_stdout().print(rows_table("verify", ("check", "result"), report.rows()))
    return 0


@click.command()
@click.argument("package_path", metavar="PACKAGE")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="How many labels to show.")
@click.option("--out", metavar="FILE", help="Write the raw outputs to this .npz file.")
@json_option
def run(package_path: str, inputs: tuple[str, ...], top: int, out: str | None, as_json: bool) -> int:
    """Run a package on images, texts or arrays: preprocessing, model, labelled output."""
    from edgekit.cli.printing import console_for_stdout, print_json, rows_table
    from edgekit.run import run_package

    result = run_package(Path(package_path), inputs, top=top, out=Path(out) if out else None)
    if as_json:
        print_json({"status": "pass", "exit": 0, "error": None, **result.to_dict()})
        return 0
    for title, headings, rows in result.tables():
        console_for_stdout().print(rows_table(title, headings, rows))
    return 0


@click.command()
@click.argument("path", metavar="FILE")
@json_option
def keygen(path: str, as_json: bool) -> int:
    """Make a key pair to sign packages with: FILE (private) and FILE.pub."""
    from edgekit.cli.printing import console_for_stdout, print_json
    from edgekit.signing import generate_key

    made: dict[str, Any] = {"private": path, "public": str(generate_key(Path(path)))}
    if as_json:
        print_json(made)
    else:
        console_for_stdout().print(f"private key: {made['private']}\npublic key: {made['public']}")
    return 0


COMMANDS = (package, verify, run, keygen)
