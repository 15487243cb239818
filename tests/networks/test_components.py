"""Models that generate: several graphs, and the same tokens as torch when they are run in a loop."""

import numpy as np
import onnxruntime
import pytest

from edgekit.errors import UnsupportedError
from edgekit.networks.capture import capture
from edgekit.networks.components import components
from edgekit.networks.intake import intake_torch
from edgekit.networks.rebuild import rebuild
from torch_models import TEXT, saved

torch = pytest.importorskip("torch")

BART = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(**{**TEXT, "num_hidden_layers": 1}, num_key_value_heads=2, tie_word_embeddings=True)
    )


def mistral():
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=4))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64))


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))


def bart():
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(BartConfig(**BART, max_position_embeddings=64, forced_eos_token_id=None))


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"num_mel_bins": 20, "max_source_positions": 50, "max_target_positions": 40}
    tokens = {"decoder_start_token_id": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return WhisperForConditionalGeneration(WhisperConfig(**BART, **sizes, **tokens))


def captured(make, tmp_path):
    torch.manual_seed(0)
    model = make().eval()
    intake_torch(str(saved(model, tmp_path / "m")), tmp_path / "artifact")
    (tmp_path / "out").mkdir()
    arguments = {"folder": str(tmp_path / "artifact"), "out": str(tmp_path / "out"), "opset": 18, "dynamic": True}
    options = {"shapes": {}, "dtypes": {}, "tolerance": 1e-4, "threads": 1}
    return model, capture({**arguments, **options}, lambda _event: None)


def session(tmp_path, name):
    return onnxruntime.InferenceSession(tmp_path / "out" / name, providers=["CPUExecutionProvider"])


def empty(part):
    """The past before the first token."""
    feed = {}
    for value in part.get_inputs():
        if value.name.startswith("past_key_values."):
            feed[value.name] = np.zeros((2, value.shape[1], 0, value.shape[3]), np.float32)
    return feed


def step(part, feed):
    found = dict(zip([output.name for output in part.get_outputs()], part.run(None, feed), strict=True))
    past = {name.replace("present", "past_key_values"): found[name] for name in found if name.startswith("present")}
    return found["logits"], past


def decoded(part, prompt, steps):
    """Greedy decoding with the exported decoder: the prompt at once, then token by token."""
    ids, past, made = prompt, empty(part), prompt
    for _ in range(steps):
        before, length = made.shape[1] - ids.shape[1], made.shape[1]
        feed = {"input_ids": ids, "attention_mask": np.ones((2, length), np.int64), **past}
        feed["position_ids"] = np.tile(np.arange(before, length), (2, 1))
        logits, past = step(part, feed)
        ids = logits[:, -1:].argmax(-1)
        made = np.concatenate([made, ids], axis=1)
    return made


def reference(model, prompt, steps):
    """Greedy decoding without any cache."""
    made = torch.from_numpy(prompt)
    with torch.no_grad():
        for _ in range(steps):
            made = torch.cat([made, model(made, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return made.numpy()


def check_decoder(make, tmp_path):
    model, facts = captured(make, tmp_path)
    assert list(facts["graphs"]) == ["model.onnx"]
    prompt = np.array([[5, 17, 40, 8, 9], [60, 61, 2, 33, 7]])
    found = decoded(session(tmp_path, "model.onnx"), prompt, 8)
    assert found.tolist() == reference(model, prompt, 8).tolist()
    return facts


def test_a_decoder_with_its_cache_is_one_graph(tmp_path):
    facts = check_decoder(llama, tmp_path)
    shapes = {
        spec["name"]: list(spec["shape"])
        for side in ("inputs", "outputs")
        for spec in facts["graphs"]["model.onnx"][side]
    }
    assert shapes["input_ids"] == ["batch", "sequence"]
    assert shapes["attention_mask"] == ["batch", "total_sequence"]
    assert shapes["past_key_values.0.value"] == ["batch", 2, "past_sequence", 8]
    assert shapes["present.0.value"] == ["batch", 2, "total_sequence", 8]
    assert shapes["logits"] == ["batch", "sequence", 100]
    checked = facts["capture"]["model.onnx"]["checked"]
    assert 0 in {check["past_sequence"] for check in checked}, "an empty past is among what is compared"


@pytest.mark.slow
@pytest.mark.parametrize("make", [mistral, gpt2])
def test_other_decoders_give_the_same_tokens(make, tmp_path):
    check_decoder(make, tmp_path)


def check_pair(make, tmp_path, feed):
    """Compare greedy decoding by the two graphs with that of torch without a cache."""
    model, facts = captured(make, tmp_path)
    assert list(facts["graphs"]) == ["encoder.onnx", "decoder.onnx"]
    encoder, decoder = session(tmp_path, "encoder.onnx"), session(tmp_path, "decoder.onnx")
    names = [output.name for output in encoder.get_outputs()]
    cross = dict(zip(names, encoder.run(None, feed), strict=True))
    hidden = cross.pop("last_hidden_state")
    start = np.full((2, 1), model.config.decoder_start_token_id)
    ids, past, made = start, empty(decoder), start
    fixed = {**cross, **{name: feed[name] for name in ("attention_mask",) if name in feed}}
    given = {name: torch.from_numpy(value) for name, value in feed.items()}
    assert np.abs(hidden - model.get_encoder()(**given).last_hidden_state.detach().numpy()).max() < 1e-4
    wanted = torch.from_numpy(start)
    for _ in range(6):
        logits, past = step(decoder, {"decoder_input_ids": ids, **fixed, **past})
        ids = logits[:, -1:].argmax(-1)
        made = np.concatenate([made, ids], axis=1)
        with torch.no_grad():
            best = model(**given, decoder_input_ids=wanted, use_cache=False).logits[:, -1:].argmax(-1)
        wanted = torch.cat([wanted, best], dim=1)
    assert made.tolist() == wanted.tolist()
    return facts


def text(length):
    mask = np.ones((2, length), np.int64)
    mask[1, length - 2 :] = 0
    return {"input_ids": np.arange(2 * length).reshape(2, length) + 5, "attention_mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize("make", [t5, bart])
def test_an_encoder_decoder_is_two_graphs(make, tmp_path):
    facts = check_pair(make, tmp_path, text(7))
    shapes = {spec["name"]: list(spec["shape"]) for spec in facts["graphs"]["decoder.onnx"]["inputs"]}
    assert shapes["cross.1.key"] == ["batch", 4, "encoder_sequence", 8]
    assert shapes["past_key_values.0.key"] == ["batch", 4, "past_sequence", 8]


@pytest.mark.slow
def test_speech_is_two_graphs(tmp_path):
    features = np.random.default_rng(0).normal(size=(2, 20, 100)).astype(np.float32)
    check_pair(whisper, tmp_path, {"input_features": features})


def test_what_cannot_be_taken_apart_says_why(tmp_path):
    from transformers import BlipConfig, BlipForConditionalGeneration, MambaConfig, MambaForCausalLM

    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    for model, said in (
        (
            MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4)),
            "keys and values",
        ),
        (
            BlipForConditionalGeneration(
                BlipConfig(text_config=TEXT, vision_config={**vision, "image_size": 32, "patch_size": 8})
            ),
            "several graphs",
        ),
    ):
        name = type(model).__name__
        intake_torch(str(saved(model, tmp_path / name)), tmp_path / f"{name}-artifact")
        with pytest.raises(UnsupportedError, match=said) as caught:
            [make() for make in components(rebuild(tmp_path / f"{name}-artifact")).values()]
        assert caught.value.where == name
