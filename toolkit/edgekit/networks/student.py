"""A smaller network of the same family: the configuration of a model of transformers with some numbers changed.

It starts from what it can take over: layers spread evenly over those that there were, tensors cut to their first
entries where they got smaller (Sanh et al., 2019; Turc et al., 2019). What there was nothing for starts at random.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import InputError, UnsupportedError, UsageError, did_you_mean
from edgekit.networks.huggingface import FOLDER
from edgekit.networks.record import read_json, read_record
from edgekit.networks.saving import save_network

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"\.(\d+)\.")
_WHERE = "distill: config"


def write_smaller(folder: Path, out: Path, config: Mapping[str, Any], seed: int) -> None:
    """Write the artifact of a smaller network into the empty folder `out`.

    Args:
        folder: the artifact of a model of transformers.
        out: gets the smaller one, with its own `config.json`.
        config: keys of `config.json` and their new values.
        seed: of what starts at random.

    Raises:
        UnsupportedError: the model does not come from transformers.
        UsageError: a key that `config.json` does not have.
        InputError: transformers cannot build such a network.
    """
    import torch

    from edgekit.networks.pretrained import model_from_config
    from edgekit.networks.rebuild import rebuild

    record = read_record(folder)
    if record.get("from") != "huggingface":
        remedy = "Give the smaller network itself as MODEL, and this one with --teacher."
        raise UnsupportedError("only models of transformers have a configuration", where=_WHERE, remedy=remedy)
    known = read_json(folder / FOLDER / "config.json")
    for key in config:
        if key not in known:
            raise UsageError(f"config.json has no '{key}'", where=_WHERE, remedy=did_you_mean(key, list(known)))
    changed = {**known, **config}
    original = rebuild(folder).module
    torch.manual_seed(seed)
    try:
        model = model_from_config(str(record["architecture"]), changed, original)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError, IndexError) as error:
        remedy = "Choose numbers that go together, e.g. a hidden size that the number of heads divides."
        raise InputError(f"no such network: {str(error)[:300]}", where=_WHERE, remedy=remedy) from error
    take_over(model, original)
    plain = {**record, "changes": []}
    save_network(model, folder, out, config=changed, record=plain)


def take_over(student: torch.nn.Module, original: torch.nn.Module) -> None:
    """Copy what fits of the original's state into a smaller network, layers spread evenly."""
    import torch

    mine, theirs = student.state_dict(keep_vars=True), original.state_dict()
    counts = {prefix: (_count(mine, prefix), _count(theirs, prefix)) for prefix in _rows(mine)}
    with torch.no_grad():
        for name, target in mine.items():
            source = theirs.get(_counterpart(name, counts))
            if source is None or source.dim() != target.dim():
                continue
            if any(have < want for have, want in zip(source.shape, target.shape, strict=True)):
                continue
            target.copy_(source[tuple(slice(size) for size in target.shape)])


def _rows(state: Mapping[str, Any]) -> set[str]:
    """Return the names before the first number: `bert.encoder.layer`."""
    return {name[: found.start()] for name in state if (found := _LAYER.search(name))}


def _count(state: Mapping[str, Any], prefix: str) -> int:
    numbers = {
        int(found[1]) for name in state if (found := _LAYER.match(name, len(prefix))) and name.startswith(prefix)
    }
    return len(numbers)


def _counterpart(name: str, counts: Mapping[str, tuple[int, int]]) -> str:
    """Return the original's name for a tensor of the student: the last layer is the last."""
    found = _LAYER.search(name)
    if found is None:
        return name
    prefix = name[: found.start()]
    mine, theirs = counts[prefix]
    number = round((int(found[1]) + 1) * theirs / mine) - 1 if mine else int(found[1])
    return f"{prefix}.{number}.{name[found.end() :]}"
