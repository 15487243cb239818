import json
import math

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from edgekit.errors import InputError, IntegrityError, UsageError
from edgekit.run import label_outputs, run_package
from edgekit.signing import generate_key
from edgekit.target import Bundle
from packages import artifact, color_package, feeds, outputs, save_model, tiny_package


@pytest.fixture(scope="module")
def colors(tmp_path_factory):
    return color_package(tmp_path_factory.mktemp("colors"))


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    return tiny_package(tmp_path_factory.mktemp("linear"), labels=())


def picture(path, color, size=(20, 10)):
    Image.new("RGB", size, color).save(path)
    return str(path)


def test_pictures_get_labels(tmp_path, colors):
    names = [picture(tmp_path / "a.png", (255, 0, 0)), picture(tmp_path / "b.png", (0, 0, 255))]
    result = run_package(colors.path, names, top=2)
    assert [sample.labels[0][0] for sample in result.samples] == ["red", "blue"]
    assert [sample.source for sample in result.samples] == names
    expected = math.exp(9) / (math.exp(9) + 2)
    assert result.samples[0].labels[0][1] == pytest.approx(expected)
    assert len(result.samples[0].labels) == 2
    told = result.to_dict()
    json.dumps(told)
    assert told["samples"][1]["labels"][0]["label"] == "blue"
    assert told["engine"]["runtime"] == "onnxruntime"
    title, headings, rows = result.tables()[0]
    assert (title, headings) == (names[0], ("label", "probability"))
    assert rows[0] == ("red", f"{expected:.2%}")


def test_probabilities_are_left_as_they_are(tmp_path):
    package = color_package(tmp_path, layers=("Softmax",))
    result = run_package(package.path, [picture(tmp_path / "a.png", (0, 255, 0))])
    (sample,) = result.samples
    assert sample.labels[0][1] == pytest.approx(math.exp(9) / (math.exp(9) + 2))


def test_arrays_come_back_whole(tmp_path, linear):
    given = [str(tmp_path / f"{i}.npz") for i in range(2)]
    for name, feed in zip(given, feeds(2), strict=True):
        np.savez(name, **feed)
    np.save(tmp_path / "2.npy", feeds(3)[2]["x"])
    out = tmp_path / "out.npz"
    result = run_package(linear.path, [*given, str(tmp_path / "2.npy")], out=out)
    with np.load(out) as found:
        assert sorted(found.files) == ["0:y", "1:y", "2:y"]
        for index, expected in enumerate(outputs(feeds(3))):
            np.testing.assert_allclose(found[f"{index}:y"], expected["y"], rtol=1e-5)
    assert result.out == out
    run_package(linear.path, given[:1], out=out)
    with np.load(out) as found:
        assert found.files == ["y"]


def test_what_is_no_classifier_is_described(tmp_path):
    package = tiny_package(tmp_path, labels=(), artifact=regression(tmp_path))
    np.save(tmp_path / "x.npy", feeds(1)[0]["x"])
    result = run_package(package.path, [str(tmp_path / "x.npy")])
    (sample,) = result.samples
    assert sample.labels == ()
    ((title, headings, rows),) = result.tables()
    assert (title, headings[0]) == (str(tmp_path / "x.npy"), "output")
    assert rows[0][:3] == ("y", "float32", "[1, 3]")
    assert result.to_dict()["samples"][0]["outputs"]["y"]["shape"] == [1, 3]


def regression(folder):
    save_model(folder / "compiled" / "model.onnx")
    return artifact(folder / "compiled" / "model.onnx", task="regression")


def test_text(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    package = text_package(tmp_path)
    (tmp_path / "review.txt").write_text("bad bad good")
    np.savez(tmp_path / "ids.npz", input_ids=np.array([[2, 2]]))
    result = run_package(package.path, ["good good bad", str(tmp_path / "review.txt"), str(tmp_path / "ids.npz")])
    assert [sample.labels[0][0] for sample in result.samples] == ["positive", "negative", "positive"]
    long = run_package(package.path, ["good " * 2000]).samples[0]
    assert long.labels[0][0] == "positive"
    np.savez(tmp_path / "wrong.npz", ids=np.array([[2, 2]]))
    with pytest.raises(InputError, match="no array 'input_ids'"):
        run_package(package.path, [str(tmp_path / "wrong.npz")])


def text_package(folder):
    """A bag of words: [PAD], [UNK], good, bad -> negative, positive."""
    table = np.array([[0, 0], [0, 0], [0, 3], [3, 0]], np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["words"]),
            helper.make_node("ReduceMean", ["words"], ["logits"], axes=[1], keepdims=0),
        ],
        "words",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "s"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(table, "table")],
    )
    (folder / "compiled").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "compiled" / "model.onnx")
    sides = {
        "inputs": [{"name": "input_ids", "dtype": "int64", "shape": ["n", "s"]}],
        "outputs": [{"name": "logits", "dtype": "float32", "shape": ["n", 2]}],
    }
    rule = {"kind": "text", "tokenizer": "tokenizer.json", "max_length": 64, "padding": "none", "pad_id": 0}
    rule |= {"padding_side": "right", "inputs": {"input_ids": "ids"}}
    return tiny_package(
        folder,
        artifact=artifact(folder / "compiled" / "model.onnx", graphs={"model.onnx": sides}),
        preprocessing={"text": rule},
        preprocessing_files=(folder / "tokenizer.json",),
        labels=("negative", "positive"),
        golden=None,
    )


