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

TEXT_RATE = 5e-5
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
        fit_plainly(network, Path(work["training"]), work["epochs"], work["rate"], seed=number, settle=True)
    fit_plainly(network, Path(work["training"]), work["last"], work["rate"], seed=work["rounds"], settle=True)
    export(network, Path(work["out"]))
    return {"path": work["out"]}


def prune_text(work: dict[str, Any]) -> dict[str, Any]:
    """Prune a BERT classifier by magnitude in rounds, layer by layer, fine-tuning after each as our stages do."""
    import torch_pruning as tp
    from transformers import AutoModelForSequenceClassification

    if Path(work["out"]).exists():
        return {"path": work["out"]}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = AutoModelForSequenceClassification.from_pretrained(work["model"], attn_implementation="eager").eval()
    with np.load(work["training"]) as found:
        arrays = {name: torch.from_numpy(found[name]) for name in found.files}
    labels = arrays.pop("labels")
    example = {name: value[:1] for name, value in arrays.items()}
    start, _ = tp.utils.count_ops_and_params(network, example)
    for number in range(work["rounds"]):
        wanted = start * work["left"] ** ((number + 1) / work["rounds"])
        _prune_bert(tp, network, example, wanted)
        _fit_text(network, arrays, labels, work["epochs"], seed=number)
    _fit_text(network, arrays, labels, work["last"], seed=work["rounds"])
    _export_text(network, arrays, Path(work["out"]))
    return {"path": work["out"]}


def _prune_bert(tp: Any, network: Any, example: dict[str, Any], wanted: float) -> None:
    """Prune until so many multiply-accumulates are left; the sizes of heads are told to the modules afterwards."""
    parts = [module for module in network.modules() if type(module).__name__ == "BertSelfAttention"]
    heads = {layer: part.num_attention_heads for part in parts for layer in (part.query, part.key, part.value)}
    pruner = tp.pruner.BasePruner(
        network,
        example,
        importance=tp.importance.GroupMagnitudeImportance(p=1),
        pruning_ratio=0.9,
        iterative_steps=100,
        num_heads=heads,
        prune_head_dims=True,
        ignored_layers=[network.classifier],
        output_transform=lambda out: out.logits.sum(),
    )
    while tp.utils.count_ops_and_params(network, example)[0] > wanted:
        pruner.step()
        for part in parts:
            part.all_head_size = part.query.out_features
            part.attention_head_size = part.query.out_features // part.num_attention_heads


def _fit_text(network: Any, arrays: dict[str, Any], labels: Any, epochs: int, *, seed: int) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), TEXT_RATE, weight_decay=0.01)
    steps = epochs * -(-len(labels) // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, TEXT_RATE, total_steps=steps + 1, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(32):
            logits = network(**{name: value[rows] for name, value in arrays.items()}).logits
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(logits, labels[rows]).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    network.eval()


def _export_text(network: Any, arrays: dict[str, Any], path: Path) -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
            return self.inner(**given).logits

    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {0: torch.export.Dim("batch", min=1, max=256), 1: torch.export.Dim("length", min=2, max=512)}
    torch.onnx.export(
        Plain().eval(),
        tuple(arrays[name][:2] for name in names),
        str(path),
        input_names=names,
        output_names=["logits"],
        dynamo=True,
        opset_version=18,
        dynamic_shapes=(axes, axes, axes),
        external_data=False,
        verbose=False,
    )


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
    print("\n" + json.dumps({"prune": prune, "prune-text": prune_text, "qat": qat}[job["what"]](job)))
