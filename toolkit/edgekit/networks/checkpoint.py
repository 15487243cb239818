"""Checkpoints of a training as one safetensors file: written aside, then renamed, so that a kill leaves the last one.

Metadata holds the progress as JSON; tensors are named `model/...`, `best/...`, and `optimizer/<parameter>/<entry>`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FILE = "checkpoint.safetensors"
State = dict[str, "torch.Tensor"]


def unique_state(module: torch.nn.Module) -> State:
    """Return copies of a module's parameters and buffers, persistent or not, each shared tensor once."""
    found: State = {}
    seen: set[int] = set()
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if id(value) not in seen:
            seen.add(id(value))
            found[name] = value.detach().cpu().clone()
    return found


def load_unique(module: torch.nn.Module, state: State) -> None:
    """Copy such a state back into the tensors of the module."""
    import torch

    own = dict([*module.named_parameters(), *module.named_buffers()])
    with torch.no_grad():
        for name, value in state.items():
            own[name].copy_(value)


def write_checkpoint(
    folder: Path, progress: dict[str, Any], model: State, best: State, optimizer: torch.optim.Optimizer
) -> None:
    """Write where a training stands; the file of before is there until the new one is whole."""
    import torch
    from safetensors.torch import save_file

    tensors = {f"model/{name}": value for name, value in model.items()}
    tensors |= {f"best/{name}": value for name, value in best.items()}
    for number, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            kept = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
            tensors[f"optimizer/{number}/{key}"] = kept.detach().cpu()
    plain = {name: value.contiguous().clone() for name, value in tensors.items()}
    made = folder / f".{FILE}"
    save_file(plain, made, metadata={"progress": json.dumps(progress)})
    with made.open("rb") as file:
        os.fsync(file.fileno())
    made.replace(folder / FILE)


def read_checkpoint(
    folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], State] | None:
    """Bring module and optimizer to where a training stood; return its progress and best state, None without one."""
    from safetensors import SafetensorError, safe_open

    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, "pt") as file:
            progress: dict[str, Any] = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, KeyError, ValueError, TypeError):
        return None
    load_unique(module, _below(tensors, "model/"))
    entries: dict[int, dict[str, Any]] = {}
    for name, value in _below(tensors, "optimizer/").items():
        number, _, key = name.partition("/")
        entries.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
    return progress, _below(tensors, "best/")


def _below(tensors: State, prefix: str) -> State:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
