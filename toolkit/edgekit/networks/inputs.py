"""Example inputs of a plain module: from shapes that the user gives, or from the module itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgekit import events
from edgekit.errors import InputError
from edgekit.networks.network import BATCH, Axes, Network, checks_for

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, list[int | str]]
"""Input name -> one entry per axis: a size, or `name=SIZE` for a dynamic axis and the size to try it at."""

DEFAULT_SIZES = {BATCH: 2, "sequence": 16}
_REMEDY = "Give its shape, e.g. --shape x=1x3x224x224, or let the module have `example_inputs`."


def with_inputs(module: torch.nn.Module, shapes: Shapes, dtypes: Mapping[str, str]) -> Network:
    """Return the network of a plain module: inputs from `shapes`, or from the module's own `example_inputs`.

    `example_inputs` is a tensor, a tuple or a dict of tensors, or a method that returns one. Axis 0 is the batch;
    further dynamic axes can be named by an attribute `dynamic_axes` ({input: {axis: name}}).

    Raises:
        InputError: neither is there, or they do not fit `forward`.
    """
    if shapes:
        examples, axes, sizes = from_shapes(shapes, dtypes)
    else:
        examples = _own_examples(module)
        axes = {name: {0: BATCH} for name, value in examples.items() if _has_batch(value, examples)}
        for name, table in dict(getattr(module, "dynamic_axes", {})).items():
            axes.setdefault(str(name), {}).update({int(axis): str(label) for axis, label in table.items()})
        sizes = {label: int(examples[name].shape[axis]) for name in axes for axis, label in axes[name].items()}
        sizes |= {BATCH: DEFAULT_SIZES[BATCH]} if BATCH in sizes else {}
    call = None if set(examples) <= {*_keywords(module)} else (lambda feed: module(*feed.values()))
    module, examples, findings = _widened(module, examples)
    return Network(
        module=module,
        examples=examples,
        axes=axes,
        sizes=sizes,
        checks=checks_for(sizes, examples, axes),
        call=call,
        findings=findings,
    )


def _widened(
    module: torch.nn.Module, examples: dict[str, torch.Tensor]
) -> tuple[torch.nn.Module, dict[str, torch.Tensor], tuple[events.Finding, ...]]:
    """Turn floats of 16 bits into float32, which is exact: the stages decide about precision."""
    import torch

    narrow = (torch.float16, torch.bfloat16)
    names = [name for name, value in module.state_dict().items() if value.dtype in narrow]
    if not names:
        return module, examples, ()
    wide = {name: value.float() if value.dtype in narrow else value for name, value in examples.items()}
    text = f"{len(names)} tensors of 16 bits are widened to float32, which changes no value"
    return (
        module.float(),
        wide,
        (events.Finding(severity="note", node=names[0], rule="widened-weights", text=text),),
    )


def from_shapes(shapes: Shapes, dtypes: Mapping[str, str]) -> tuple[dict[str, torch.Tensor], Axes, dict[str, int]]:
    """Make seeded example inputs of given shapes; see `Shapes`. Axis 0 is the batch whatever size is given for it.

    Raises:
        InputError: a shape or a dtype that is none.
    """
    examples: dict[str, torch.Tensor] = {}
    axes: Axes = {}
    sizes: dict[str, int] = {}
    for name, entries in shapes.items():
        shape: list[int] = []
        axes[name] = {}
        for axis, entry in enumerate(entries):
            label, size = (BATCH, DEFAULT_SIZES[BATCH]) if axis == 0 else _axis(name, entry)
            if label:
                axes[name][axis] = label
                sizes[label] = size
            shape.append(max(size, 3) if label == BATCH else size)
        examples[name] = _made(shape, dtypes.get(name, "float32"), name)
    if unknown := sorted(set(dtypes) - set(shapes)):
        raise InputError("a dtype without a shape", where=unknown[0], remedy="Give `shapes` for this input too.")
    return examples, axes, sizes


def _own_examples(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    import torch

    found = getattr(module, "example_inputs", None)
    found = found() if callable(found) else found
    if found is None:
        raise InputError("nothing says what to feed the model", where=type(module).__name__, remedy=_REMEDY)
    if isinstance(found, torch.Tensor):
        found = (found,)
    if isinstance(found, (tuple, list)):
        names = list(_keywords(module))
        names += [f"input_{index}" for index in range(len(names), len(found))]
        found = dict(zip(names, found, strict=False))
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(
            "`example_inputs` must be a tensor, a tuple or a dict of tensors",
            where=type(module).__name__,
            remedy=_REMEDY,
        )
    return {str(name): value.detach().cpu() for name, value in found.items()}


def _has_batch(value: torch.Tensor, examples: dict[str, torch.Tensor]) -> bool:
    first = next(iter(examples.values()))
    return value.dim() > 0 and first.dim() > 0 and value.shape[0] == first.shape[0]


def _keywords(module: torch.nn.Module) -> list[str]:
    parameters = inspect.signature(module.forward).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _axis(name: str, entry: int | str) -> tuple[str, int]:
    if isinstance(entry, int) and not isinstance(entry, bool) and entry > 0:
        return "", entry
    label, _, size = str(entry).partition("=")
    if label.isidentifier() and (size.isdigit() or label in DEFAULT_SIZES) and size != "0":
        return label, int(size) if size else DEFAULT_SIZES[label]
    raise InputError(
        f"{entry!r} is no axis",
        where=f"shapes: {name}",
        remedy="Write a size, or `name=SIZE` for a dynamic axis.",
    )


def _made(shape: list[int], dtype: str, name: str) -> torch.Tensor:
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise InputError(f"{dtype!r} is no dtype of torch", where=f"dtypes: {name}", remedy="E.g. float32 or int64.")
    generator = torch.Generator().manual_seed(0)
    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind)
    return torch.randint(0, 2, shape, generator=generator).to(kind)
