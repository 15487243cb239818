"""Models of transformers, and factories: pruned, written, and rebuilt bit-equal in a fresh process."""

from pathlib import Path

import pytest

from edgekit.networks.child import run_in_child
from edgekit.networks.intake import intake_torch
from edgekit.networks.record import changes_of, read_record
from torch_models import TEXT, saved

FACTORY = """
import torch
from pruned_nets import NETS, examples, seeded

def net(name):
    made, shapes = NETS[name]
    built = seeded(made)
    built.example_inputs = examples(shapes)
    return built

def residual():
    return net("residual")

def inverted():
    return net("inverted")

def dense():
    return net("dense")

def cross():
    return net("cross")

def gated():
    return net("gated")
"""
FACTORIES = {"residual", "inverted", "dense", "cross", "gated"}
"""ResNet, MobileNet, DenseNet, YOLO's concatenations, a gated transformer."""


@pytest.fixture(autouse=True)
def jobs(monkeypatch):
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{here}:{here.parent}")


def models(names):
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        LlamaConfig,
        LlamaForCausalLM,
        ViTConfig,
        ViTForImageClassification,
    )

    torch.manual_seed(0)
    small = {key: TEXT[key] for key in ("hidden_size", "num_hidden_layers", "intermediate_size")}
    image = {"image_size": 16, "patch_size": 8, "num_attention_heads": 4}
    llama = {**small, "vocab_size": 60, "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": True}
    made = {
        "bert": lambda: BertForSequenceClassification(BertConfig(**TEXT)),
        "vit": lambda: ViTForImageClassification(ViTConfig(**small, **image)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**llama)),
    }
    return {name: make() for name, make in made.items() if name in names}


FEW = ("llama", "residual")
MANY = ("bert", "vit", "inverted", "dense", "cross", "gated", *FEW)


@pytest.fixture(scope="module", params=[FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
def pruned(request, tmp_path_factory):
    """Prune networks in one process (of many two rounds each), and rebuild them in another."""
    base, names, here = tmp_path_factory.mktemp("pruned"), request.param, Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{here}:{here.parent}")
        (base / "net_of_prune.py").write_text(FACTORY)
        patch.chdir(base)
        for name, model in models(names).items():
            intake_torch(str(saved(model, base / f"hf-{name}")), base / name)
        for name in FACTORIES & {*names}:
            intake_torch(f"python:net_of_prune:{name}", base / name)
        rounds = [(name, f"{name}-1", options(name)) for name in names]
        if names == MANY:
            rounds += [(f"{name}-1", f"{name}-2", {"ratio": 0.25, "scope": "layer"}) for name in names]
            rounds += [("llama", "short-1", {"multiple": 8, "layers": 1})]
        jobs = [{"folder": str(base / a), "out": str(base / b), "options": more} for a, b, more in rounds]
        for job in jobs:
            Path(job["out"]).mkdir()
        made = run_in_child("prune_jobs:prune", {"jobs": jobs})
        found = run_in_child("prune_jobs:again", {"folders": [job["out"] for job in jobs]})
    keys = [out for _, out, _ in rounds]
    return base, dict(zip(keys, made, strict=True)), dict(zip(keys, found, strict=True))


def options(name):
    """Ask for what a configuration can say: BERT's cannot say fewer heads of the same width, or a narrower pooler."""
    more = {
        "bert": {"skip": ["bert.encoder.layer.*.attention*", "bert.pooler"]},
        "llama": {"multiple": 8, "scope": "layer", "ratio": 0.6},
    }
    return more.get(name, {})


def test_it_is_rebuilt_bit_equal_in_a_fresh_process(pruned):
    _, made, found = pruned
    for name, row in made.items():
        assert found[name] == {key: row[key] for key in ("digest", "tied", "sizes")}, name
        figures = row["facts"]["pruning"]
        assert figures["after"]["parameters"] < figures["before"]["parameters"]
        assert figures["after"]["macs"] < figures["before"]["macs"]
        assert figures["difference"] < 1e-4


def test_the_configuration_says_it(pruned):
    base, made, found = pruned
    names = [name for name in ("llama-1", "short-1", "bert-1") if name in made]
    classes = ["BertForSequenceClassification" if name == "bert-1" else "LlamaForCausalLM" for name in names]
    folders = [str(base / name) for name in names]
    rows = dict(
        zip(names, run_in_child("prune_jobs:from_config", {"folders": folders, "classes": classes}), strict=True)
    )
    for name, row in rows.items():
        assert row["unexpected"] == []
        assert row["missing"] in ([], ["lm_head.weight"], ["model.embed_tokens.weight"])
        assert made[name]["facts"]["pruning"]["kept_in"] == "config"
        assert [change.kind for change in changes_of(read_record(base / name))] == ["weights"]
    heads = rows["llama-1"]["config"]
    assert heads["head_dim"] == 4
    assert heads["num_attention_heads"] == 2 * heads["num_key_value_heads"] < 8
    assert found["llama-1"]["sizes"]["model.layers.0.self_attn.k_proj.weight"][0] == 4 * heads["num_key_value_heads"]
    if "short-1" in rows:
        assert rows["short-1"]["config"]["num_hidden_layers"] == 1
        assert 0 < rows["bert-1"]["config"]["intermediate_size"] < TEXT["intermediate_size"]


def test_the_record_says_what_the_configuration_cannot(pruned):
    base, made, found = pruned
    if "bert-2" not in made:
        assert changes_of(read_record(base / "residual-1"))[0].kind == "channels"
        return
    assert "channels" in [change.kind for change in changes_of(read_record(base / "bert-2"))]
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert found["bert-2"]["sizes"][query][0] in (8, 16, 24)
    assert any(row["rule"] == "prune-config" for row in made["bert-2"]["facts"]["findings"])


def test_layers_that_are_alike_stay_alike(pruned):
    _, _, found = pruned
    for name in {"bert-2", "vit-1", "llama-1"} & {*found}:
        sizes = found[name]["sizes"]
        for key, shape in sizes.items():
            assert sizes[key.replace(".0.", ".1.")] == shape
