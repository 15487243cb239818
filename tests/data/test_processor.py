"""The preprocessing of Hugging Face model folders: the same pixels as transformers gives, or refused by key."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset
from edgekit.data.images import apply, complete
from edgekit.data.processor import read_image_rule
from edgekit.errors import InputError

VIT = {
    "do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.4, 0.3],
    "image_processor_type": "ViTImageProcessor", "image_std": [0.5, 0.6, 0.7], "resample": 2,
    "rescale_factor": 0.00392156862745098, "size": {"height": 12, "width": 16},
}  # fmt: skip


def rule(tmp_path, config, name="preprocessor_config.json"):
    (tmp_path / name).write_text(json.dumps(config))
    return read_image_rule(tmp_path)[0]


def test_a_current_file(tmp_path):
    found = rule(tmp_path, VIT)
    assert (found.resize, found.interpolation, found.scale) == ((12, 16), "bilinear", 0.00392156862745098)
    assert (found.mean, found.std, found.crop) == ((0.5, 0.4, 0.3), (0.5, 0.6, 0.7), None)


def test_files_of_old_versions(tmp_path):
    old = {"feature_extractor_type": "ViTFeatureExtractor", "do_resize": True, "size": 24, "do_normalize": True,
           "image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # fmt: skip
    found = rule(tmp_path, old)
    assert (found.resize, found.scale, found.interpolation) == ((24, 24), 1 / 255, "bilinear")
    clip = old | {"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 20, "resample": 3}
    found = rule(tmp_path, clip)
    assert (found.resize, found.crop, found.interpolation) == (24, (20, 20), "bicubic")
    found = rule(tmp_path, old | {"feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875, "size": 224})
    assert (found.resize, found.crop) == (256, (224, 224))
    found = rule(tmp_path, old | {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 384})
    assert (found.resize, found.crop) == ((384, 384), None)


def test_steps_that_are_off(tmp_path):
    found = rule(tmp_path, VIT | {"do_resize": False, "do_rescale": False, "do_normalize": False})
    assert (found.resize, found.scale, found.mean, found.std) == (None, 1.0, None, None)


def test_a_processor_inside_a_processor_config(tmp_path):
    found = rule(tmp_path, {"image_processor": VIT, "processor_class": "Some"}, "processor_config.json")
    assert found.resize == (12, 16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "'Detr' is not known"),
        ({"image_processor_type": None}, "unnamed"),
        ({"do_pad": True}, "do_pad"),
        ({"rescale_offset": True}, "rescale_offset"),
        ({"size": {"longest_edge": 3}}, "longest_edge"),
        ({"size": None}, "size"),
        ({"resample": 9}, "resample"),
        ({"image_mean": None}, "image_mean"),
        ({"rescale_factor": "x"}, "rescale_factor"),
        ({"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 16000}, "audio"),
    ],
)
def test_what_is_not_known_is_refused_by_key(tmp_path, change, words):
    with pytest.raises(InputError, match=words) as caught:
        rule(tmp_path, VIT | change)
    assert "preprocessor_config.json" in caught.value.where


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100000])
def test_damaged_files_are_refused(tmp_path, text):
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(InputError, match="JSON"):
        read_image_rule(tmp_path)


def test_the_models_processor_is_used_and_a_declaration_goes_first(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "data").mkdir()
    rule(tmp_path / "model", VIT)
    picture = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "data" / "a.png")
    spec = [TensorSpec(name="pixel_values", dtype="float32", shape=("b", 3, 12, 16))]
    found = open_dataset(str(tmp_path / "data"), spec, processor=tmp_path / "model")
    wanted = (picture / 255 - [0.5, 0.4, 0.3]) / [0.5, 0.6, 0.7]
    np.testing.assert_allclose(found.calibration.sample(0)["pixel_values"][0], wanted.transpose(2, 0, 1), atol=1e-5)
    assert "preprocessor_config.json" in next(f.text for f in found.findings if f.rule == "data-preprocessing-from")
    declared = open_dataset(str(tmp_path / "data"), spec, processor=tmp_path / "model", preprocessing={"kind": "image"})
    assert declared.preprocessing["inputs"]["pixel_values"]["mean"] is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ViT", {"size": {"height": 30, "width": 40}}),
        ("CLIP", {"size": {"shortest_edge": 33}, "crop_size": {"height": 28, "width": 30}}),
        ("CLIP", {"size": {"shortest_edge": 20}, "crop_size": {"height": 33, "width": 27}}),
        ("ConvNext", {"size": {"shortest_edge": 28}, "crop_pct": 0.9}),
        ("MobileNetV2", {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}),
        ("MobileViT", {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}),
        ("Segformer", {"size": {"height": 30, "width": 40}}),
    ],
)
@pytest.mark.parametrize("shape", [(50, 61, 3), (61, 50, 3), (40, 40, 3)])
def test_the_same_pixels_as_transformers(tmp_path, name, options, shape):
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, f"{name}ImageProcessorPil")(**options)
    theirs.save_pretrained(tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    wanted = np.asarray(theirs(Image.fromarray(picture), return_tensors="np")["pixel_values"][0])
    spec = TensorSpec(name="x", dtype="float32", shape=("b", 3, *wanted.shape[1:]))
    found = apply(picture, complete(read_image_rule(tmp_path)[0], spec, "p"), spec)
    assert found.shape == wanted.shape
    # Interpolation may round one of 255 steps the other way; a wrong size, order or scale is far from that.
    assert np.abs(found - wanted).mean() < 1e-3
