"""Peak memory of activations: when each tensor lives, and where it would lie in one arena.

The rules, which are onnxruntime's:

- What a fused kernel makes for itself takes no memory; a view shares the memory of what it shows.
- A model's inputs live from the start until their last reader, its outputs from when they are made until the end.
- In place: a kernel that is pointwise throughout may write over one input that nobody reads afterwards, that is as
  large and no input of the model.
- Concat, Split and Slice copy: what they read and what they make live at once. A runtime whose kernels write into a
  part of a larger tensor, as TensorRT does for some, needs less.

The arena is filled greedily by size (Pisarchyk and Lee 2020): the largest tensors first, each at the lowest offset
that is free all its life. Alignment is 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgekit.graphs.cost import Cost
from edgekit.graphs.fusion import PLAIN, Group, Rules, aliases, fuse

ALIGNMENT = 64
"""Bytes to whose multiples tensors are laid out."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Memory for activations.

    Attributes:
        live_bytes: the most that lives at one time: no allocator can do with less under the rules.
        arena_bytes: the arena that a greedy allocator needs; at least `live_bytes`.
        node: during which node most lives.
        tensors: what lives then, largest first: (name, bytes).
    """

    live_bytes: int
    arena_bytes: int
    node: str
    tensors: tuple[tuple[str, int], ...]


@dataclass
class _Block:
    """Memory that one or more tensors use one after another: born before step `start`, gone after step `stop`."""

    name: str
    size: int
    start: int
    stop: int


def plan_memory(cost: Cost, rules: Rules = PLAIN) -> MemoryPlan:
    """Plan the memory of a model's activations.

    Args:
        cost: what the model costs, for the shapes of the run.
        rules: what the runtime fuses.
    """
    groups = fuse(cost, rules)
    blocks = _blocks(cost, groups)
    if not blocks:
        return MemoryPlan(live_bytes=0, arena_bytes=0, node="", tensors=())
    events = [0] * (len(groups) + 2)
    for block in blocks:
        events[block.start] += block.size
        events[block.stop + 1] -= block.size
    live, peak, at = 0, -1, 0
    for step, change in enumerate(events[: len(groups) or 1]):
        live += change
        if live > peak:
            peak, at = live, step
    alive = sorted((block for block in blocks if block.start <= at <= block.stop), key=lambda block: -block.size)
    return MemoryPlan(
        live_bytes=peak,
        arena_bytes=_arena(blocks),
        node=groups[at].rows[0].node if groups else "",
        tensors=tuple((block.name, block.size) for block in alive),
    )


def _blocks(cost: Cost, groups: Sequence[Group]) -> list[_Block]:
    """Return the memory that tensors need, with first and last step."""
    end = max(len(groups) - 1, 0)
    stops = {read: step for step, group in enumerate(groups) for read in group.reads}
    alias = aliases(cost)
    stops.update(dict.fromkeys((alias.get(name, name) for name in cost.outputs), end))
    home = {
        name: _Block(name, _aligned(cost.sizes[name]), 0, stops.get(name, 0))
        for name in cost.shapes
        if cost.sizes.get(name)
    }
    made = list(home.values())
    for step, group in enumerate(groups):
        for name in group.writes:
            if not cost.sizes.get(name) or name in home:
                continue
            stop = max(stops.get(name, step), step)
            old = _overwritten(group, name, cost, home, step)
            if old is None:
                old = _Block(name, _aligned(cost.sizes[name]), step, stop)
                made.append(old)
            old.stop = stop
            home[name] = old
    return made


def _overwritten(group: Group, name: str, cost: Cost, home: dict[str, _Block], step: int) -> _Block | None:
    """Return the memory that a pointwise kernel may write over."""
    if any(row.kind != "elementwise" for row in group.rows) or len(group.writes) != 1:
        return None
    for read in group.reads:
        block = home.get(read)
        fits = block is not None and block.stop == step and block.size == _aligned(cost.sizes.get(name, 0))
        if block is not None and fits and block.name not in cost.shapes:
            return block
    return None


def _arena(blocks: Sequence[_Block]) -> int:
    """Return the size of an arena that holds all blocks: largest first, each at the lowest offset that is free."""
    placed: list[tuple[int, _Block]] = []
    size = 0
    for block in sorted(blocks, key=lambda block: (-block.size, block.start)):
        offset = 0
        for start, other in placed:
            if other.stop < block.start or other.start > block.stop:
                continue
            if start - offset >= block.size:
                break
            offset = max(offset, start + other.size)
        placed.append((offset, block))
        placed.sort(key=lambda item: item[0])
        size = max(size, offset + block.size)
    return size


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
