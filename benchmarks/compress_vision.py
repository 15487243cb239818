"""`compress.py vision`: a depthwise CNN on Fashion-MNIST."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compress import QAT_EPOCHS, Bench, Effort, goal, halved, peer, quantized, say
from edgekit.artifact import Artifact
from edgekit.exporter import load_exporter
from edgekit.profile import load_profile
from edgekit.store import Store

CALIBRATION = 512
SHAPE = {"x": (1, 28, 28)}
RATE = 3e-3
"""Of every training but those of integers: what the original was trained at."""
EFFORT = Effort(rounds=4, epochs=3, features=1, last=10, rate=RATE)

PREPROCESSING = """kind = "image"
input = "x"
channels = "gray"
resize = [28, 28]
scale = "1/255"
mean = 0.2860
std = 0.3530
layout = "NCHW"
"""


def vision(options: argparse.Namespace, shelf: Store) -> Bench:
    """Run all stages and peers; see `compress.py`."""
    data = _data(options.work / "data", options.images)
    weights = options.work / f"original-{options.images}-{options.epochs}.safetensors"
    if not weights.exists():
        _train_original(weights, data, options.epochs)
    bench = Bench(shelf, "python:benchmarks.compress_net:build", weights, data, SHAPE)
    original = bench.add("original", bench.graph(bench.source), options.epochs)

    network = halved(bench, EFFORT)
    half = bench.rows[-1].macs / original.macs
    if options.peers:
        told = peer(options, _work(data, weights, "prune", half, options.work / "torch-pruning.onnx"))
        bench.judge("Torch-Pruning, fine-tuned", Path(told["path"]), EFFORT.trained(features=False))

    total = options.epochs + EFFORT.trained(features=True)
    scratch = []
    for seed in range(options.seeds):
        name = f"same network from scratch, seed {seed}"
        bench.judge(name, _scratch(bench, network.id, data, total, seed, options.work), total)
        scratch.append(bench.accuracy(name))

    best = bench.graph(network)
    quantized(bench, best, "distilled, int8")
    after, learned = _coarse(bench, best)
    if options.peers:
        work = _work(data, weights, "qat", half, options.work / "torch-qat.npz")
        folder = bench.shelf.folder(network.id)
        told = peer(options, {**work, "folder": str(folder), "evaluation": str(data / "evaluation.npz")})
        _say_peer_qat(Path(told["path"]))

    bench.time(["original", "pruned, distilled", "Torch-Pruning, fine-tuned"])
    floor = bench.accuracy("pruned, distilled")
    rows = {row.name: row for row in bench.rows}
    speed = rows["original"].latency[32] / rows["pruned, distilled"].latency[32]
    say("")
    goal("share of MACs gone", 100 * (1 - half), 50 - 2)
    goal("points against the original at half the MACs", floor - bench.accuracy("original"), -1)
    lost = bench.accuracy("original") - bench.accuracy("pruned, not trained")
    goal("share of the loss recovered, %", 100 * (floor - bench.accuracy("pruned, not trained")) / lost, 50)
    goal("int8 QAT against float, points", bench.accuracy("distilled, int8, QAT") - floor, -0.3)
    goal("speed-up at batch 32 over ratio of MACs", speed * half, 0.7)
    goal("points above scratch, mean", floor - statistics.mean(scratch), 0)
    goal("points above scratch, best", floor - max(scratch), 0)
    if floor - after >= 1:
        goal("share recovered by QAT, 4 bits per tensor, %", 100 * (learned - after) / (floor - after), 70)
    else:
        say(f"4 bits per tensor lose {floor - after:.2f} points only: nothing to recover")
    return bench


def _coarse(bench: Bench, graph: Artifact) -> tuple[float, float]:
    """Quantize where it costs something: weights of 4 bits with one scale a tensor, in Qualcomm's dialect."""
    kept = bench.pipeline.profile, bench.pipeline.dialect
    device = load_profile("snapdragon")
    bench.pipeline.profile = device
    bench.pipeline.dialect = dataclasses.replace(load_exporter(device.runtime).dialect(device), per_channel=False)
    options = {"precision": "w4a16", "method": "minmax", "aim": 0, "floor": 0}
    found = quantized(bench, graph, "distilled, 4-bit weights per tensor", **options)
    bench.pipeline.profile, bench.pipeline.dialect = kept
    return found


