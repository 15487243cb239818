"""Export the trained network of the vision sample to ONNX: the same bytes from the same weights and libraries.

    python -m samples.vision.export [--weights samples/vision/model.safetensors] [--out samples/vision/model.onnx]

Input `x` float32 `[batch, 1, 28, 28]`, output `logits` float32 `[batch, 10]`, opset 18, batch size free.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from safetensors.torch import load_file

from samples.export import export
from samples.vision.network import FashionNet, build

HERE = Path(__file__).resolve().parent


def load(weights: Path) -> FashionNet:
    """Return the network with trained weights, ready for inference."""
    network = build()
    network.load_state_dict(load_file(weights))
    return network.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, default=HERE / "model.safetensors")
    parser.add_argument("--out", type=Path, default=HERE / "model.onnx")
    options = parser.parse_args()
    worst = export(load(options.weights), (1, 28, 28), options.out)
    print(f"{options.out}: {options.out.stat().st_size} bytes, differs from the network by {worst:.1e}")


if __name__ == "__main__":
    main()
