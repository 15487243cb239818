"""`compress.py text`: a BERT classifier of sentences at 32 tokens, as samples/text has it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compress import Bench, Effort, goal, halved, peer, quantized
from edgekit.store import Store

LENGTH = 32
CALIBRATION = 256
EFFORT = Effort(rounds=2, epochs=1, features=1, last=2)
QAT_EPOCHS = 1
COARSE = {"method": "rtn", "block": 256, "symmetric": True, "embedding_bits": 4}
"""Where rounding costs more than a point."""

SHAPE = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (LENGTH,))


def text(options: argparse.Namespace, shelf: Store) -> Bench:
    """Run all stages; see `compress.py`."""
    data = _data(options.data, options.work / "data", options.sentences, options.evaluation)
    bench = Bench(shelf, str(options.model), None, data, SHAPE)
    whole = bench.graph(bench.source)
    original = bench.add("original", whole)

    halved(bench, EFFORT)
    if options.peers:
        half = bench.rows[-1].macs / original.macs
        told = peer(options, _work(options, _arrays(bench, options.work / "training.npz"), half))
        bench.judge("Torch-Pruning, fine-tuned", Path(told["path"]), EFFORT.trained(features=False))

    found = {
        "int8": quantized(bench, whole, "original, int8", epochs=QAT_EPOCHS, mode="static"),
        "4 bits": quantized(bench, whole, "original, 4 bits", bits=4, epochs=QAT_EPOCHS, method="rtn"),
        "coarse 4 bits": quantized(bench, whole, "original, coarse 4 bits", bits=4, epochs=QAT_EPOCHS, **COARSE),
    }
    bench.time(["original", "pruned, distilled"])

    start, floor = bench.accuracy("original"), bench.accuracy("pruned, distilled")
    lost = start - bench.accuracy("pruned, not trained")
    half = next(row for row in bench.rows if row.name == "pruned, distilled").macs / original.macs
    speed = original.latency[32] / next(row for row in bench.rows if row.name == "pruned, distilled").latency[32]
    print()
    goal("share of MACs gone", 100 * (1 - half), 50 - 2)
    goal("share of the loss recovered by distillation, %", 100 * (floor - start + lost) / lost, 50)
    goal("int8 QAT against float, points", found["int8"][1] - start, -0.3)
    for name in ("4 bits", "coarse 4 bits"):
        goal(f"QAT over PTQ, {name}, points", found[name][1] - found[name][0], 0.01)
    goal("speed-up at batch 32 over ratio of MACs", speed * half, 0.7)
    for name, (after, trained) in found.items():
        if start - after >= 1:
            goal(f"share recovered by QAT, {name}, %", 100 * (trained - after) / (start - after), 70)
        else:
            print(f"{name} loses {start - after:.2f} points only ({QAT_EPOCHS} epochs): nothing to recover")
    return bench


def _work(options: argparse.Namespace, training: Path, half: float) -> dict[str, Any]:
    return {
        "what": "prune-text",
        "model": str(options.model),
        "training": str(training),
        "left": half,
        "rounds": EFFORT.rounds,
        "epochs": EFFORT.epochs,
        "last": EFFORT.last,
        "out": str(options.work / "torch-pruning.onnx"),
    }


def _arrays(bench: Bench, path: Path) -> Path:
    """Write the training samples as arrays, padded to one length, for a process that knows no edgekit."""
    samples = bench.data.training
    rows = [samples.sample(index) for index in range(len(samples))]
    assert samples.labels is not None
    padded = {
        name: np.stack([np.pad(row[name][0], (0, LENGTH - row[name].shape[1])) for row in rows]) for name in rows[0]
    }
    np.savez(path, labels=samples.labels, **padded)
    return path


def _data(given: Path, folder: Path, sentences: int, evaluation: int) -> Path:
    """Cut the sample's data to size."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("calibration", CALIBRATION), ("training", sentences), ("evaluation", evaluation)):
        lines = (given / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rules = (given / "preprocessing.toml").read_text(encoding="utf-8")
    rules = rules.replace('"../', f'"{given.resolve().parent}/').replace("max_length = 64", f"max_length = {LENGTH}")
    (folder / "preprocessing.toml").write_text(rules, encoding="utf-8")
    return folder
