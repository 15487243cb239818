"""Graphs for the tests of the room `graphs`: built from nodes, and a reader that takes them in as `edgekit` would."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgekit.graphs import intake, probe
from edgekit.graphs.files import read_onnx

CASES = Path(__file__).parent / "cases"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def node(op, inputs, outputs, **attributes):
    name = attributes.pop("name", f"{op}_{outputs[0]}")
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def model(nodes, inputs, outputs, weights=None, *, opset=17, ir=8, domains=(), functions=()):
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, version) for name, version in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir, functions=list(functions))


def floats(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def take_in(source: onnx.ModelProto | Path, folder: Path, *, child: bool = False) -> tuple[dict[str, Any], Path]:
    """Write a graph if it is one, read it as an untrusted file; return the facts and the folder it lies in.

    Without `child` the child's work is done in this process, which is ten times as fast and not safe with bombs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(source, onnx.ModelProto):
        path = folder / "given.onnx"
        path.write_bytes(source.SerializeToString())
    else:
        path = source
    out = folder / "taken"
    out.mkdir()
    return read_onnx(path, out) if child else intake.take_in(path, out, lambda _size: None), out


def rules(facts):
    return [finding["rule"] for finding in facts["findings"]]


def run_here(task, request, **_options):
    """Do a child's task in this process: ten times as fast, for tests that are about the result."""
    module, _, name = probe.TASKS[task].partition(":")
    answer = getattr(importlib.import_module(module), name)(**request)
    return json.loads(json.dumps(answer))
