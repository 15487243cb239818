"""Which channels of a network stand or fall together, read off its traced graph.

The module is exported (`torch.export`, static shapes, evaluation mode) and its ATen graph is interpreted with labels
in place of numbers: a tensor is a list of axes, an axis is one label per index. Axes of parameters get labels of their
own; an operator ties the labels of what it combines (a residual add ties index by index, a flatten repeats a label for
every pixel, grouped-query attention ties the queries of a group through the repeated key). Labels that reach an
output, an axis of the data, a normalization or an operator that is not understood are kept, and say why: what is kept
is never wrong. Tied weights and modules that are called twice need no rule: they are one tensor, so one set of labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.errors import UnsupportedError
from edgekit.networks.coupled import Coupling
from edgekit.networks.coupling_trace import interpret
from edgekit.networks.export import INNER
from edgekit.networks.network import Network, evaluating, flatten
from edgekit.networks.prune_apply import tensors_of

if TYPE_CHECKING:
    import torch


def trace_program(network: Network) -> torch.export.ExportedProgram:
    """Export a module with static shapes, in evaluation mode, on its example inputs.

    Raises:
        UnsupportedError: torch cannot trace it; names the module and the line that it stopped at.
    """
    import torch

    if network.program is not None:
        raise UnsupportedError(
            "an exported program has its sizes written into its graph: its channels cannot be removed",
            where="program.pt2",
            remedy="Give the model as python:module:factory or as a Hugging Face directory.",
        )
    feed = network.feed(network.sizes)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), evaluating(network.module):
            program = torch.export.export(_wrapped(network), (), feed, strict=False)
            _measure(program, feed)
            return program
    except Exception as error:
        reason = " ".join(str(error).split())[:400]
        raise UnsupportedError(
            f"the network cannot be traced: {type(error).__name__}: {reason}",
            where=type(network.module).__name__,
            remedy="Write decisions that depend on values with `torch.where`, or leave out the pruning stage.",
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _measure(program: torch.export.ExportedProgram, feed: dict[str, torch.Tensor]) -> None:
    """Give sizes that depend on values (how many tokens match) the numbers that they have for the example inputs."""
    import torch

    def fixed(value: Any) -> bool:
        parts = value if isinstance(value, (tuple, list)) else [value]
        sizes = [size for part in parts for size in getattr(part, "shape", (part,))]
        return not any(isinstance(size, torch.SymInt) for size in sizes)

    if all(fixed(node.meta.get("val")) for node in program.graph.nodes):
        return
    stored = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    held = {**program.state_dict, **program.constants}
    constants = program.graph_signature.inputs_to_lifted_tensor_constants

    class Measured(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            found = super().run_node(node)
            if not fixed(node.meta.get("val")):
                node.meta["val"] = found
            return found

    names = {**stored, **constants}
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    given = iter(feed.values())
    values = [held[names[node.name]] if node.name in names else next(given) for node in nodes]
    Measured(program.graph_module).run(*values)


def couple(network: Network, *, across_norms: bool = False) -> Coupling:
    """Trace a network and return its coupling, with the splits of reshaped axes that leave most channels free.

    Args:
        network: in any mode; unchanged.
        across_norms: let channels go that LayerNorm normalizes over, though what it gives for the others changes.

    Raises:
        UnsupportedError: the network cannot be traced.
    """
    program = trace_program(network)
    state = set(tensors_of(network.module))
    choices: dict[str, int] = {}
    best = interpret(program, state, choices, across_norms=across_norms)
    kinds = sorted({split.kind for split in best.splits.values()})
    for kind in kinds:
        nodes = [node for node, split in best.splits.items() if split.kind == kind]
        for part in range(1, max((best.splits[node].parts for node in nodes), default=1)):
            tried = {**choices, **dict.fromkeys(nodes, part)}
            other = interpret(program, state, tried, across_norms=across_norms)
            if other.freedom() > best.freedom():
                best, choices = other, tried
    return best


def _wrapped(network: Network) -> torch.nn.Module:
    """Return a module that takes the named inputs and returns the tensors of the output."""
    import torch

    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, INNER, network.module)

        def forward(self, **feed: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = network.call(feed) if network.call else getattr(self, INNER)(**feed)
            return tuple(flatten(found, taken=set(feed)).values())

    wrapper = Wrapper()
    wrapper.training = False
    return wrapper
