"""Write a sample's network as ONNX: the same bytes from the same weights and libraries, and checked against torch."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

OPSET = 18
TOLERANCE = 1e-4
"""Of the largest logit: what float32 sums in another order may differ by."""


def export(network: nn.Module, shape: tuple[int, ...], out: Path) -> float:
    """Write `out` (`x` float32 `[batch, *shape]` -> `logits`, batch size free, opset 18).

    The exporter's notes are taken out: they hold paths of this machine.

    Returns:
        The largest difference to the network's logits at two batch sizes, as a share of the largest logit.
    """
    network = network.eval()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        program = torch.onnx.export(
            network,
            (torch.zeros(2, *shape),),
            dynamo=True,
            opset_version=OPSET,
            input_names=["x"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            verbose=False,
        )
    model = program.model_proto
    _strip(model)
    if [(entry.domain, entry.version) for entry in model.opset_import] != [("", OPSET)]:
        raise SystemExit(f"the exporter wrote {model.opset_import}, not opset {OPSET}")
    onnx.checker.check_model(model, full_check=True)
    out.write_bytes(model.SerializeToString(deterministic=True))
    worst = difference(network, shape, out)
    if worst > TOLERANCE:
        raise SystemExit(f"{out}: differs from the network by {worst:.2e}")
    return worst


def _strip(model: onnx.ModelProto) -> None:
    """Take out notes and inferred shapes, which say nothing that the graph does not."""
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del holder.metadata_props[:]
        holder.doc_string = ""
    del graph.value_info[:]


def difference(network: nn.Module, shape: tuple[int, ...], file: Path) -> float:
    """Return the largest difference between the network's and the file's logits, relative to the largest logit."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in (1, 7):
        x = np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
        with torch.inference_mode():
            wanted = network(torch.from_numpy(x)).numpy()
        (found,) = session.run(["logits"], {"x": x})
        worst = max(worst, float(np.abs(found - wanted).max() / np.abs(wanted).max()))
    return worst
