"""The three ways from a network to an ONNX graph: torch's exporter, that of transformers, and torch's legacy one."""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.networks.network import Network, evaluating, flatten

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch

INNER = "m"
"""Name under which the exported wrapper holds the module: initializers start with `m.` until `finish` removes it."""

LEGACY_OPSET = 17


def paths_for(network: Network) -> tuple[str, ...]:
    """Name the exporters worth trying, first to last."""
    if network.program is not None:
        return ("dynamo",)
    return ("dynamo", "transformers", "torchscript") if network.pretrained else ("dynamo", "torchscript")


def decides_by_data(error: BaseException | None) -> bool:
    """Say whether an export failed because the model's Python code looks at values: a trace would fix what it saw."""
    while error is not None:
        if type(error).__name__ in ("GuardOnDataDependentSymNode", "DataDependentOutputException"):
            return True
        error = error.__cause__
    return False


def export(network: Network, path: str, opset: int, outputs: list[str]) -> ir.Model:
    """Export by one of `paths_for`; raises whatever that exporter raises."""
    import torch

    with torch.no_grad(), evaluating(network.module), _quiet():
        if path == "dynamo":
            return _dynamo(network, opset, outputs)
        if path == "transformers":
            return _transformers(network, opset)
        return _torchscript(network, outputs)


def _dynamo(network: Network, opset: int, outputs: list[str]) -> ir.Model:
    import torch

    options: dict[str, Any] = {
        "opset_version": opset,
        "output_names": outputs,
        "dynamo": True,
        "verbose": False,
    }
    if network.program is not None:
        program = torch.onnx.export(network.program, (), **options)
    else:
        feed = network.feed(network.sizes)
        axes = tuple(network.axes.get(name) or None for name in feed)
        shapes = {"values": axes} if any(axes) else None
        wrapper = _wrapped(network)
        program = torch.onnx.export(
            wrapper, tuple(feed.values()), dynamic_shapes=shapes, input_names=list(feed), **options
        )
    assert program is not None
    return program.model


def _transformers(network: Network, opset: int) -> ir.Model:
    import torch
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    feed = network.feed(network.sizes)
    dynamic = torch.export.Dim.DYNAMIC
    shapes = {name: dict.fromkeys(network.axes.get(name, {}), dynamic) or None for name in feed}
    config = OnnxConfig(opset_version=opset, dynamic=False, dynamic_shapes=shapes)
    made: ir.Model = OnnxExporter().export(copy.copy(network.module), dict(feed), config).program
    return made


def _torchscript(network: Network, outputs: list[str]) -> ir.Model:
    import onnx_ir as ir
    import torch

    feed = network.feed(network.sizes)
    axes = {name: dict(table) for name, table in network.axes.items() if table}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        torch.onnx.export(
            _wrapped(network),
            tuple(feed.values()),
            path,
            dynamo=False,
            opset_version=LEGACY_OPSET,
            input_names=list(feed),
            output_names=outputs,
            dynamic_axes=axes or None,
            verbose=False,
        )
        model = ir.load(path)
        ir.external_data.load_to_model(model)
    return model


def _wrapped(network: Network) -> torch.nn.Module:
    """Return a module that takes the inputs by position and returns the outputs as a flat tuple."""
    import torch

    names = list(network.examples)
    call = network.call

    class Wrapper(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            setattr(self, INNER, inner)

        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            feed = dict(zip(names, values, strict=True))
            found = call(feed) if call else getattr(self, INNER)(**feed)
            return tuple(flatten(found, taken=set(names)).values())

    wrapper = Wrapper(network.module)
    wrapper.training = False
    return wrapper


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' hints out of the log: what matters becomes a finding or an error."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
