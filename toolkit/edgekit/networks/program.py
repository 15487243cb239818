"""Models from a `.pt2` exported program: checked without torch, then read by torch in a child process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit import events
from edgekit.artifact import sha256_file
from edgekit.errors import InputError, UnsupportedError
from edgekit.networks.archive import rewrite
from edgekit.networks.child import Tell, run_in_child
from edgekit.networks.huggingface import license_of
from edgekit.networks.record import EXAMPLES, PROGRAM, write_record

if TYPE_CHECKING:
    import torch

ENVIRONMENT = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}
"""Makes every `torch.load` of the child refuse pickled objects, whatever its caller asks for."""

_EVAL = "Call `model.eval()` before `torch.export.export`, and export again."
_NO_SAMPLES = events.Finding(
    severity="note",
    node=PROGRAM,
    rule="no-sample-inputs",
    text="the program has no sample inputs: random ones of its shapes are used to check the export",
)


def intake_program(path: Path, out: Path, listen: events.Listener = events.ignore) -> dict[str, Any]:
    """Write the files of an exported program into `out` and return the artifact's facts.

    Raises:
        InputError: the archive is broken, needs pickle, could run code, or was exported in training mode.
        UnsupportedError: it holds what edgekit does not read; see `archive.rewrite`.
    """
    samples = rewrite(path, out / PROGRAM)
    with tempfile.TemporaryDirectory() as scratch:
        pickled = Path(scratch) / "samples"
        pickled.write_bytes(samples)
        arguments = {
            "out": os.fspath(out.resolve()),
            "samples": os.fspath(pickled),
            "origin": sha256_file(path),
        }
        facts: dict[str, Any] = run_in_child(
            "edgekit.networks.program:inspect_program", arguments, listen=listen, environment=ENVIRONMENT
        )
    facts["license"] = license_of(path.resolve().parent)
    for finding in facts["findings"]:
        listen(events.Found(finding=msgspec.convert(finding, events.Finding)))
    return facts


def inspect_program(arguments: dict[str, Any], _tell: Tell) -> dict[str, Any]:
    """Load the checked program, write its sample inputs as safetensors and its record. Runs in a child process."""
    import torch
    from safetensors.torch import save_file

    out = Path(arguments["out"])
    program = load_program(out)
    _check_inference(program)
    tensors, findings = _samples(program, Path(arguments["samples"]))
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, out / EXAMPLES)
    write_record(out, {"from": "exported-program", "inputs": list(tensors), "origin": arguments["origin"]})
    return {
        "kind": "torch",
        "task": "",
        "labels": [],
        "preprocessing": {},
        "source": {"from": "exported-program", "torch": torch.__version__.partition("+")[0]},
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }


def load_program(folder: Path) -> torch.export.ExportedProgram:
    """Read the `program.pt2` of an artifact; its archive was checked when it was taken in.

    Raises:
        InputError: the installed torch cannot read it.
    """
    import torch

    try:
        return torch.export.load(folder / PROGRAM)
    except Exception as error:
        raise InputError(
            f"torch {torch.__version__} cannot read the program: {type(error).__name__}: {str(error)[:500]}",
            where=PROGRAM,
            remedy="Export it again with this version of torch.",
        ) from error


def user_inputs(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the program's tensor inputs in order: name -> fake tensor of its dtype and (symbolic) shape.

    Raises:
        UnsupportedError: an input that is neither a tensor nor a constant of the program.
    """
    import torch

    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    found: dict[str, torch.Tensor] = {}
    for name in names:
        value = nodes[name].meta.get("val") if name in nodes else None
        if not isinstance(value, torch.Tensor):
            raise UnsupportedError(
                f"the input is {type(value).__name__}, not a tensor",
                where=name,
                remedy="Export the program with tensor inputs only.",
            )
        found[name] = value
    return found


def _check_inference(program: torch.export.ExportedProgram) -> None:
    """Refuse a program exported in training mode: its dropout is random and its BatchNorm uses the batch."""
    for node in program.graph.nodes:
        name = str(node.target)
        values = [*node.args, *node.kwargs.values()]
        dropout = "dropout" in name and True in [value for value in values if isinstance(value, bool)]
        norm = "batch_norm" in name and len(node.args) > 5 and node.args[5] is True  # noqa: PLR2004 - `training`
        if node.op == "call_function" and (dropout or norm):
            raise InputError(f"the program was exported in training mode ({name})", where=node.name, remedy=_EVAL)
    if program.graph_signature.buffers_to_mutate:
        raise UnsupportedError(
            "the program changes its own buffers when it runs",
            where=next(iter(program.graph_signature.buffers_to_mutate.values())),
            remedy=_EVAL,
        )


def _samples(
    program: torch.export.ExportedProgram, pickled: Path
) -> tuple[dict[str, torch.Tensor], list[events.Finding]]:
    import torch
    from torch.utils import _pytree

    wanted = user_inputs(program)
    if pickled.stat().st_size:
        try:
            loaded = torch.load(pickled, weights_only=True)
        except Exception as error:
            raise InputError(
                f"the sample inputs need pickle: {str(error)[:300]}",
                where="data/sample_inputs/model.pt",
                remedy="Export the program with plain tensors as example inputs.",
            ) from error
        tensors = [leaf for leaf in _pytree.tree_leaves(loaded) if isinstance(leaf, torch.Tensor)]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if len(tensors) == len(wanted) and all(len(a) == b.dim() for a, b in zip(shapes, wanted.values(), strict=True)):
            return dict(zip(wanted, tensors, strict=True)), []
    return {name: _random(value) for name, value in wanted.items()}, [_NO_SAMPLES]


def _random(fake: torch.Tensor) -> torch.Tensor:
    import torch

    shape = [_hint(size) for size in fake.shape]
    generator = torch.Generator().manual_seed(0)
    if fake.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(fake.dtype)
    return torch.ones(shape, dtype=fake.dtype)


def _hint(size: Any) -> int:
    """Return a size, or what a symbolic size was when the program was exported."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return int(hint) if hint is not None else 2
