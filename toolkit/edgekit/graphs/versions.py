"""IR versions and operator sets: what the installed onnx and onnxruntime read, and bringing models there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.errors import EdgekitError, InputError
from edgekit.events import Finding
from edgekit.graphs.edit import drop_inputs_of_constants, load_model, name_nodes, opset_of, sort_nodes
from edgekit.graphs.feeds import index_bounds, random_feed
from edgekit.graphs.lower import SIGNED_OPSET, is_signed, lower_opset
from edgekit.graphs.saving import save_model
from edgekit.graphs.storage import is_external, tensors_in

if TYPE_CHECKING:
    import onnx

WANTED_OPSET = 13
"""Per-channel quantization and many runtimes need it; older models are brought up to it."""

OLDEST_OPSET = 7
"""The first opset that onnxruntime's kernels start with; of older ones it runs only operators that never changed."""

_TOLERANCE = 1e-5


@functools.cache
def runtime_limits() -> tuple[int, int]:
    """Return the highest IR version and the highest opset that both onnx and onnxruntime read, found by trying."""
    import onnx

    top_ir, top_opset = onnx.IR_VERSION, onnx.defs.onnx_opset_version()
    opset = next((n for n in range(top_opset, 6, -1) if _loads(8, n)), 0)
    ir = next((n for n in range(top_ir, 2, -1) if _loads(n, min(opset, 13))), 0)
    if not opset or not ir:
        raise EdgekitError("the installed onnxruntime does not load a one-node model")
    return ir, opset


def _loads(ir: int, opset: int) -> bool:
    import onnx
    import onnxruntime

    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "probe", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001 - any failure means that this version is not read
        return False
    return True


def check_versions(model: onnx.ModelProto) -> list[Finding]:
    """Compare a model's versions with what is installed; an IR version that is only a number too high is lowered.

    Raises:
        InputError: the opset or the IR version is newer than what is installed reads; names both numbers.
    """
    ir, opset = runtime_limits()
    remedy = (
        "Export the model with an older version (opset 17 to 20 suit most devices), or update onnx and onnxruntime."
    )
    found = opset_of(model)
    if found > opset:
        raise InputError(f"opset {found} is newer than the runtime reads (maximum supported: {opset})", remedy=remedy)
    if model.ir_version <= ir:
        return []
    text = f"IR version {model.ir_version} is newer than the runtime reads (maximum supported: {ir})"
    if _has_unknown_fields(model):
        raise InputError(text, remedy=remedy)
    model.ir_version = ir
    return [
        Finding(
            severity="note", node="", rule="ir-lowered", text=f"{text}; the model uses nothing of it and was lowered"
        )
    ]


def _has_unknown_fields(model: onnx.ModelProto) -> bool:
    plain: onnx.ModelProto = type(model)()
    plain.CopyFrom(model)
    plain.DiscardUnknownFields()
    return bool(plain.ByteSize() != model.ByteSize())


def raise_opset(path: Path) -> list[Finding]:
    """Bring a model file older than `WANTED_OPSET` up to it, when the converted model gives the same results.

    The file is replaced; when conversion or comparison is not possible the model stays as it is and a finding says
    why.
    """
    model = load_model(path)
    before = opset_of(model)
    if before >= WANTED_OPSET:
        return []
    fault = _replaced(path, model, _convert)
    if fault is not None:
        return [
            Finding(
                severity="warning",
                node="",
                rule="old-opset",
                text=f"opset {before} stays: it could not be brought up to {WANTED_OPSET} ({fault})",
                remedy=f"Export the model with opset {WANTED_OPSET} or newer.",
            )
        ]
    text = f"opset {before} was brought up to {WANTED_OPSET}; results agree on random inputs"
    return [Finding(severity="note", node="", rule="opset-raised", text=text)]


def lower_signed(path: Path) -> list[Finding]:
    """Bring a model file with signed activations down to `SIGNED_OPSET`: of newer ones onnxruntime loads only some."""
    model = load_model(path)
    before = opset_of(model)
    if not is_signed(model) or before <= SIGNED_OPSET:
        return []
    fault = _replaced(path, model, lambda found: lower_opset(found, SIGNED_OPSET))
    why = f"which onnxruntime loads on x86 when activations are signed (of {before} not always)"
    if fault is not None:
        text = f"opset {before} stays: it could not be lowered to {SIGNED_OPSET}, {why}: {fault}"
        return [Finding(severity="warning", node="", rule="signed-opset", text=text)]
    text = f"opset {before} was lowered to {SIGNED_OPSET}, {why}; results agree on random inputs"
    return [Finding(severity="note", node="", rule="opset-lowered", text=text)]


def _replaced(path: Path, model: onnx.ModelProto, convert: Callable[[onnx.ModelProto], onnx.ModelProto]) -> str | None:
    """Convert a model file when results stay; else leave it and return why."""
    converted = path.with_name("converted.onnx")
    try:
        if any(is_external(tensor) for tensor in tensors_in(model)):
            raise InputError("models with external data are not converted")
        save_model(convert(model), converted)
        _agree(path, converted, model)
        converted.replace(path)
    except EdgekitError as error:
        converted.unlink(missing_ok=True)
        return error.text
    return None


def _convert(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnx

    try:
        new = onnx.version_converter.convert_version(model, WANTED_OPSET)
    except Exception as error:  # noqa: BLE001 - the converter raises ConvertError, RuntimeError, IndexError and more
        raise InputError(f"the converter fails: {' '.join(str(error).split())[:200]}") from None
    drop_inputs_of_constants(new.graph)
    names = [value.name for value in (*model.graph.input, *model.graph.output)]
    if names != [value.name for value in (*new.graph.input, *new.graph.output)]:
        raise InputError("the converter changes inputs or outputs")
    for ours, theirs in ((model.graph.input, new.graph.input), (model.graph.output, new.graph.output)):
        for old, made in zip(ours, theirs, strict=True):
            made.CopyFrom(old)
    del new.metadata_props[:]
    new.metadata_props.extend(model.metadata_props)
    new.producer_name, new.producer_version = model.producer_name, model.producer_version
    new.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(new.opset_import, ignore_unknown=True))
    sort_nodes(new.graph)
    name_nodes(new)
    return new


def _agree(left: Path, right: Path, model: onnx.ModelProto) -> None:
    """Raise InputError unless two model files give the same on two random inputs."""
    from edgekit.graphs.dynamic import working_sizes
    from edgekit.graphs.facts import spec_of
    from edgekit.graphs.sessions import difference, open_session, run

    specs = [spec_of(value) for value in model.graph.input]
    bounds = index_bounds(model, specs)
    old, new = open_session(left), open_session(right)
    sizes, reason = working_sizes(old, specs, bounds)
    if sizes is None:
        raise InputError(f"results cannot be compared: {reason}")
    for seed in (0, 1):
        feed = random_feed(specs, sizes, bounds, seed=seed)
        want, got = run(old, feed), run(new, feed)
        worst: Any = max((difference(want[name], got[name]), name) for name in want)
        if worst[0] > _TOLERANCE:
            raise InputError(f"results of '{worst[1]}' differ by {worst[0]:.1e}")
