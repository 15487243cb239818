"""Write the data of the vision sample from Fashion-MNIST: what lies in samples/vision/data came from here.

    python -m samples.vision.prepare [--training 12000] [--out samples/vision/data]

`calibration.npz`: 512 training images, drawn with a fixed seed, no two and none of the test images alike;
`evaluation.npz`: the first 5,000 test images; `training.npz`, with `--training`: so many more training images, which
recipes that train need (not under version control). All hold `x` uint8 `[n, 28, 28]` and `y` int64 `[n]`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from samples.vision import fashion_mnist

HERE = Path(__file__).resolve().parent
CALIBRATION, EVALUATION = 512, 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "data")
    parser.add_argument("--training", type=int, default=0, help="also write so many images to train on, at most 59,000")
    options = parser.parse_args()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    train, classes = fashion_mnist.load("train")
    test, test_classes = fashion_mnist.load("t10k")
    seen = {image.tobytes() for image in test}
    rows = []
    for row in np.random.default_rng(0).permutation(len(train)):
        content = train[row].tobytes()
        if content not in seen:
            seen.add(content)
            rows.append(row)
        if len(rows) == CALIBRATION + options.training:
            break
    calibration, training = rows[:CALIBRATION], rows[CALIBRATION:]
    np.savez_compressed(out / "calibration.npz", x=train[calibration], y=classes[calibration])
    if training:
        np.savez_compressed(out / "training.npz", x=train[training], y=classes[training])
    np.savez_compressed(out / "evaluation.npz", x=test[:EVALUATION], y=test_classes[:EVALUATION])
    for file in sorted(out.glob("*.npz")):
        print(f"{file}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
