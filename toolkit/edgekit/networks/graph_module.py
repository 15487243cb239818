"""A quantized ONNX graph as a torch module that computes what the graph computes, and learns its integers.

Every integer weight is learned as a float in units of its step, rounded where it is used; gradients pass the rounding
straight (Bengio et al., 2013). Scales can be learned too, as LSQ has it (Esser et al., 2020). The graph's own
QuantizeLinear and DequantizeLinear nodes are the only place where values are rounded: what is learned is written back
into the same initializers, and the graph stays what the runtime's dialect made it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from edgekit.errors import UnsupportedError
from edgekit.networks import graph_maps as _maps  # noqa: F401 - enters its operators
from edgekit.networks import graph_ops
from edgekit.networks import graph_recurrent as _recurrent  # noqa: F401 - the same
from edgekit.networks import graph_reductions as _reductions  # noqa: F401 - the same
from edgekit.networks import graph_shapes as _shapes  # noqa: F401 - the same
from edgekit.networks.graph_layout import Array, Bias, Layout, Node, Weight
from edgekit.networks.graph_quantized import along, in_blocks, round_straight

if TYPE_CHECKING:
    import torch

    Module = torch.nn.Module
else:
    Module = object  # `graph_module` adds the base: this file must not import torch when it is imported

Tensors = dict[str, "torch.Tensor"]

_SMALLEST_RATIO = 1e-3
_BIAS_LIMIT = 2.0**31 - 1
_KERNEL_BLOCK = 32
_MADE_ON_CPU = frozenset({"Constant", "ConstantOfShape", "Range", "Shape", "Size"})
_REMEDY = "Leave the stage quantize-aware-train out, or export the model with plainer operators."


def graph_module(
    path: Path, *, learn_scales: bool = False, bits: int = 8, block_kernels: Collection[str] = ()
) -> GraphModule:
    """Open a graph as a module of torch; see `GraphModule`."""
    import torch

    made = type("GraphModule", (GraphModule, torch.nn.Module), {})
    return cast("GraphModule", made(path, learn_scales=learn_scales, bits=bits, block_kernels=block_kernels))


class GraphModule(Module):
    """Runs a graph: input name -> tensor to output name -> tensor.

    Args:
        path: the ONNX file.
        learn_scales: whether the scales of Q/DQ pairs and weights are learned.
        bits: of int8 weights, sign included: 7 for CPUs whose products saturate.
        block_kernels: op types whose stored weights the runtime multiplies on activations rounded block by block.

    Raises:
        UnsupportedError: an operator that has no counterpart here, or control flow; names the node.
    """

    def __init__(self, path: Path, *, learn_scales: bool, bits: int, block_kernels: Collection[str]) -> None:
        import torch

        super().__init__()
        self.layout = layout = Layout(path, bits=bits)
        _check_operators(layout.nodes)
        self.weights, self.biases = layout.weights, layout.biases
        self.latents = torch.nn.ParameterList([_floats(_steps(weight, layout)) for weight in self.weights])
        self.bias_values = torch.nn.ParameterList(
            [_floats(layout.arrays[b.name] * layout.arrays[b.scale].astype(np.float64)) for b in self.biases]
        )
        self.scale_names = layout.scales() if learn_scales else []
        self.ratios = torch.nn.ParameterList([torch.ones(layout.arrays[name].shape) for name in self.scale_names])
        self.float_names = layout.float_weights()
        self.floats = torch.nn.ParameterList([_floats(layout.arrays[name]) for name in self.float_names])
        names = [w.name for w in self.weights] + [b.name for b in self.biases] + self.float_names
        self.block_kernels = frozenset(block_kernels)
        self._together: bool | None = None
        self.constants = [name for name in layout.arrays if name not in set(names)]
        for number, name in enumerate(self.constants):
            self.register_buffer(f"constant_{number}", torch.from_numpy(layout.carried(name)), persistent=False)

    def forward(self, feed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run the graph; one whose batch is fixed runs piece by piece, unless all at once gives the same."""
        values = self.values()
        count, rows = len(next(iter(feed.values()))), self.layout.rows
        if not rows or count == rows:
            return self._run_all(feed, values)
        if self._together is None:
            self._together = self._is_free(feed, values)
        return self._run_all(feed, values) if self._together else self._in_pieces(feed, values)

    def _is_free(self, feed: Tensors, values: Tensors) -> bool:
        """Say whether the graph computes row by row although its batch is fixed (a Reshape may mix the rows)."""
        import torch

        with torch.no_grad():
            pieces = self._in_pieces(feed, values)
            try:
                whole = self._run_all(feed, values)
            except (RuntimeError, ValueError, IndexError):
                return False
        return all(
            whole[name].shape == value.shape and torch.allclose(whole[name], value, rtol=1e-3, atol=1e-5)
            for name, value in pieces.items()
        )

    def _in_pieces(self, feed: Tensors, values: Tensors) -> Tensors:
        import torch

        count, rows = len(next(iter(feed.values()))), self.layout.rows
        full = -(-count // rows) * rows  # the last sample stands in for those that the last piece lacks
        places = torch.arange(full).clamp_max(count - 1)
        given = {name: value[places.to(value.device)] for name, value in feed.items()} if full != count else feed
        parts = [
            self._run_all({name: value[start : start + rows] for name, value in given.items()}, values)
            for start in range(0, full, rows)
        ]
        found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return {name: value[: len(value) * count // full] for name, value in found.items()}

    def _run_all(self, feed: Tensors, values: Tensors) -> Tensors:
        known: dict[str, Any] = {"": None, **feed, **values}
        device = next(iter(feed.values())).device
        for node in self.layout.nodes:
            made = self.run_node(node, [known[name] for name in node.inputs])
            if node.op in _MADE_ON_CPU:
                made = made.to(device)
            known.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False))
        return {name: known[name] for name in self.layout.outputs}

    def run_node(self, node: Node, given: list[Any]) -> Any:
        """Compute the outputs of one node from its inputs."""
        if node.op == "Constant":
            return _constant(node)
        if node.op == "Reshape" and self.layout.blocked(node.outputs[0]):
            return given[0]  # codes in blocks keep their rows and blocks
        if node.op in self.block_kernels and self.layout.fuses(node):
            given[0] = in_blocks(given[0], _KERNEL_BLOCK)
        try:
            return graph_ops.OPERATORS[node.op](given, node.attributes)
        except NotImplementedError as error:
            raise UnsupportedError(f"{error} cannot be trained through", where=node.name, remedy=_REMEDY) from None

    # --- values of initializers --------------------------------------------------------------------------------------

    def values(self) -> dict[str, torch.Tensor]:
        """Return every initializer as it is used now."""
        found: dict[str, torch.Tensor] = {
            name: getattr(self, f"constant_{number}") for number, name in enumerate(self.constants)
        }
        found |= dict(zip(self.float_names, self.floats, strict=True))
        ratios = self._ratios()
        for name, ratio in ratios.items():
            found[name] = found[name] * ratio
        for weight, latent in zip(self.weights, self.latents, strict=True):
            steps = _in_steps(weight, latent, ratios)
            found[weight.name] = round_straight(steps).clamp(weight.low, weight.high)
        for bias, value in zip(self.biases, self.bias_values, strict=True):
            found[bias.scale] = step = self._bias_step(bias, found)
            found[bias.name] = round_straight(value / step).clamp(-_BIAS_LIMIT, _BIAS_LIMIT)
        return found

    def _ratios(self) -> dict[str, torch.Tensor]:
        """Return scale -> what it is now, in units of what it was."""
        pairs = zip(self.scale_names, self.ratios, strict=True)
        return {name: ratio.clamp_min(_SMALLEST_RATIO) for name, ratio in pairs}

    def _bias_step(self, bias: Bias, found: dict[str, torch.Tensor]) -> torch.Tensor:
        stored = found[bias.scale]
        if not {bias.activation, bias.weight} & set(self.scale_names):
            return stored
        return found[bias.activation].reshape(()) * found[bias.weight].reshape(stored.shape)

    # --- what training needs -----------------------------------------------------------------------------------------

    def distance_to_grid(self) -> torch.Tensor:
        """Return the mean squared distance of all weights to their nearest integers, in steps."""
        import torch

        ratios = self._ratios()
        parts = [_in_steps(weight, latent, ratios) for weight, latent in zip(self.weights, self.latents, strict=True)]
        count = sum(steps.numel() for steps in parts)
        return torch.stack([((steps - steps.detach().round()) ** 2).sum() for steps in parts]).sum() / count

    def integers(self) -> list[torch.Tensor]:
        """Return the integers of every weight as they would be written now."""
        import torch

        with torch.no_grad():
            ratios = self._ratios()
            return [
                _in_steps(weight, latent, ratios).round().clamp(weight.low, weight.high)
                for weight, latent in zip(self.weights, self.latents, strict=True)
            ]

    def clip(self) -> None:
        """Keep latent weights within their bounds: beyond them there is no gradient that could bring them back."""
        import torch

        with torch.no_grad():
            for ratio in self.ratios:
                ratio.clamp_(min=_SMALLEST_RATIO)
            ratios = self._ratios()
            for weight, latent in zip(self.weights, self.latents, strict=True):
                steps = _in_steps(weight, latent, ratios).clamp(weight.low, weight.high)
                latent.copy_(steps * _unit(weight, latent, ratios))

    def learned(self) -> dict[str, Array]:
        """Return the values of every initializer that training may have changed, as the graph stores them.

        Codes of 4 bits that are not packed in bytes come as one integer each.
        """
        import torch

        found: dict[str, Array] = {}
        with torch.no_grad():
            values = self.values()
        for weight, codes in zip(self.weights, self.integers(), strict=True):
            plain = codes.cpu().numpy().astype(np.int32)
            found[weight.name] = weight.packed.pack(plain) if weight.packed else plain
        for bias in self.biases:
            found[bias.name] = values[bias.name].detach().double().cpu().numpy().astype(np.int32)
            found[bias.scale] = values[bias.scale].detach().cpu().numpy().astype(np.float32)
        for name in [*self.scale_names, *self.float_names]:
            found[name] = values[name].detach().cpu().numpy().astype(np.float32)
        return found


def _steps(weight: Weight, layout: Layout) -> Array:
    values = layout.arrays[weight.name]
    return weight.packed.unpack(values) if weight.packed else values


def _floats(values: Array) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.array(values, np.float32))


def _in_steps(weight: Weight, latent: torch.Tensor, ratios: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return a latent weight in units of its scale as it is now."""
    found: torch.Tensor = latent / _unit(weight, latent, ratios)
    return found


def _unit(weight: Weight, latent: torch.Tensor, ratios: dict[str, torch.Tensor]) -> Any:
    if weight.scale not in ratios:
        return 1.0
    return along(ratios[weight.scale], latent, weight.axis or 0, weight.block)


def _check_operators(nodes: list[Node]) -> None:
    graph_ops.enter_elementwise()
    for node in nodes:
        if node.op not in graph_ops.OPERATORS and node.op != "Constant":
            raise UnsupportedError(f"{node.op} cannot be trained through", where=node.name, remedy=_REMEDY)


def _constant(node: Node) -> torch.Tensor:
    import torch

    for key in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if key in node.attributes:
            value = node.attributes[key]
            return torch.from_numpy(value) if isinstance(value, np.ndarray) else torch.tensor(value)
    raise UnsupportedError("a Constant of a kind that cannot be trained through", where=node.name, remedy=_REMEDY)
