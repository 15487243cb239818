"""Write a changed model as an artifact of kind `torch` that a fresh process rebuilds bit-equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.networks.changes import WEIGHTS_ONLY
from edgekit.networks.huggingface import FOLDER
from edgekit.networks.record import RECORD, WEIGHTS, Change, changes_of, copy_file, read_record, write_record
from edgekit.networks.weights import save_state

if TYPE_CHECKING:
    import torch

_CONFIG = "config.json"


def save_network(
    module: torch.nn.Module,
    source: Path,
    out: Path,
    changes: tuple[Change, ...] = (),
    *,
    config: dict[str, Any] | None = None,
    record: dict[str, Any] | None = None,
) -> None:
    """Write what rebuilds `module`: the files of the artifact that it came from, the changes since, and its state.

    Args:
        module: the changed module.
        source: the folder of the artifact that it was rebuilt from.
        out: an empty folder.
        changes: what was done to its structure since, in order; a change of the weights alone need not be given.
        record: what stands for the record of `source`, for a network that was built anew.
        config: for a model of transformers whose configuration says its new structure: what `config.json` becomes.

    Raises:
        InputError: the state holds something that is not a dense tensor with data.
    """
    record = read_record(source) if record is None else record
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_file() and not _replaced(name):
            copy_file(path, out / name)
    if config is not None:
        (out / FOLDER / _CONFIG).unlink()
        (out / FOLDER / _CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    aliases = save_state(module, out / WEIGHTS)
    before = changes_of(record)
    after = (*before, *changes) if changes or before else (Change(kind=WEIGHTS_ONLY),)
    told = [{"kind": change.kind, "details": change.details} for change in after]
    write_record(out, {**record, "aliases": aliases, "changes": told})


def _replaced(name: str) -> bool:
    """Say whether a file holds the state of the model before, or the record."""
    folder, _, file = name.rpartition("/")
    weights = file.endswith((".safetensors", ".safetensors.index.json"))
    return name in (RECORD, WEIGHTS) or (folder == FOLDER and weights)
