"""Models of transformers with random weights, saved and rebuilt."""

import json
import shutil

import pytest

from edgekit.errors import InputError, UnsupportedError
from edgekit.networks.intake import intake_torch
from edgekit.networks.pretrained import known_task, load_pretrained
from edgekit.networks.rebuild import rebuild
from torch_models import TEXT, bert, saved

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(bert(), tmp_path_factory.mktemp("bert") / "m")


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "m")


def changed(folder, **config):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return folder


def taken(folder, tmp_path):
    intake_torch(str(folder), tmp_path / "artifact")
    return tmp_path / "artifact"


def weights_of(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_weights_are_rebuilt_bit_exactly_with_eager_attention(folder, tmp_path):
    network = rebuild(taken(folder, tmp_path))
    state = network.module.state_dict()
    for name, value in weights_of(folder).items():
        assert state[name].numpy().tobytes() == value.numpy().tobytes(), name
    assert network.module.config._attn_implementation == "eager"
    assert not network.module.training
    assert network.pretrained
    assert network.task == "text-classification"
    assert list(network.examples) == ["input_ids", "attention_mask", "token_type_ids"]


def test_half_precision_files_are_computed_in_float32(folder, tmp_path):
    half = saved(bert().half(), tmp_path / "half")
    assert json.loads((half / "config.json").read_text())["dtype"] == "float16"
    module = rebuild(taken(half, tmp_path)).module
    for name, value in weights_of(half).items():
        assert module.state_dict()[name].dtype == torch.float32
        assert torch.equal(module.state_dict()[name].half(), value)


def test_ties_stay_tied(tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(**TEXT))
    module = rebuild(taken(saved(model, tmp_path / "m"), tmp_path)).module
    assert module.cls.predictions.decoder.weight is module.bert.embeddings.word_embeddings.weight


def test_a_head_without_weights_is_refused(copy):
    from safetensors.torch import save_file

    state = weights_of(copy)
    save_file({name: value for name, value in state.items() if "classifier" not in name}, copy / "model.safetensors")
    with pytest.raises(InputError, match="would be random") as caught:
        load_pretrained(copy, "BertForSequenceClassification")
    assert caught.value.where == "classifier.bias"


def test_weights_of_another_size_are_refused(copy):
    with pytest.raises(InputError):
        load_pretrained(changed(copy, hidden_size=16), "BertForSequenceClassification")


def test_a_missing_pooler_is_left_out(tmp_path):
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**TEXT), add_pooling_layer=False)
    network = rebuild(taken(saved(model, tmp_path / "m"), tmp_path))
    assert list(network.run(network.feed(network.sizes))) == ["last_hidden_state"]


def test_weights_that_no_part_uses_are_told(copy):
    model, findings = load_pretrained(copy, "BertModel")
    assert type(model).__name__ == "BertModel"
    assert [finding.rule for finding in findings] == ["unused-weights"]
    assert "2 tensors" in findings[0].text


@pytest.mark.parametrize(
    "architecture", ["NoSuchModel", "BertTokenizer", "AutoModelForCausalLM", "__version__", "pipeline"]
)
def test_an_unknown_architecture_is_not_supported(copy, architecture):
    with pytest.raises(UnsupportedError, match=architecture):
        load_pretrained(copy, architecture)


def test_an_unknown_model_type_is_not_supported(copy):
    with pytest.raises(UnsupportedError, match="does not know"):
        load_pretrained(changed(copy, model_type="nonesuch"), "BertModel")


def test_code_beside_the_model_does_not_run(copy, tmp_path):
    flag = tmp_path / "ran"
    (copy / "modeling_bert.py").write_text(f"open({str(flag)!r}, 'w')")
    changed(copy, auto_map={"AutoModel": "modeling_bert.BertModel", "AutoConfig": "modeling_bert.BertConfig"})
    load_pretrained(copy, "BertForSequenceClassification")
    assert not flag.exists()


def test_the_tokenizer_says_whether_types_are_fed(copy, tmp_path):
    (copy / "tokenizer_config.json").write_text('{"model_input_names": ["input_ids", "attention_mask"]}')
    assert list(rebuild(taken(copy, tmp_path)).examples) == ["input_ids", "attention_mask"]


def test_shapes_override_and_add_inputs(folder, tmp_path):
    artifact = taken(folder, tmp_path)
    network = rebuild(artifact, shapes={"input_ids": [1, 8], "position_ids": [1, 8]})
    assert list(network.examples) == ["input_ids", "attention_mask", "token_type_ids", "position_ids"]
    assert network.examples["position_ids"].dtype == torch.int64
    assert network.axes["input_ids"] == {0: "batch"}
    with pytest.raises(InputError, match="no input") as caught:
        rebuild(artifact, shapes={"input_id": [1, 8]})
    assert "input_ids" in caught.value.remedy


def test_the_size_of_images_comes_from_the_processor(tmp_path):
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1]))
    source = saved(model, tmp_path / "m")
    for processor, size in (
        ({"size": {"shortest_edge": 48}, "do_center_crop": True, "crop_size": {"height": 40, "width": 32}}, (40, 32)),
        ({"size": {"height": 24, "width": 16}}, (24, 16)),
        ({"size": 20}, (20, 20)),
        ({"size": {"shortest_edge": 36}}, (36, 36)),
        ({"size": 20, "do_resize": False}, (224, 224)),
    ):
        (source / "preprocessor_config.json").write_text(json.dumps(processor))
        shutil.rmtree(tmp_path / "artifact", ignore_errors=True)
        network = rebuild(taken(source, tmp_path))
        assert network.examples["pixel_values"].shape == (3, 3, *size)
        assert network.axes == {"pixel_values": {0: "batch"}}


def test_optimum_tables_settle_the_task():
    assert known_task("BartForConditionalGeneration", "text2text-generation") == "text2text-generation"
    assert known_task("DeiTForImageClassificationWithTeacher", "image-classification") == "image-classification"
    assert known_task("XLMWithLMHeadModel", "feature-extraction") == "fill-mask"
    assert known_task("SomethingElse", "feature-extraction") == "feature-extraction"
