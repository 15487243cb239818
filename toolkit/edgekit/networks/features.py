"""Intermediate features of a teacher as targets: which layers belong together, hooks, and learned projections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from edgekit.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import torch

MOST = 4
"""Pairs of layers that are matched when none are named."""

_TINY = 1e-8
_RIDGE = 1e-4  # of the mean square of a channel: features of a pruned network may depend on each other

Pairs = tuple[tuple[str, str], ...]
Tensors = dict[str, "torch.Tensor"]


def pair_layers(student: torch.nn.Module, teacher: torch.nn.Module, given: Mapping[str, str]) -> Pairs:
    """Return (student's module, teacher's module) whose outputs are matched; empty when nothing suggests any.

    Args:
        student: the student.
        teacher: the teacher.
        given: student's module -> teacher's module, as the user has them; else the blocks of the longest row of each
            are spread over each other evenly, the last on the last.

    Raises:
        UsageError: a module that is named is not there.
    """
    for names, module, whose in ((given.keys(), student, "student"), (given.values(), teacher, "teacher")):
        known = [name for name, _ in module.named_modules() if name]
        for name in names:
            if name not in known:
                remedy = did_you_mean(name, known)
                raise UsageError(f"the {whose} has no module '{name}'", where="distill: layers", remedy=remedy)
    if given:
        return tuple(given.items())
    mine, theirs = _blocks(student), _blocks(teacher)
    if not mine or not theirs:
        return ()
    count = min(MOST, len(mine), len(theirs))
    shares = [(number + 1) / count for number in range(count)]
    return tuple((mine[round(s * len(mine)) - 1], theirs[round(s * len(theirs)) - 1]) for s in shares)


def _blocks(module: torch.nn.Module) -> list[str]:
    """Return the children with parameters of the container that holds most of the model's blocks, in order."""
    import torch

    best: list[str] = []
    size = 0
    for name, part in module.named_modules():
        if not isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        prefix = f"{name}." if name else ""
        children = [(f"{prefix}{key}", child) for key, child in part.named_children()]
        held = [key for key, child in children if any(True for _ in child.parameters())]
        weight = sum(parameter.numel() for parameter in part.parameters())
        if len(held) > 1 and (2 * weight > size if len(held) > len(best) else weight > 2 * size):
            best, size = held, weight
    return best


@contextmanager
def watched(module: torch.nn.Module, names: Sequence[str]) -> Iterator[Tensors]:
    """Collect the outputs of some modules whenever the whole runs: name -> tensor of the last run."""
    found: Tensors = {}
    parts = dict(module.named_modules())

    def keep(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            value = first_tensor(output)
            if value is not None:
                found[name] = value

        return hook

    hooks = [parts[name].register_forward_hook(keep(name)) for name in dict.fromkeys(names)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def first_tensor(output: Any) -> torch.Tensor | None:
    """Return the first floating-point tensor of a module's output."""
    import torch

    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((found for value in values if (found := first_tensor(value)) is not None), None)


def width_axis(mine: torch.Tensor, theirs: torch.Tensor) -> int | None:
    """Return the axis of the channels of two features that can be matched; None when they cannot be.

    Maps (4 axes or more) have channels on axis 1, sequences and vectors on the last, unless only axis 1 differs.
    """
    if mine.dim() != theirs.dim() or mine.dim() < 2 or mine.shape[0] != theirs.shape[0]:  # noqa: PLR2004
        return None
    if mine.dim() > 3:  # noqa: PLR2004 - batch, channels, height, width
        return 1
    differing = [axis for axis in range(1, mine.dim()) if mine.shape[axis] != theirs.shape[axis]]
    last = mine.dim() - 1
    if differing in ([], [last]):
        return last
    return 1 if differing == [1] else None


class Matching:
    """The distance between the features of pairs of layers, with a learned projection where widths differ.

    Attributes:
        pairs: those that can be matched.
        projections: a module that holds the projections: it is trained with the student.
        left_out: pairs whose shapes do not go together.
    """

    def __init__(self, pairs: Pairs, mine: Tensors, theirs: Tensors, seed: int) -> None:
        """Look at the features of one batch: `mine` by the student's names, `theirs` by the teacher's."""
        import torch

        torch.manual_seed(seed)
        self.projections = torch.nn.ModuleDict()
        self._axes: dict[str, int] = {}
        for own, other in pairs:
            axis = width_axis(mine[own], theirs[other]) if own in mine and other in theirs else None
            if axis is None:
                continue
            self._axes[own] = axis
            wide, wanted = mine[own].shape[axis], theirs[other].shape[axis]
            if wide != wanted:
                self.projections[_key(own)] = torch.nn.Linear(wide, wanted)
        self.pairs = tuple(pair for pair in pairs if pair[0] in self._axes)
        self.left_out = tuple(pair for pair in pairs if pair[0] not in self._axes)

    def solve(self, seen: Iterable[tuple[Tensors, Tensors]]) -> None:
        """Set the projections to those of least squares over the features of some batches.

        A projection that starts at random would pull the student towards what it has yet to learn itself.
        """
        import torch

        sums: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for mine, theirs in seen:
            for own, other in self.pairs:
                if _key(own) not in self.projections:
                    continue
                given, wanted = self._rows(own, mine[own], theirs[other])
                given = torch.cat([given, torch.ones_like(given[:, :1])], 1)
                gram, cross = given.T @ given, given.T @ wanted
                known = sums.get(own)
                sums[own] = (gram, cross) if known is None else (known[0] + gram, known[1] + cross)
        for own, (gram, cross) in sums.items():
            ridge = _RIDGE * gram.diagonal().mean().clamp_min(_TINY)
            found = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), cross)
            linear = cast("torch.nn.Linear", self.projections[_key(own)])
            with torch.no_grad():
                linear.weight.copy_(found[:-1].T)
                linear.bias.copy_(found[-1])

    def _rows(self, name: str, mine: torch.Tensor, theirs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both features as float64 rows [positions, channels]."""
        axis = self._axes[name]
        theirs = _as_large_as(mine, theirs)
        flat = [value.detach().double().cpu().movedim(axis, -1) for value in (mine, theirs)]
        return flat[0].reshape(-1, flat[0].shape[-1]), flat[1].reshape(-1, flat[1].shape[-1])

    def loss(self, mine: Tensors, theirs: Tensors) -> torch.Tensor:
        """Return the mean squared error of the features, in units of the teacher's mean square, over all pairs."""
        import torch

        found = [self._one(own, mine[own], theirs[other].detach()) for own, other in self.pairs]
        return torch.stack(found).mean()

    def _one(self, name: str, mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        axis = self._axes[name]
        theirs = _as_large_as(mine, theirs)
        if _key(name) in self.projections:
            mine = self.projections[_key(name)](mine.movedim(axis, -1)).movedim(-1, axis)
        return ((mine - theirs) ** 2).mean() / (theirs**2).mean().clamp_min(_TINY)


def _as_large_as(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the teacher's map averaged to the size of the student's, where they differ."""
    from torch.nn import functional

    if mine.dim() == 4 and mine.shape[2:] != theirs.shape[2:]:  # noqa: PLR2004 - maps
        return functional.adaptive_avg_pool2d(theirs, list(mine.shape[2:]))  # type: ignore[arg-type]  # sizes are ints
    return theirs


def _key(name: str) -> str:
    return name.replace(".", "/") or "/"
