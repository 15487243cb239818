"""Turn a user's MODEL into the files and facts of an artifact of kind `torch`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from edgekit import events
from edgekit.errors import InputError
from edgekit.networks import hub
from edgekit.networks.child import run_in_child
from edgekit.networks.huggingface import intake_directory
from edgekit.networks.program import intake_program
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
        Facts: `kind` ("torch"), `task`, `labels`, `preprocessing`, `licence` (a name, may be empty), `licence_file`
        (in `out`, where there is one), `source`, `findings`; and for a factory `read`: the absolute paths of the
        files that the result depends on. Drop `kind` and `read` before the facts are hashed.

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


def _intake_factory(model: str, out: Path, weights: Path | None, listen: events.Listener) -> dict[str, Any]:
    match = _FACTORY.fullmatch(model)
    if match is None:
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
