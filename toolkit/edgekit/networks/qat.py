"""Train a quantized graph on what it computes. Runs in a child process.

The loss is that of labels and teacher, plus lambda * ||Q(W) - W||^2 in squared steps, where lambda grows from 0 along
half a cosine: weights wander first and settle on the grid later.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgekit.artifact import MAIN
from edgekit.errors import UnsupportedError
from edgekit.events import Finding
from edgekit.networks.child import Tell
from edgekit.networks.feeds import Batch, Feeds
from edgekit.networks.goal import Goal, make_goal
from edgekit.networks.graph_floats import start_between
from edgekit.networks.graph_module import GraphModule, graph_module
from edgekit.networks.graph_zeros import hold_zeros
from edgekit.networks.oscillation import watch
from edgekit.networks.schedule import Fitted, Schedule
from edgekit.networks.train import Forward, Loss, Tensors, fit, outputs_of

LEARNED = "learned.safetensors"
OUTPUTS = "outputs.npz"
"""Files that a job leaves in its `result` folder: initializers, and outputs on held-out samples."""

_CHECKED = 64
_RATE = 1e-4
_TRAVEL = 0.01
_SHORT_TRAVEL = 0.25
_FINE = 4e-4  # of the largest value: 0.00005 for the weights of a transformer
_MOST_A_STEP = 0.1  # steps of the grid that a weight moves in one step of the optimizer, at most
_MOST_OF_FINE = 2.5  # the same over the number of steps up to the largest value: fine grids lose more by haste


def train_quantized(arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Train the integers of a quantized graph.

    Args:
        arguments: `folder` (of the quantized graph), `feeds`, `scratch`, `result` (a folder), `threads`, `seed`,
            `labels`, `teacher`, `epochs`, `batch`, `rate`, `patience`, `alpha`, `temperature`, `pull` (the largest
            lambda), `learn_scales`, `bits` (of int8 weights), `block_kernels` (see `GraphModule`), `floats` (path of a
            float graph that weights start from, see `start_between`; or empty), `zeros` (whether weights that are zero
            stay so).
        tell: gets progress and findings.

    Returns:
        Facts: `training`, `oscillation` (see `Oscillation.facts`), `trained` (numbers of weights, biases and scales),
        `findings`.

    Raises:
        UnsupportedError: the graph cannot be run in torch, or holds no integers.
        InputError: labels, outputs and teacher do not fit together, or the loss is not finite.
    """
    import torch
    from safetensors.numpy import save_file

    torch.set_num_threads(int(arguments["threads"]))
    path = Path(arguments["folder"]) / MAIN
    module = graph_module(
        path,
        learn_scales=bool(arguments["learn_scales"]),
        bits=int(arguments["bits"]),
        block_kernels=arguments["block_kernels"],
    )
    if not module.weights:
        remedy = "Quantize it first: put quantize-int8 or quantize-int4 before quantize-aware-train."
        raise UnsupportedError("the graph has no integer weights to train", where=MAIN, remedy=remedy)
    floats = arguments["floats"]
    between = start_between(module, Path(floats)) if floats else frozenset[int]()
    held = hold_zeros(module) if arguments.get("zeros") else 0
    feeds = Feeds(Path(arguments["feeds"]), seed=int(arguments["seed"]), batch=int(arguments["batch"]))
    goal = make_goal(module, feeds, arguments, tell)
    oscillation = watch(module)
    module.add_module("oscillation", oscillation)

    def after_step() -> None:
        module.clip()
        oscillation.step()

    rate = float(arguments["rate"])
    schedule = Schedule(
        epochs=int(arguments["epochs"]),
        rate=rate or _RATE,
        patience=int(arguments["patience"]),
        decay=0.0,
        seed=int(arguments["seed"]),
    )
    fitted = fit(
        module,
        feeds,
        _loss(module, goal, float(arguments["pull"])),
        schedule,
        scratch=Path(arguments["scratch"]) / "train",
        tell=tell,
        groups=_groups(module, between, rate, schedule.epochs * feeds.steps()),
        judge=goal.loss(),
        after_step=after_step,
    )
    result = Path(arguments["result"])
    result.mkdir(parents=True, exist_ok=True)
    save_file({name: np.array(value, order="C") for name, value in module.learned().items()}, result / LEARNED)
    _keep_outputs(module, feeds, result / OUTPUTS)
    return {
        "training": {**fitted.facts(), "rate": schedule.rate, "goal": goal.words()},
        "oscillation": oscillation.facts(),
        "trained": {
            "weights": sum(value.numel() for value in module.latents),
            "biases": len(module.biases),
            "scales": len(module.scale_names),
            "matrices": len(module.latents),
            "from_floats": len(between),
            "zeros_held": held,
        },
        "findings": [msgspec.to_builtins(finding) for finding in (*goal.findings, *_nothing_gained(fitted))],
    }


def _nothing_gained(fitted: Fitted) -> list[Finding]:
    if fitted.best > 0:
        return []
    text = "training found nothing nearer to its goal on held-out samples: the graph is as it came in"
    remedy = "Give more training data or epochs, or a lower `rate`."
    return [Finding(severity="note", node="", rule="qat-gained-nothing", text=text, remedy=remedy)]


def _loss(module: GraphModule, goal: Goal, pull: float) -> Loss:
    def loss(forward: Forward, batch: Batch, feed: Tensors, done: float) -> Tensors:
        terms = goal.terms(forward(feed), batch, feed)
        if pull > 0:
            terms["pull"] = pull * 0.5 * (1 - math.cos(math.pi * done)) * module.distance_to_grid()
        return terms

    return loss


def _groups(module: GraphModule, between: frozenset[int], rate: float, steps: int) -> list[dict[str, Any]]:
    """Return parameter groups: `rate` is in units of the largest value that a weight can have.

    A rate of 0 lets a weight travel over the whole training (a cosine, so half of the steps count) as far as a
    hundredth of that value, or one step of its grid where those are coarser: else no integer could change. Weights that
    start between integers have some that change at once: a quarter of a step will do, and no more haste than
    fine-tuning has.
    """

    def fitting(half: float, *, found: bool) -> float:
        if rate:
            return rate * half
        least, most = (_SHORT_TRAVEL, _FINE * half) if found else (1.0, _MOST_A_STEP)
        return min(2 * max(least, _TRAVEL * half) / max(steps, 1), most, _MOST_OF_FINE / half)

    groups = [
        {
            "params": [latent],
            "lr": fitting((weight.high - weight.low) / 2, found=number in between),
            "weight_decay": 0.0,
        }
        for number, (weight, latent) in enumerate(zip(module.weights, module.latents, strict=True))
    ]
    others = [list(parameters) for parameters in (module.bias_values, module.floats, module.ratios)]
    return groups + [{"params": found, "lr": rate or _RATE, "weight_decay": 0.0} for found in others if found]


def _keep_outputs(module: GraphModule, feeds: Feeds, path: Path) -> None:
    """Keep what the module gives on held-out samples, so that the written graph can be held against it."""
    arrays: dict[str, Any] = {}
    count = 0
    for number, (batch, outputs) in enumerate(outputs_of(module, feeds, [[sample] for sample in feeds.held])):
        if number >= _CHECKED:
            break
        arrays |= {f"{number}/in/{name}": value for name, value in batch.feed.items()}
        arrays |= {f"{number}/out/{name}": value.numpy() for name, value in outputs.items()}
        count += 1
    np.savez(path, count=np.array(count), **arrays)
