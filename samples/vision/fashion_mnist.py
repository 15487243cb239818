"""Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017): 60,000 training and 10,000 test images, 28 x 28, gray, ten classes."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from samples.download import CACHE, Package, unpack

PACKAGE = Package(
    origin="debian",
    name="dataset-fashion-mnist",
    version="0.0~git20200523.55506a9-1",
    file="dataset-fashion-mnist.deb",
    sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)
FILES = {
    "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
"""File name -> sha256: the files of the authors, unchanged in the Debian package."""

LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
MEAN, STD = 0.2860, 0.3530
"""Of the training pixels, scaled to [0, 1]."""

Images = npt.NDArray[np.uint8]
Classes = npt.NDArray[np.int64]


def folder() -> Path:
    """Return where the four files lie: `EDGEKIT_FASHION_MNIST`, an installed Debian package, or the cache."""
    given = os.environ.get("EDGEKIT_FASHION_MNIST")
    installed = Path("/usr/share/datasets/fashion-mnist")
    if given:
        return Path(given)
    if installed.is_dir():
        return installed
    kept = CACHE / "fashion-mnist"
    if not all((kept / name).exists() for name in FILES):
        unpack(PACKAGE, kept, {f"usr/share/datasets/fashion-mnist/{name}": name for name in FILES})
    return kept


def load(split: str) -> tuple[Images, Classes]:
    """Return images uint8 `[n, 28, 28]` and classes int64 `[n]` of the split `train` or `t10k`, checked."""
    home = folder()
    images = _read(home, f"{split}-images-idx3-ubyte.gz", offset=16).reshape(-1, 28, 28)
    classes = _read(home, f"{split}-labels-idx1-ubyte.gz", offset=8).astype(np.int64)
    return images, classes


def _read(home: Path, name: str, *, offset: int) -> Images:
    """Return the bytes of an idx file after its header."""
    packed = (home / name).read_bytes()
    if hashlib.sha256(packed).hexdigest() != FILES[name]:
        sys.exit(f"{home / name}: not the published file (sha256 differs)")
    return np.frombuffer(gzip.decompress(packed), np.uint8, offset=offset)


def normalize(images: Images) -> npt.NDArray[np.float32]:
    """Return the network's input `x` float32 `[n, 1, 28, 28]` of uint8 images `[n, 28, 28]`."""
    scaled = images[:, None].astype(np.float32) / np.float32(255)
    return ((scaled - np.float32(MEAN)) / np.float32(STD)).astype(np.float32)
