import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import edgekit
from edgekit.errors import InputError, UnsupportedError
from edgekit.networks.huggingface import labels_of, task_of
from edgekit.networks.intake import intake_torch
from torch_models import bare_directory, safetensors_bytes


def take(folder, tmp_path, **options):
    return intake_torch(str(folder), tmp_path / "out", **options)


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_directory_becomes_files_and_facts(tmp_path):
    source = bare_directory(
        tmp_path / "m", id2label={"1": "dog", "0": "cat", "10": "k", **{str(i): str(i) for i in range(2, 10)}}
    )
    (source / "README.md").write_text("---\ntags: [a]\nlicense: apache-2.0\n---\n# A model\n")
    (source / "LICENSE").write_text("the terms")
    (source / "tokenizer.json").write_text("{}")
    (source / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": 10**30, "do_lower_case": True, "name_or_path": "/home/me/m"})
    )
    (source / "preprocessor_config.json").write_text('{"size": {"height": 32, "width": 32}, "image_mean": [0.5]}')
    (source / "modeling_m.py").write_text("raise SystemExit")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    facts = take(source, tmp_path)
    assert files(tmp_path / "out") == [
        "hf/LICENSE", "hf/config.json", "hf/model.safetensors", "hf/preprocessor_config.json", "hf/tokenizer.json",
        "hf/tokenizer_config.json", "record.json",
    ]  # fmt: skip
    assert facts["kind"] == "torch"
    assert facts["task"] == "text-classification"
    assert facts["labels"] == ["cat", "dog", *map(str, range(2, 10)), "k"]
    assert facts["license"] == {"name": "apache-2.0", "text": "the terms"}
    assert facts["preprocessing"]["tokenizer"] == {"do_lower_case": True}
    assert facts["preprocessing"]["tokenizer_file"] == "hf/tokenizer.json"
    assert facts["preprocessing"]["preprocessor"]["image_mean"] == [0.5]
    json.dumps(facts)


def test_nothing_is_a_hard_link_and_links_are_followed(tmp_path):
    source = bare_directory(tmp_path / "m")
    blob = tmp_path / "blob"
    (source / "model.safetensors").rename(blob)
    (source / "model.safetensors").symlink_to(blob)
    take(source, tmp_path)
    copy = tmp_path / "out" / "hf" / "model.safetensors"
    assert not copy.is_symlink()
    assert copy.stat().st_ino != blob.stat().st_ino
    assert blob.stat().st_nlink == 1
    assert copy.read_bytes() == blob.read_bytes()


def test_torch_is_not_imported(tmp_path):
    source = bare_directory(tmp_path / "m")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from edgekit.networks.intake import intake_torch; import edgekit.stages.capture;"
        "intake_torch(sys.argv[2], Path(sys.argv[3]));"
        "print([m for m in ('torch', 'transformers', 'optimum', 'onnx', 'safetensors') if m in sys.modules])"
    )
    root = str(Path(edgekit.__file__).parent.parent)
    argv = [sys.executable, "-c", code, root, str(source), str(tmp_path / "out")]
    assert subprocess.run(argv, capture_output=True, check=True, text=True).stdout.strip() == "[]"


def test_shards_come_with_their_index(tmp_path):
    source = bare_directory(tmp_path / "m")
    (source / "model.safetensors").unlink()
    for name in "ab":
        (source / f"model-{name}.safetensors").write_bytes(safetensors_bytes({name: np.ones(3, np.float32)}))
    index = {"weight_map": {"a": "model-a.safetensors", "b": "model-b.safetensors"}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    take(source, tmp_path)
    assert {"hf/model-a.safetensors", "hf/model-b.safetensors", "hf/model.safetensors.index.json"} <= set(
        files(tmp_path / "out")
    )


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {"a": "../x.safetensors"}}, "unsafe shard name"),
        ({"weight_map": {"a": "/etc/x.safetensors"}}, "unsafe shard name"),
        ({"weight_map": {"a": "x.bin"}}, "unsafe shard name"),
        ({"weight_map": {"a": "gone.safetensors"}}, "missing"),
        ({"weight_map": {"absent": "model.safetensors"}}, "in no shard"),
        ({"weight_map": {}}, "weight_map"),
        ({}, "weight_map"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path, index, said):
    source = bare_directory(tmp_path / "m")
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=said):
        take(source, tmp_path)


