"""What a model costs: multiply-accumulates, bytes, parameters and shapes of every node, exactly."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from edgekit.artifact import MAIN, TensorSpec
from edgekit.errors import InputError, UsageError, did_you_mean
from edgekit.graphs.child import run_task
from edgekit.graphs.edit import drop_inputs_of_constants, load_model, name_nodes
from edgekit.graphs.facts import spec_of
from edgekit.graphs.feeds import index_bounds, random_feed, save_feeds
from edgekit.graphs.normal import settle_dims
from edgekit.graphs.rows import Counter
from edgekit.graphs.scope import Scope, tensor_type
from edgekit.graphs.shapes import DATA_DEPENDENT, analyze

if TYPE_CHECKING:
    import onnx

Kind = Literal["compute", "depthwise", "grouped", "elementwise", "other", "view", "quantize"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One node that does something at run time.

    Attributes:
        node: its name.
        op: its operator.
        kind: `compute` (multiply-accumulates), `depthwise` and `grouped` (convolutions), `elementwise`, `view` (moves
            nothing), `quantize` (Q and DQ), `other`.
        macs: multiply-accumulates, exact.
        flops: all operations: twice the macs, and an estimate for the rest.
        parameters: elements of the tensors stored for its weights, counted at the first row that reads them.
        weight_bytes: their bytes; 0 for weights that are made from a shape alone.
        weight_reads: bytes of weights that it reads: integers behind a DequantizeLinear as they are stored, other
            computed constants as a runtime folds them, of a lookup table only the rows looked up.
        input_bytes: bytes of activations that it reads.
        output_bytes: bytes that it writes.
        dtype: the type it computes in: `int8` when activations and weights are 8-bit integers, also through DQ.
        reads: names of the activations it reads, DequantizeLinear seen through.
        writes: names of what it makes.
        input_shapes: shapes of `reads`.
        output_shapes: shapes of `writes`; empty for values whose shape depends on data.
    """

    node: str
    op: str
    kind: Kind
    macs: int
    flops: int
    parameters: int
    weight_bytes: int
    weight_reads: int
    input_bytes: int
    output_bytes: int
    dtype: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a model costs for given input shapes.

    Attributes:
        rows: its nodes in execution order; nodes that depend on constants only are folded and have none. The rows of
            a loop body stand once per step.
        shapes: input name -> shape that was counted for.
        outputs: names of the model's outputs.
        sizes: bytes of every activation.
        parameters: elements of all distinct weights.
        weight_bytes: bytes of all distinct weights as they are stored.
        held_bytes: the same once a runtime has loaded them, and computed what hangs on constants alone.
        uncounted: nodes whose work is not known (operators of other domains, loops of unknown length).
        unshaped: nodes, none of them doing multiply-accumulates, whose shapes depend on data.
    """

    rows: tuple[Row, ...]
    shapes: dict[str, tuple[int, ...]]
    outputs: tuple[str, ...]
    sizes: dict[str, int]
    parameters: int
    weight_bytes: int
    held_bytes: int
    uncounted: tuple[str, ...] = ()
    unshaped: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one run."""
        return sum(row.macs for row in self.rows)

    @property
    def flops(self) -> int:
        """Operations of one run: two per multiply-accumulate, and the rest."""
        return sum(row.flops for row in self.rows)

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations written in one run."""
        return sum(row.output_bytes for row in self.rows if row.kind != "view")


def cost_of(path: Path, shapes: Mapping[str, Sequence[int]] | None = None) -> Cost:
    """Count what a model costs.

    Args:
        path: a model file, or the folder of an artifact (then its `model.onnx`).
        shapes: input name -> shape. Left out: dynamic first axes are 1, other dynamic axes are an error.

    Raises:
        InputError: an axis without a size; shapes that do not go together; a node that does multiply-accumulates and
            has no static shape. Names the input or node.
        UsageError: a shape for an input that the model does not have, or of another rank.
    """
    file = path / MAIN if path.is_dir() else path
    model = load_model(file)
    drop_inputs_of_constants(model.graph)
    settle_dims(model.graph)
    name_nodes(model)
    specs = [spec_of(value) for value in model.graph.input]
    full = full_shapes(specs, shapes or {})
    scope = analyze(model, file.parent, full)
    known = _by_running(file, model, specs, full, scope)
    if known:
        scope = analyze(model, file.parent, full, known)
    return _count(model, file.parent, scope, full)


def full_shapes(specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Return a fixed shape for every input: the given one, else the declared one with dynamic first axes 1."""
    names = [spec.name for spec in specs]
    for name in shapes:
        if name not in names:
            raise UsageError(
                f"the model has no input '{name}'", where=f"--shape {name}", remedy=did_you_mean(name, names)
            )
    found: dict[str, tuple[int, ...]] = {}
    for spec in specs:
        given = shapes.get(spec.name)
        if given is not None and len(given) != len(spec.shape):
            raise UsageError(
                f"has rank {len(spec.shape)}: {list(spec.shape)}",
                where=f"--shape {spec.name}",
                remedy="Give one size per axis.",
            )
        sizes = list(given) if given is not None else [1 if not axis else dim for axis, dim in enumerate(spec.shape)]
        if given is None:
            sizes = [old if isinstance(old, int) else new for old, new in zip(spec.shape, sizes, strict=True)]
        for axis, size in enumerate(sizes):
            if not isinstance(size, int):
                raise InputError(
                    f"axis {axis} ('{size}') has no size",
                    where=f"input '{spec.name}'",
                    remedy=f"Give one: --shape {spec.name}="
                    + "x".join(str(s) if isinstance(s, int) else "N" for s in sizes),
                )
        found[spec.name] = tuple(int(size) for size in sizes)
    return found


