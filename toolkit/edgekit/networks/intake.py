"""Turn a user's MODEL into the files and facts of an artifact of kind `torch`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from edgekit import events
from edgekit.artifact import sha256_file
from edgekit.errors import InputError
from edgekit.networks import hub
from edgekit.networks.child import run_in_child
from edgekit.networks.huggingface import intake_directory
from edgekit.networks.program import intake_program
from edgekit.networks.record import read_record
from edgekit.networks.sources import local_roots
from edgekit.networks.weights import read_header

_FACTORY = re.compile(r"python:(?P<module>[A-Za-z_][\w.]*):(?P<factory>[A-Za-z_][\w.]*)")
_FORMS = "A model is a Hugging Face directory, a hub id owner/name, python:module:factory, or a .pt2 file."


def intake_torch(
    model: str, out: Path, *, weights: Path | None = None, listen: events.Listener = events.ignore
) -> dict[str, Any]:
    """Write the artifact's files into the empty folder `out` and return its facts.

    Args:
        model: a Hugging Face directory, a hub id `owner/name[@revision]`, `python:module:factory` (imported from the
            current directory), or a `.pt2` file.
        out: an empty folder; gets `record.json` and what rebuilds the module. Nothing in it is a hard link.
        weights: a safetensors file for `python:module:factory`.
        listen: is told of progress and findings.

    Returns:
        Facts: `kind` ("torch"), `task`, `labels`, `preprocessing`, `license` (`name` and `text` where known),
        `source`, `findings`.

    Raises:
        InputError: a wrong or unsafe model. UnsupportedError: it needs what edgekit does not do.
        TargetError: the hub cannot be reached, or a library is missing.
    """
    out.mkdir(parents=True, exist_ok=True)
    if model.startswith("python:"):
        return _intake_factory(model, out, weights, listen)
    if weights is not None:
        raise InputError(
            "weights can only be given for python:module:factory",
            where=str(weights),
            remedy="Leave them out.",
        )
    path = Path(model)
    if path.is_dir():
        return intake_directory(path, out, listen)
    if path.is_file() and path.suffix == ".pt2":
        return intake_program(path, out, listen)
    if path.exists():
        raise InputError("this is no model of PyTorch that edgekit reads", where=model, remedy=_FORMS)
    if not hub.is_hub_id(model):
        raise InputError("no such file or directory", where=model, remedy=_FORMS)
    return _intake_hub(model, out, listen)


def is_current(model: str, folder: Path, *, weights: Path | None = None) -> bool:
    """Say, without importing torch, whether an artifact's folder still is what a factory or program would give now.

    For `python:module:factory` every module and file that the factory used is compared with its recorded hash, for a
    `.pt2` its hash. False for a directory or a hub id: taking those in again costs no more than this check.
    """
    record = read_record(folder)
    if record["from"] == "exported-program":
        path = Path(model)
        return path.is_file() and sha256_file(path) == record["origin"]
    match = _FACTORY.fullmatch(model)
    if record["from"] != "factory" or match is None:
        return False
    if (match["module"], match["factory"]) != (record["module"], record["factory"]):
        return False
    given = sha256_file(weights) if weights is not None and weights.is_file() else ""
    roots = local_roots(record["module"])
    return given == record["weights"] and all(
        _digest_below(name, roots) == digest for name, digest in record["files"].items()
    )


def _digest_below(name: str, roots: list[Path]) -> str:
    path = next((root / name for root in roots if (root / name).is_file()), None)
    return sha256_file(path) if path else ""


def _intake_factory(model: str, out: Path, weights: Path | None, listen: events.Listener) -> dict[str, Any]:
    match = _FACTORY.fullmatch(model)
    if match is None or match["module"].endswith(".py"):
        raise InputError(
            "not of the form python:module:factory",
            where=model,
            remedy="For a function `build` in net.py write python:net:build, in the folder that holds net.py.",
        )
    if weights is not None:
        if not weights.is_file():
            raise InputError("no such file", where=str(weights), remedy="Give a safetensors file.")
        if weights.suffix != ".safetensors":
            raise InputError(
                "weights must be safetensors: other formats are pickles, which can run code",
                where=str(weights),
                remedy="Save them with `safetensors.torch.save_file(model.state_dict(), path)`.",
            )
        read_header(weights)
    arguments = {
        "module": match["module"],
        "factory": match["factory"],
        "weights": os.fspath(weights.resolve()) if weights else "",
        "out": os.fspath(out.resolve()),
    }
    facts: dict[str, Any] = run_in_child("edgekit.networks.factory:create", arguments, listen=listen)
    return facts


def _intake_hub(model: str, out: Path, listen: events.Listener) -> dict[str, Any]:
    environment = {**hub.ENVIRONMENT, "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0")}
    found = run_in_child("edgekit.networks.hub:download", {"model": model}, listen=listen, environment=environment)
    facts = intake_directory(Path(found["folder"]), out, listen)
    facts["source"] = {**facts["source"], "id": found["id"], "revision": found["revision"]}
    return facts
