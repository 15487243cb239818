"""Rebuild the module of an artifact of kind `torch`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import UnsupportedError, UsageError
from edgekit.networks.changes import apply_changes
from edgekit.networks.inputs import Shapes, with_inputs
from edgekit.networks.network import BATCH, Axes, Network
from edgekit.networks.record import EXAMPLES, PROGRAM, WEIGHTS, changes_of, read_record
from edgekit.networks.weights import load_state

if TYPE_CHECKING:
    import torch


def rebuild(folder: Path, *, shapes: Shapes | None = None, dtypes: Mapping[str, str] | None = None) -> Network:
    """Rebuild the module of an artifact of kind `torch`: bit-equal weights, tied where they were.

    Args:
        folder: the artifact's files; may be read-only.
        shapes: overrides or adds inputs by name.
        dtypes: dtype of such inputs, as torch names it; float32 when absent.

    Raises:
        InputError: the files do not fit together, or nothing says what to feed.
        UnsupportedError: the kind of model cannot be rebuilt here.
    """
    record = read_record(folder)
    origin = record.get("from")
    if origin == "huggingface":
        from edgekit.networks.pretrained import rebuild_pretrained

        return rebuild_pretrained(folder, record, shapes or {}, dtypes or {})
    if origin == "factory":
        from edgekit.networks.factory import rebuild_factory

        return with_inputs(rebuild_factory(folder, record), shapes or {}, dtypes or {})
    if origin == "exported-program":
        if shapes:
            raise UsageError(
                "an exported program has shapes of its own",
                where="capture: shapes",
                remedy="Leave them out, or export the program with others.",
            )
        return _program_network(folder, record)
    raise UnsupportedError(f"unknown origin {origin!r}", where="record.json", remedy="Use a newer edgekit.")


def _program_network(folder: Path, record: dict[str, Any]) -> Network:
    from safetensors.torch import load_file
    from torch.utils import _pytree

    from edgekit.networks.program import load_program, user_inputs

    program = load_program(folder)
    changed = changes_of(record)
    if changed:
        _load_into(program, folder, record)
    module = apply_changes(program.module(check_guards=False), changed)
    stored = load_file(folder / EXAMPLES)
    examples = {name: stored[name] for name in record["inputs"]}
    axes, sizes, checks = _program_axes(program, user_inputs(program), examples)
    leaves = program.graph_signature.user_inputs
    in_spec = program.call_spec.in_spec

    def call(feed: dict[str, torch.Tensor]) -> Any:
        values = [feed[leaf] if isinstance(leaf, str) and leaf in feed else leaf for leaf in leaves]
        arguments, keywords = _pytree.tree_unflatten(values, in_spec)
        return module(*arguments, **keywords)

    return Network(module=module, examples=examples, axes=axes, sizes=sizes, checks=checks, call=call, program=program)


def _load_into(program: torch.export.ExportedProgram, folder: Path, record: dict[str, Any]) -> None:
    """Give a program the state that stages left: by its own names, which its module has too."""
    import torch

    holder = torch.nn.Module()
    for name, value in program.state_dict.items():
        place = holder
        *parents, last = name.split(".")
        for parent in parents:
            if not hasattr(place, parent):
                place.add_module(parent, torch.nn.Module())
            place = getattr(place, parent)
        place.register_buffer(last, value)  # the same memory: what is loaded is loaded into the program
    load_state(holder, folder / WEIGHTS, record["aliases"], PROGRAM)


def _program_axes(
    program: torch.export.ExportedProgram, inputs: dict[str, torch.Tensor], examples: dict[str, torch.Tensor]
) -> tuple[Axes, dict[str, int], tuple[dict[str, int], ...]]:
    """Name the symbolic sizes of a program and choose sizes within their ranges."""
    labels: dict[str, str] = {}
    axes: Axes = {}
    sizes: dict[str, int] = {}
    small: dict[str, int] = {}
    for name, value in inputs.items():
        for axis, symbol in enumerate(map(str, value.shape)):
            if symbol.isdigit():
                continue
            if not symbol.isidentifier():
                raise UnsupportedError(
                    f"the size of axis {axis} is computed from others ({symbol})",
                    where=name,
                    remedy="Export the program with plain dynamic sizes.",
                )
            first = BATCH if axis == 0 and BATCH not in labels.values() else f"{name}_axis{axis}"
            label = labels.setdefault(symbol, first)
            axes.setdefault(name, {})[axis] = label
            limits = next((limit for key, limit in program.range_constraints.items() if str(key) == symbol), None)
            sizes[label] = int(examples[name].shape[axis])
            small[label] = max(1, int(limits.lower)) if limits is not None else 1
            if small[label] == sizes[label] and (limits is None or int(min(limits.upper, 1 << 30)) > sizes[label]):
                small[label] = sizes[label] + 1
    checks = tuple({tuple(check.items()): check for check in (sizes, small)}.values()) if sizes else ({},)
    return axes, sizes, checks