def _by_running(
    file: Path, model: onnx.ModelProto, specs: Sequence[TensorSpec], shapes: dict[str, tuple[int, ...]], scope: Scope
) -> dict[str, onnx.TypeProto]:
    """Find shapes that inference does not reach (operators of other domains) by running the model twice.

    Only shapes that are the same for different values are taken, and none that come from an operator whose output
    shape depends on values.
    """
    import numpy as np
    import onnx

    made = [name for node in model.graph.node for name in node.output if name]
    wanted = [name for name in made if name in scope.lost and scope.lost[name].op_type not in DATA_DEPENDENT]
    if not any(scope.lost[name].domain not in {"", "ai.onnx"} for name in wanted):
        return {}
    bounds = index_bounds(model, specs, file.parent)
    fixed = [TensorSpec(name=spec.name, dtype=spec.dtype, shape=shapes[spec.name]) for spec in specs]
    feeds = [random_feed(fixed, {}, bounds, seed=seed) for seed in (0, 1)]
    with tempfile.TemporaryDirectory(prefix="edgekit-shapes-") as folder:
        names = save_feeds(Path(folder) / "feeds.npz", feeds)
        request = {"model": file.name, "feeds": str(Path(folder) / "feeds.npz"), "names": names, "tensors": wanted}
        size = sum(item.stat().st_size for item in file.parent.iterdir() if item.name.startswith(file.name))
        one, two = run_task("shapes", request, folder=file.parent, size=size)["rows"]
    return {
        name: tensor_type(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(one[name][1])), one[name][0])
        for name in wanted
        if one[name] == two[name]
    }


def _count(model: onnx.ModelProto, folder: Path, scope: Scope, shapes: dict[str, tuple[int, ...]]) -> Cost:
    counter = Counter(model, folder)
    rows = counter.graph(model.graph, scope)
    return Cost(
        rows=tuple(msgspec.convert(row, Row) for row in rows),
        shapes=shapes,
        outputs=tuple(value.name for value in model.graph.output),
        sizes=counter.sizes,
        parameters=sum(elements for elements, _ in counter.stored.values()),
        weight_bytes=sum(size for _, size in counter.stored.values()),
        held_bytes=sum(counter.held.values()),
        uncounted=tuple(counter.uncounted),
        unshaped=tuple(counter.unshaped),
    )
