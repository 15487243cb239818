"""One tiny model for each kind of input and task: what a Hugging Face directory may hold."""

import pytest

from edgekit.networks.capture import capture
from edgekit.networks.intake import intake_torch
from torch_models import TEXT, saved

VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SPEECH = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 4, 4),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
SPECTRUM = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
CASES = {
    "bert-tokens": ("BertForTokenClassification", "BertConfig", TEXT, "token-classification"),
    "bert-answers": ("BertForQuestionAnswering", "BertConfig", TEXT, "question-answering"),
    "bert-choice": ("BertForMultipleChoice", "BertConfig", TEXT, "multiple-choice"),
    "bert-words": ("BertForMaskedLM", "BertConfig", TEXT, "fill-mask"),
    "bert": ("BertModel", "BertConfig", TEXT, "feature-extraction"),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", TEXT, "text-classification"),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        "text-classification",
    ),
    "layoutlm": ("LayoutLMForTokenClassification", "LayoutLMConfig", TEXT, "token-classification"),
    "xlnet": (
        "XLNetForSequenceClassification",
        "XLNetConfig",
        {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
        "text-classification",
    ),
    "t5": (
        "T5Model",
        "T5Config",
        {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        "feature-extraction",
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", VISION, "image-classification"),
    "deit": ("DeiTForImageClassification", "DeiTConfig", VISION, "image-classification"),
    "resnet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "image-classification",
    ),
    "mobilenet": (
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        {"image_size": 32, "depth_multiplier": 0.35},
        "image-classification",
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "image_size": 64,
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
        },
        "image-segmentation",
    ),
    "yolos": (
        "YolosForObjectDetection",
        "YolosConfig",
        {**VISION, "image_size": [32, 32], "num_detection_tokens": 5},
        "object-detection",
    ),
    "clip": ("CLIPModel", "CLIPConfig", {"text_config": TEXT, "vision_config": VISION}, "feature-extraction"),
    "wav2vec": ("Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, "automatic-speech-recognition"),
    "spectrum": (
        "ASTForAudioClassification",
        "ASTConfig",
        {**SPECTRUM, "patch_size": 8, "max_length": 32, "num_mel_bins": 16, "time_stride": 8, "frequency_stride": 8},
        "audio-classification",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_it_becomes_one_graph_that_computes_the_same(name, tmp_path):
    import torch
    import transformers

    model, config, sizes, task = CASES[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    awake(made)
    facts = intake_torch(str(saved(made, tmp_path / "m")), tmp_path / "artifact")
    assert facts["task"] == task
    (tmp_path / "out").mkdir()
    arguments = {"folder": str(tmp_path / "artifact"), "out": str(tmp_path / "out"), "opset": 18, "dynamic": True}
    found = capture({**arguments, "shapes": {}, "dtypes": {}, "tolerance": 1e-4, "threads": 1}, lambda _event: None)
    assert found["task"] == task
    graph = found["graphs"]["model.onnx"]
    assert all(spec["shape"][0] == "batch" for spec in (*graph["inputs"], *graph["outputs"]))
    assert [finding["rule"] for finding in found["findings"]] == (["capture-path"] if name == "xlnet" else [])


def awake(made):
    """Give an untrained network outputs that its input reaches: random BatchNorm statistics, larger last layers."""
    import torch

    with torch.no_grad():
        for part in made.modules():
            if isinstance(part, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(part.weight)
            if isinstance(part, torch.nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.5, 2)
