"""Which kernels onnxruntime really chooses for a quantized graph."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.events import Finding
from edgekit.graphs.edit import graphs_in, load_model
from edgekit.graphs.int8_plan import Plan, Planner

if TYPE_CHECKING:
    import onnx

_KERNELS = {
    "Conv": ("QLinearConv",),
    "Gemm": ("QGemm", "QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulInteger"),
    "MatMul": ("QLinearMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulInteger", "QGemm"),
}
_SILENT = 4


def optimized_ops(model: onnx.ModelProto, folder: Path, *, threads: int = 1, signed: bool = False) -> Counter[str]:
    """Count the operators that onnxruntime runs for a graph, after its own optimizations.

    Args:
        model: the graph.
        folder: where its external data lies.
        threads: CPU threads.
        signed: whether int8 activations are fused, as onnxruntime does on Arm and elsewhere does not.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # layouts of the last level are those of this machine, and change no operator's type that counts here
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.intra_op_num_threads = threads
    options.log_severity_level = _SILENT
    options.add_session_config_entry("session.qdqisint8allowed", "1" if signed else "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    with tempfile.TemporaryDirectory(prefix="edgekit-kernels-") as name:
        path = Path(name) / "optimized.onnx"
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return Counter(node.op_type for graph in graphs_in(load_model(path).graph) for node in graph.node)


def kernel_findings(model: onnx.ModelProto, folder: Path, plan: Plan, planner: Planner, threads: int) -> list[Finding]:
    """Warn when onnxruntime, for which the graph was written, does not run all planned products on integers."""
    if planner.dialect.name != "ort-cpu":
        return []
    planned = Counter(
        node.op_type for node in planner.compute_nodes() if plan.modes.get(node.name) in {"static", "dynamic"}
    )
    if not planned:
        return []
    found = optimized_ops(model, folder, threads=threads, signed=planner.dialect.activation == "int8")
    products = planned["MatMul"] + planned["Gemm"]
    missing = {
        "convolutions": planned["Conv"] - sum(found[op] for op in _KERNELS["Conv"]),
        "matrix products": products - sum(found[op] for op in {*_KERNELS["Gemm"], *_KERNELS["MatMul"]}),
    }
    return [
        Finding(
            severity="warning",
            node="",
            rule="kernel-not-fused",
            text=f"onnxruntime runs {count} of the quantized {what} in float: it does not fuse them",
            remedy="Simplify the model first; edgekit inspect shows its operators.",
        )
        for what, count in missing.items()
        if count > 0
    ]
