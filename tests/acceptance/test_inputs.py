"""Other kinds of models through the command line: PyTorch factories, exported programs, Hugging Face directories."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: the extra [torch]"),
]

NET = """
import torch

class Net(torch.nn.Module):
    example_inputs = (torch.zeros(2, 8),)

    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 32), torch.nn.Linear(32, 3)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))

make = Net
"""
WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]"),
    *("good", "bad", "fine", "poor", "film", "book", "day", "it", "is", "was", "the"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("torch")
    (found / "net.py").write_text(NET)
    rng = np.random.default_rng(0)
    np.savez(found / "data.npz", x=rng.normal(size=(900, 8)).astype(np.float32))
    return found


def test_a_factory_with_weights_ends_in_a_package(edgekit, folder):
    """What it computes is what the module computes; its source is part of what is cached."""
    import torch
    from safetensors.torch import save_file

    rng = np.random.default_rng(0)
    sizes = {"one.weight": (32, 8), "one.bias": (32,), "two.weight": (3, 32), "two.bias": (3,)}
    weights = {name: torch.tensor(rng.normal(size=size), dtype=torch.float32) for name, size in sizes.items()}
    save_file(weights, folder / "w.safetensors")
    with np.load(folder / "data.npz") as file:
        x = file["x"]
    ran = edgekit.build(
        *("python:net:make", "--weights", folder / "w.safetensors", "--data", folder / "data.npz"),
        *("--max-drop", "3%", "--out", folder / "out"),
        cwd=folder,
    )
    assert ran.status == 0, ran.err
    assert [stage["name"] for stage in ran.json["stages"]] == [
        "capture",
        "simplify",
        "equalize",
        "quantize-int8",
        "compile",
    ]
    assert ran.json["status"] == "pass"
    package = Path(ran.json["package"])
    np.savez(folder / "one.npz", x=x[:1])
    said = edgekit("run", package, folder / "one.npz", "--out", folder / "raw.npz", "--json")
    assert said.status == 0, said.err
    hidden = np.maximum(x[:1] @ weights["one.weight"].numpy().T + weights["one.bias"].numpy(), 0)
    wanted = hidden @ weights["two.weight"].numpy().T + weights["two.bias"].numpy()
    with np.load(folder / "raw.npz") as raw:
        (found,) = raw.values()
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
    again = edgekit.build(
        *("python:net:make", "--weights", folder / "w.safetensors", "--data", folder / "data.npz"),
        *("--max-drop", "3%", "--out", folder / "out"),
        cwd=folder,
    )
    assert all(again.cached.values())
    (folder / "net.py").write_text(NET.replace("32", "16"))
    changed = edgekit.build("python:net:make", "--recipe", "fp32", "--out", folder / "out", cwd=folder)
    (folder / "net.py").write_text(NET)
    assert changed.status == 0, changed.err
    assert not changed.cached["capture"], "the source of a factory is part of the model"


def test_an_exported_program_ends_in_a_package(edgekit, folder):
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (torch.zeros(2, 8),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "net.pt2")
    ran = edgekit.build(folder / "net.pt2", "--recipe", "fp32", "--out", folder / "pt2")
    assert ran.status == 0, ran.err
    assert ran.json["status"] == "unproven"
    assert edgekit("verify", ran.json["package"]).status == 0


def test_a_hugging_face_directory_with_text_ends_in_a_package(edgekit, tmp_path):
    """A tiny BERT with random weights: its tokenizer reads the text, and comes along in the package."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1},
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    fast.save_pretrained(tmp_path / "bert")
    rng = np.random.default_rng(0)
    lines = [
        json.dumps({"text": " ".join(rng.choice(WORDS[4:], size=int(rng.integers(3, 9)))), "label": label})
        for label in ["negative", "positive"] * 100
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    ran = edgekit.build(
        *(tmp_path / "bert", "--data", tmp_path / "data.jsonl", "--recipe", "fp32", "--max-drop", "5%"),
        *("--out", tmp_path / "out"),
    )
    assert ran.status == 0, ran.err
    assert ran.check("accuracy")["n"] > 0
    assert ran.check("drop")["value"] == 0
    said = edgekit("run", ran.json["package"], "the film is good", "--json")
    assert said.status == 0, said.err
    (sample,) = said.json["samples"]
    assert {row["label"] for row in sample["labels"]} == {"negative", "positive"}
