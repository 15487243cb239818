"""Declarations: read with every key checked, completed from the model, recorded in full."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.artifact import TensorSpec
from edgekit.data.images import apply, complete, geometry
from edgekit.data.rules import ImageRule, parse, read_sidecar
from edgekit.errors import InputError

NCHW = TensorSpec(name="x", dtype="float32", shape=("b", 3, 16, 12))
GRAY = TensorSpec(name="x", dtype="float32", shape=("b", 1, 28, 28))
NHWC = TensorSpec(name="x", dtype="uint8", shape=(1, 16, 12, 3))


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"kind": "imge"}, "imge"), ({"kind": "image", "resise": 3}, "resise"), ({"resize": 3}, "resize"),
        ({"kind": "image", "resize": "big"}, "resize"), ({"kind": "image", "resize": 0}, "resize"),
        ({"kind": "image", "std": 0}, "std"), ({"kind": "image", "mean": []}, "mean"),
        ({"kind": "image", "scale": "a/b"}, "scale"), ({"kind": "image", "scale": "1/0"}, "scale"),
        ({"kind": "image", "scale": 0}, "scale"), ({"kind": "image", "mean": float("nan")}, "mean"),
        ({"kind": "image", "pad": 256}, "pad"), ({"kind": "image", "interpolation": "magic"}, "magic"),
        ({"kind": "tensor", "input": "y"}, "'y'"), ({"inputs": {"y": {"kind": "tensor"}}}, "'y'"),
        ({"inputs": {"x": {"scale": 1}}}, "kind"), ({"kind": "text", "max_len": 3}, "max_len"),
    ],
)  # fmt: skip
def test_wrong_declarations_name_the_key(declared, words):
    with pytest.raises(InputError, match=words) as caught:
        parse(declared, [NCHW], "preprocessing.toml")
    assert caught.value.where.startswith("preprocessing.toml")
    assert caught.value.remedy


def test_which_input_is_asked_when_it_cannot_be_told():
    other = TensorSpec(name="z", dtype="float32", shape=("b", 4))
    assert list(parse({"kind": "image"}, [NCHW, other], "p").inputs) == ["x"]
    assert list(parse({"kind": "tensor", "input": "z"}, [NCHW, other], "p").inputs) == ["z"]
    with pytest.raises(InputError, match="'x', 'z'"):
        parse({"kind": "tensor"}, [NCHW, other], "p")


@pytest.mark.parametrize(
    "declared",
    [
        {"kind": "image", "resize": 20, "crop": [16, 12], "mean": [1, 2, 3], "std": 4, "scale": "1/2"},
        {"kind": "tensor", "transpose": [2, 0, 1], "expand": 1, "scale": 3, "axis": 1},
        {"kind": "text", "tokenizer": "a/tokenizer.json", "columns": {"text": "review"}, "inputs": {"x": "ids"}},
    ],
)
def test_what_is_recorded_reads_back(declared):
    found = parse(declared, [NCHW], "p")
    record = found.record()
    assert json.loads(json.dumps(record)) == record
    assert parse(record, [NCHW], "p") == found


def test_open_keys_are_taken_from_the_model():
    found = complete(ImageRule(), NCHW, "p")
    assert (found.layout, found.channels, found.resize, found.scale) == ("NCHW", "RGB", (16, 12), 1 / 255)
    found = complete(ImageRule(), GRAY, "p")
    assert (found.layout, found.channels, found.resize) == ("NCHW", "gray", (28, 28))
    found = complete(ImageRule(), NHWC, "p")
    assert (found.layout, found.channels, found.resize, found.scale) == ("NHWC", "RGB", (16, 12), 1.0)
    found = complete(ImageRule(), TensorSpec(name="x", dtype="float32", shape=("b", 3, "h", "w")), "p")
    assert found.resize is None
    found = complete(ImageRule(), TensorSpec(name="x", dtype="float32", shape=(3, 16, 12)), "p")
    assert (found.layout, found.resize) == ("NCHW", (16, 12))


@pytest.mark.parametrize("rule", [ImageRule(), ImageRule(crop=8), ImageRule(resize=(4, 4), fit="cover", mean=0.5)])
@pytest.mark.parametrize("spec", [NCHW, GRAY, NHWC])
def test_completing_twice_changes_nothing(rule, spec):
    once = complete(rule, spec, "p")
    assert complete(once, spec, "p") == once


@pytest.mark.parametrize(
    ("rule", "spec", "words"),
    [
        (ImageRule(), TensorSpec(name="x", dtype="float32", shape=("b", 784)), "cannot be fed"),
        (ImageRule(), TensorSpec(name="x", dtype="float32", shape=("b", 6, 8, 8)), "which axis"),
        (ImageRule(channels="gray"), NCHW, "1 channels, the model wants 3"),
        (ImageRule(layout="NHWC"), NCHW, "the model wants 12"),
        (ImageRule(mean=(1.0, 2.0)), NCHW, "mean has 2 numbers for 3 channels"),
        (ImageRule(mean=(123.7, 116.3, 103.5)), NCHW, "no scale is declared"),
        (ImageRule(fit="cover", resize=5), NCHW, "fit"),
        (ImageRule(std=2.0), NHWC, "integer"),
    ],
)
def test_contradictions_are_refused(rule, spec, words):
    with pytest.raises(InputError, match=words):
        complete(rule, spec, "p")


SIDES = st.integers(1, 300)


@given(SIDES, SIDES, SIDES, SIDES, st.sampled_from(["stretch", "cover", "contain"]))
def test_a_size_is_reached_whatever_the_picture(height, width, rows, columns, fit):
    found = geometry(height, width, ImageRule(resize=(rows, columns), fit=fit))
    assert found.window == (rows, columns)
    if fit == "cover":
        assert found.size[0] >= rows
        assert found.size[1] >= columns
        assert rows in found.size[:1] or columns in found.size[1:]
    if fit == "contain":
        assert found.size[0] <= rows
        assert found.size[1] <= columns
        assert rows in found.size[:1] or columns in found.size[1:]


@given(SIDES, SIDES, SIDES, SIDES)
def test_the_shorter_side_is_reached_and_cropped(height, width, short, crop):
    found = geometry(height, width, ImageRule(resize=short, crop=crop))
    assert min(found.size) == short
    assert found.window == (crop, crop)
    # the same number of pixels is cut (or added) on both sides, at most one more on one of them
    for size, start in ((found.size[0], found.top), (found.size[1], found.left)):
        assert abs((size - crop - start) - start) <= 1


def test_apply_computes_what_is_said():
    picture = np.random.default_rng(0).integers(0, 256, (16, 12, 3), np.uint8)
    rule = complete(ImageRule(scale="1/255", mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)), NCHW, "p")
    wanted = (picture / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
    found = apply(picture, rule, NCHW)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.transpose(2, 0, 1), atol=1e-6)
    bgr = apply(picture, complete(ImageRule(channels="BGR"), NCHW, "p"), NCHW)
    np.testing.assert_allclose(bgr, picture[..., ::-1].transpose(2, 0, 1) / 255, atol=1e-6)
    plain = apply(picture, complete(ImageRule(), NHWC, "p"), NHWC)
    np.testing.assert_array_equal(plain, picture)


def test_gray_is_repeated_for_color_inputs():
    picture = np.random.default_rng(0).integers(0, 256, (16, 12), np.uint8)
    found = apply(picture, complete(ImageRule(), NCHW, "p"), NCHW)
    np.testing.assert_allclose(found, np.stack([picture / 255] * 3), atol=1e-6)


def test_contain_pads_around_and_crop_pads_small_pictures():
    picture = np.full((4, 8), 200, np.uint8)
    spec = TensorSpec(name="x", dtype="uint8", shape=(1, 1, 8, 8))
    found = apply(picture, complete(ImageRule(resize=(8, 8), fit="contain", pad=7), spec, "p"), spec)[0]
    assert (found[2:6] == 200).all()
    assert (found[:2] == 7).all()
    assert (found[6:] == 7).all()
    found = apply(picture, complete(ImageRule(crop=8, pad=9), spec, "p"), spec)[0]
    assert (found[2:6] == 200).all()
    assert (found[[0, 1, 6, 7]] == 9).all()


def test_16_bit_pictures_keep_their_precision_through_resizing():
    wide = np.linspace(0, 255, 64 * 64, dtype=np.float32).reshape(64, 64)
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 1, 32, 32))
    found = apply(wide, complete(ImageRule(interpolation="box"), spec, "p"), spec)[0]
    wanted = wide.reshape(32, 2, 32, 2).mean(axis=(1, 3)) / 255
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_sidecars(tmp_path):
    assert read_sidecar(tmp_path) is None
    (tmp_path / "preprocessing.toml").write_text('kind = "image"\nresize = [4, 4]\n')
    assert read_sidecar(tmp_path)[0] == {"kind": "image", "resize": [4, 4]}
    (tmp_path / "edgekit-data.toml").write_text("labels = []\n")
    with pytest.raises(InputError, match="two sidecars"):
        read_sidecar(tmp_path)
    (tmp_path / "edgekit-data.toml").unlink()
    (tmp_path / "preprocessing.toml").write_text("kind = image")
    with pytest.raises(InputError, match="TOML") as caught:
        read_sidecar(tmp_path)
    assert "preprocessing.toml" in caught.value.where