def test_what_did_not_run_as_packaged_is_said(tmp_path):
    color_package(tmp_path)
    facts = {"runtime": "onnxruntime", "model": "model.onnx", "providers": ["QNNExecutionProvider"]}
    package = color_package(tmp_path, compiled=Bundle(folder=tmp_path / "compiled", facts=facts))
    result = run_package(package.path, [picture(tmp_path / "a.png", (255, 0, 0))])
    assert result.fallback["asked"] == ["QNNExecutionProvider"]
    assert result.tables()[-1][0] == "not run as packaged"


def test_inputs_that_do_not_fit(tmp_path, colors, linear):
    (tmp_path / "a.png").write_bytes(b"no picture")
    np.save(tmp_path / "x.npy", np.zeros((1, 5), np.float32))
    for package, name in [
        (colors, "a.png"),
        (colors, "missing.png"),
        (linear, "x.npy"),
        (linear, "some text"),
    ]:
        with pytest.raises(InputError) as caught:
            run_package(package.path, [str(tmp_path / name)])
        assert caught.value.remedy
    with pytest.raises(UsageError):
        run_package(colors.path, [])


def test_the_package_is_checked_first(tmp_path, linear):
    damaged = tmp_path / "a.edgekit"
    damaged.write_bytes(linear.path.read_bytes()[:-1])
    with pytest.raises(IntegrityError):
        run_package(damaged, ["missing.npz"])
    generate_key(tmp_path / "key")
    with pytest.raises(IntegrityError, match="not signed"):
        run_package(linear.path, ["missing.npz"], key=tmp_path / "key.pub")


def test_scores_that_are_not_finite():
    with pytest.raises(InputError, match="NaN"):
        label_outputs({"y": np.array([[1.0, np.nan]])}, (), "image-classification", 5)


@pytest.mark.parametrize(
    ("outputs", "labels", "task", "best"),
    [
        ({"y": np.array([[1.0, 2.0]])}, ("a", "b"), "", "b"),
        ({"y": np.array([[1.0, 2.0]])}, (), "text-classification", "class 1"),
        ({"y": np.array([[1.0, 2.0]])}, (), "regression", None),
        ({"y": np.array([[1.0, 2.0]])}, ("a", "b", "c"), "image-classification", None),
        ({"y": np.array([[1.0]])}, (), "text-classification", None),
        ({"y": np.array([[1, 2]])}, ("a", "b"), "image-classification", None),
        ({"y": np.zeros((1, 4, 2))}, ("a", "b"), "token-classification", None),
        ({"y": np.zeros((1, 7))}, (), "token-classification", None),
        ({"y": np.array([[[[3.0]], [[2.0]]]])}, ("a", "b"), "image-classification", "a"),
        ({"y": np.array([[1.0, 2.0]]), "z": np.zeros((1, 9))}, ("a", "b"), "", "b"),
        ({"y": np.array([[1.0, 2.0]]), "z": np.zeros((1, 2))}, ("a", "b"), "", None),
        ({"y": np.array([[1.0, 2.0], [5.0, 0.0]])}, ("a", "b"), "", "b"),
    ],
)
def test_which_outputs_are_scores(outputs, labels, task, best):
    found = label_outputs(outputs, labels, task, 5)
    assert (found[0][0] if found else None) == best


@given(scores=hnp.arrays(np.float32, st.integers(2, 30), elements=st.floats(-1e6, 1e6, width=32)))
def test_probabilities_are_a_distribution_in_the_order_of_the_scores(scores):
    found = label_outputs({"y": scores[None]}, (), "image-classification", len(scores))
    assert sum(share for _, share in found) == pytest.approx(1, abs=0.021)
    order = [scores[int(label.removeprefix("class "))] for label, _ in found]
    shares = [share for _, share in found]
    assert shares == sorted(shares, reverse=True)
    assert order[0] == scores.max()
    best = label_outputs({"y": scores[None]}, (), "image-classification", 1)
    assert best == found[:1]