def _work(data: Path, weights: Path, what: str, half: float, out: Path) -> dict[str, Any]:
    return {
        "what": what,
        "weights": str(weights),
        "training": str(data / "training.npz"),
        "left": half,
        "rounds": EFFORT.rounds,
        "epochs": EFFORT.epochs if what == "prune" else QAT_EPOCHS,
        "last": EFFORT.last,
        "rate": EFFORT.rate,
        "out": str(out),
    }


def _say_peer_qat(path: Path) -> None:
    with np.load(path) as found:
        right = found["answers"] == found["labels"]
        before = found["before"] == found["labels"]
    told = f"PTQ {100 * before.mean():.2f}, QAT {100 * right.mean():.2f}"
    say(f"torchao (X86 inductor quantizer) on the same network: {told}")


def _data(folder: Path, images: int) -> Path:
    from samples.vision import fashion_mnist

    if (folder / "training.npz").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    train, classes = fashion_mnist.load("train")
    test, wanted = fashion_mnist.load("t10k")
    order = np.random.default_rng(0).permutation(len(train))
    cut = {"calibration": order[:CALIBRATION], "training": order[CALIBRATION : CALIBRATION + images]}
    (folder / "preprocessing.toml").write_text(PREPROCESSING)
    np.savez_compressed(folder / "evaluation.npz", x=test, y=wanted)
    for name, rows in cut.items():
        np.savez_compressed(folder / f"{name}.npz", x=train[rows], y=classes[rows])
    return folder


def _train_original(path: Path, data: Path, epochs: int) -> None:
    import torch
    from safetensors.torch import save_file

    from benchmarks.compress_net import build

    torch.manual_seed(0)
    network = build()
    fit_plainly(network, data / "training.npz", epochs, RATE, seed=0, settle=True)
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, path)


def _scratch(bench: Bench, artifact: str, data: Path, epochs: int, seed: int, work: Path) -> Path:
    """Train the structure of an artifact from random numbers, as the original was trained."""
    import torch

    from edgekit.networks.rebuild import rebuild

    path = work / f"scratch-{artifact[:12]}-{epochs}-{seed}.onnx"
    if path.exists():
        return path
    network = rebuild(bench.shelf.folder(artifact)).module
    torch.manual_seed(seed)
    for part in network.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    fit_plainly(network, data / "training.npz", epochs, RATE, seed=seed, settle=True)
    export(network, path)
    return path


def fit_plainly(network: Any, training: Path, epochs: int, rate: float, *, seed: int, settle: bool) -> None:
    """Train with AdamW and a cosine on the labels alone, in batches of 32.

    Args:
        network: takes images.
        training: `x` and `y`.
        epochs: passes over them.
        rate: highest learning rate.
        seed: of the order.
        settle: whether BatchNorm learns its statistics, as from scratch; else they are held, as in fine-tuning.
    """
    import torch
    from torch.nn import functional

    from samples.vision.fashion_mnist import normalize

    torch.set_num_threads(1)
    with np.load(training) as found:
        x, y = torch.from_numpy(normalize(found["x"])), torch.from_numpy(found["y"])
    network.to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=0.01)
    steps = epochs * -(-len(x) // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=0.1)
    for _ in range(epochs):
        network.train()
        if not settle:
            for part in network.modules():
                if isinstance(part, torch.nn.BatchNorm2d):
                    part.eval()
        for rows in torch.randperm(len(x), generator=generator).split(32):
            loss = functional.cross_entropy(network(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval().to(memory_format=torch.contiguous_format)


def export(network: Any, path: Path) -> None:
    """Write a network of images as ONNX."""
    import torch

    batch = torch.export.Dim("batch", min=1, max=256)
    torch.onnx.export(
        network.eval(),
        (torch.zeros(2, 1, 28, 28),),
        str(path),
        input_names=["x"],
        output_names=["logits"],
        dynamo=True,
        opset_version=18,
        dynamic_shapes=({0: batch},),
        external_data=False,
        verbose=False,
    )
