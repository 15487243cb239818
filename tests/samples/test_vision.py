from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset
from samples.vision import fashion_mnist

VISION = Path(fashion_mnist.__file__).parent
MODEL = VISION / "model.onnx"
X = TensorSpec(name="x", dtype="float32", shape=("batch", 1, 28, 28))


@pytest.fixture(scope="module")
def evaluation() -> dict[str, Any]:
    return dict(np.load(VISION / "data" / "evaluation.npz"))


@pytest.fixture(scope="module")
def logits(evaluation: dict[str, Any]) -> Any:
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"x": fashion_mnist.normalize(evaluation["x"])})[0]


def test_the_data_is_what_it_says(evaluation: dict[str, Any]) -> None:
    calibration = dict(np.load(VISION / "data" / "calibration.npz"))
    for split, n in ((calibration, 512), (evaluation, 5000)):
        assert split["x"].shape == (n, 28, 28)
        assert split["x"].dtype == np.uint8
        assert split["y"].dtype == np.int64
        share = np.bincount(split["y"], minlength=10) / n
        assert ((share > 0.07) & (share < 0.13)).all()
    known = {image.tobytes() for image in evaluation["x"]}
    assert not any(image.tobytes() in known for image in calibration["x"])


def test_the_model_is_as_accurate_as_the_readme_says(evaluation: dict[str, Any], logits: Any) -> None:
    readme = (VISION / "README.md").read_text(encoding="utf-8")
    stated = re.search(r"on the 5,000 evaluation images: ([\d.]+) %", readme)
    assert stated
    accuracy = 100 * (logits.argmax(1) == evaluation["y"]).mean()
    assert accuracy == pytest.approx(float(stated[1]), abs=0.05)


def test_the_file_is_clean() -> None:
    content = MODEL.read_bytes()
    model = onnx.load_from_string(content)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert b"/samples/" not in content
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    assert "BatchNormalization" not in {node.op_type for node in model.graph.node}


def test_edgekit_reads_the_data_as_the_training_did(evaluation: dict[str, Any]) -> None:
    data = open_dataset(str(VISION / "data"), [X])
    assert data.labels == fashion_mnist.LABELS
    assert len(data.calibration) == 256
    assert len(data.evaluation) >= 4990  # a few images are in Fashion-MNIST twice
    found = data.evaluation.sample(17)["x"]
    assert data.evaluation.ids[17].endswith("[17]")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, fashion_mnist.normalize(evaluation["x"][17:18]), rtol=0, atol=1e-6)
    assert data.evaluation.labels is not None
    assert data.evaluation.labels[17] == evaluation["y"][17]


def test_weights_and_file_are_one_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from samples.export import TOLERANCE, difference, export
    from samples.vision.export import load

    network = load(VISION / "model.safetensors")
    assert difference(network, (1, 28, 28), MODEL) < TOLERANCE
    export(network, (1, 28, 28), tmp_path / "model.onnx")
    written = onnx.load(MODEL)
    if written.producer_version == torch.__version__:
        assert (tmp_path / "model.onnx").read_bytes() == MODEL.read_bytes()


def test_the_training_script_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from samples.vision import train

    kept = dict(np.load(VISION / "data" / "calibration.npz"))
    monkeypatch.setattr(fashion_mnist, "load", lambda _split: (kept["x"], kept["y"]))
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    try:
        first, second = train.train(1), train.train(1)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(mode=strict)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    assert not first.training
    assert 0 <= train.accuracy(first) <= 1
