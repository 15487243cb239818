"""The peers of `compress.py`, in a process of their own: Torch-Pruning with plain fine-tuning, torchao's QAT."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.compress_net import build
from benchmarks.compress_vision import export, fit_plainly

RATE = 1e-3
"""That of our stages; AdamW, a cosine and live batch normalization too."""


QAT_RATE = 1e-4


def original(path: str) -> Any:
    """Return the network as it was trained."""
    from safetensors.torch import load_file

    network = build()
    network.load_state_dict(load_file(path))
    return network.eval()


def prune(work: dict[str, Any]) -> dict[str, Any]:
    """Prune by magnitude over all layers until `left` of the MACs are there, in rounds, fine-tuning after each."""
    import torch_pruning as tp

    if Path(work["out"]).exists():
        return {"path": work["out"]}
    network, example = original(work["weights"]), torch.zeros(1, 1, 28, 28)
    start, _ = tp.utils.count_ops_and_params(network, example)
    for number in range(work["rounds"]):
        wanted = start * work["left"] ** ((number + 1) / work["rounds"])
        pruner = tp.pruner.BasePruner(
            network,
            example,
            importance=tp.importance.GroupMagnitudeImportance(p=1),
            global_pruning=True,
            pruning_ratio=0.9,
            max_pruning_ratio=0.9,
            iterative_steps=200,
            ignored_layers=[network.head],
        )
        while tp.utils.count_ops_and_params(network, example)[0] > wanted:
            pruner.step()
        fit_plainly(network, Path(work["training"]), work["epochs"], RATE, seed=number, settle=True)
    fit_plainly(network, Path(work["training"]), work["last"], RATE, seed=work["rounds"], settle=True)
    export(network, Path(work["out"]))
    return {"path": work["out"]}


def qat(work: dict[str, Any]) -> dict[str, Any]:
    """Quantize our pruned network with torchao: after training, then by training with fake quantization."""
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e import move_exported_model_to_eval, move_exported_model_to_train
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

    from edgekit.networks.rebuild import rebuild
    from samples.vision.fashion_mnist import normalize

    if Path(work["out"]).exists():
        return {"path": work["out"]}
    torch.set_num_threads(1)
    with np.load(work["training"]) as found:
        x, y = torch.from_numpy(normalize(found["x"])), torch.from_numpy(found["y"])
    with np.load(work["evaluation"]) as found:
        images, labels = torch.from_numpy(normalize(found["x"])), found["y"]
    batch = {0: torch.export.Dim("batch", min=2, max=1024)}

    def exported() -> Any:
        network = rebuild(Path(work["folder"])).module
        return torch.export.export(network, (x[:32],), dynamic_shapes=(batch,), strict=False).module()

    def quantizer(*, trained: bool) -> Any:
        config = x86.get_default_x86_inductor_quantization_config(is_qat=trained)
        return x86.X86InductorQuantizer().set_global(config)

    def answers(module: Any) -> Any:
        converted = convert_pt2e(module)
        move_exported_model_to_eval(converted)
        with torch.no_grad():
            return torch.cat([converted(part).argmax(1) for part in images.split(250)]).numpy()

    observed = prepare_pt2e(exported(), quantizer(trained=False))
    with torch.no_grad():
        for part in x[:256].split(32):
            observed(part)
    before = answers(observed)
    module = prepare_qat_pt2e(exported(), quantizer(trained=True))
    optimizer = torch.optim.AdamW(module.parameters(), QAT_RATE, weight_decay=0.0)
    steps = work["epochs"] * -(-len(x) // 32)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(0)
    move_exported_model_to_train(module)
    for _ in range(work["epochs"]):
        for rows in torch.randperm(len(x), generator=generator).split(32):
            if len(rows) < 2:
                continue
            loss = torch.nn.functional.cross_entropy(module(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    np.savez(work["out"], before=before, answers=answers(module), labels=labels)
    return {"path": work["out"]}


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    print("\n" + json.dumps({"prune": prune, "qat": qat}[job["what"]](job)))