def test_pickles_are_refused_with_the_remedy(tmp_path):
    source = bare_directory(tmp_path / "m")
    (source / "model.safetensors").rename(source / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickle") as caught:
        take(source, tmp_path)
    assert caught.value.where == "pytorch_model.bin"
    assert "safetensors" in caught.value.remedy


@pytest.mark.parametrize(
    ("config", "error", "where"),
    [
        ({"auto_map": {"AutoModel": "modeling_m.M"}}, UnsupportedError, "config.json: auto_map"),
        ({"quantization_config": {"bits": 4}}, UnsupportedError, "config.json: quantization_config"),
        ({"architectures": "Bert"}, InputError, "config.json: architectures"),
        ({"architectures": [3]}, InputError, "config.json: architectures"),
        ({"model_type": None}, InputError, "config.json: model_type"),
        ({"id2label": {"0": "a", "2": "b"}}, InputError, "config.json: id2label"),
        ({"id2label": {"x": "a"}}, InputError, "config.json: id2label"),
    ],
)
def test_a_config_that_cannot_be_used_names_its_key(tmp_path, config, error, where):
    with pytest.raises(error) as caught:
        take(bare_directory(tmp_path / "m", **config), tmp_path)
    assert caught.value.where == where
    assert caught.value.remedy


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b'{"a":' * 30_000, b"null"])
def test_a_broken_config_is_refused(tmp_path, raw):
    source = bare_directory(tmp_path / "m")
    (source / "config.json").write_bytes(raw)
    with pytest.raises(InputError) as caught:
        take(source, tmp_path)
    assert caught.value.where == "config.json"


@pytest.mark.parametrize(
    ("name", "error"),
    [("adapter_config.json", UnsupportedError), ("model_index.json", UnsupportedError), ("x", InputError)],
)
def test_other_directories_are_told_apart(tmp_path, name, error):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_text("{}")
    with pytest.raises(error):
        take(tmp_path / "m", tmp_path)


def test_several_weight_files_without_an_index_are_refused(tmp_path):
    source = bare_directory(tmp_path / "m")
    (source / "model.safetensors").rename(source / "one.safetensors")
    take(source, tmp_path)
    (source / "two.safetensors").write_bytes((source / "one.safetensors").read_bytes())
    with pytest.raises(InputError, match="2 safetensors files"):
        intake_torch(str(source), tmp_path / "out2")


def test_a_model_without_an_architecture_is_a_finding(tmp_path):
    facts = take(bare_directory(tmp_path / "m", architectures=None), tmp_path)
    assert facts["task"] == "feature-extraction"
    assert [finding["rule"] for finding in facts["findings"]] == ["no-architecture"]


def test_float64_weights_are_a_finding(tmp_path):
    source = bare_directory(tmp_path / "m")
    (source / "model.safetensors").write_bytes(safetensors_bytes({"w": np.ones(2)}))
    assert [finding["rule"] for finding in take(source, tmp_path)["findings"]] == ["float64-weights"]


def test_placeholder_names_are_no_names():
    assert labels_of({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}) == []
    assert labels_of({"id2label": {"0": "LABEL_1", "1": "LABEL_0"}}) == ["LABEL_1", "LABEL_0"]
    assert labels_of({}) == []


@pytest.mark.parametrize(
    ("architecture", "config", "task"),
    [
        ("BertModel", {}, "feature-extraction"),
        ("ViTForImageClassification", {"image_size": 4}, "image-classification"),
        ("DeiTForImageClassificationWithTeacher", {}, "image-classification"),
        ("BartForConditionalGeneration", {}, "text2text-generation"),
        ("WhisperForConditionalGeneration", {"num_mel_bins": 80}, "automatic-speech-recognition"),
        ("LlavaForConditionalGeneration", {"vision_config": {}}, "image-text-to-text"),
        ("Wav2Vec2ForSequenceClassification", {"num_feat_extract_layers": 7}, "audio-classification"),
        ("GPT2LMHeadModel", {}, "text-generation"),
        ("ViltForQuestionAnswering", {"image_size": 4}, "visual-question-answering"),
    ],
)
def test_the_task_follows_from_the_architecture(architecture, config, task):
    assert task_of(architecture, config) == task


@pytest.mark.parametrize("model", ["nothing-here", "no/such/path/at/all", "a b/c", "x.onx"])
def test_what_is_no_model_is_refused_without_a_network(tmp_path, model):
    with pytest.raises(InputError, match="no such file"):
        intake_torch(model, tmp_path / "out")


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "m.pth").write_bytes(b"x")
    with pytest.raises(InputError, match="no model of PyTorch"):
        intake_torch(str(tmp_path / "m.pth"), tmp_path / "out")


def test_a_hub_id_without_a_hub_is_a_target_error(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    with pytest.raises(Exception, match="hub cannot be reached") as caught:
        intake_torch("owner/name@main", tmp_path / "out")
    assert caught.value.exit_status == 5
    assert caught.value.where == "owner/name"


def test_a_hub_model_in_the_cache_needs_no_hub(tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    place = tmp_path / "cache" / "hub" / "models--owner--name"
    bare_directory(place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    heard = []
    facts = intake_torch("owner/name", tmp_path / "out", listen=heard.append)
    assert facts["source"]["id"] == "owner/name"
    assert facts["source"]["revision"] == commit
    assert "hub-cache" in [event.finding.rule for event in heard if hasattr(event, "finding")]
