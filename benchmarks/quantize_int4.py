"""Weights of SmolLM2-135M in few bits, side by side with onnxruntime's own quantizer: d nll, agreement, size.

    python benchmarks/quantize_int4.py MODEL.onnx WINDOWS.npz [--windows 16] [--only NAME ...] [--keep DIR]

MODEL.onnx is moved off the checkpoint's grid (see peers/off_grid.py); `quantize.py --bar language-4 --keep DIR` leaves
it as DIR/language/float/model.onnx. WINDOWS.npz holds `ids` (windows of 512 tokens, one after the other) and `calib`
(rows of tokens). Figures are of all models in one run, paired by token; the interval is one standard error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from quantize_measure import HERE, MODEL, made, session, stored
from work_order import Work, losses

LENGTH = 512
OURS: dict[str, dict[str, Any]] = {
    "edgekit rtn": {"method": "rtn"},
    "edgekit hqq": {"method": "hqq"},
    "edgekit awq": {"method": "awq"},
    "edgekit gptq": {"method": "gptq"},
    "edgekit gptq, symmetric": {"method": "gptq", "symmetric": True},
    "edgekit gptq, embedding 4 bits": {"method": "gptq", "embedding_bits": 4},
    "edgekit gptq, mixed at the size of uniform": {"method": "gptq", "mean_bits": 5.44},
    "edgekit gptq, mixed, 6.2 bits": {"method": "gptq", "mean_bits": 6.2},
    "edgekit rtn, 8 bits": {"method": "rtn", "bits": 8},
    "edgekit, 8 bits": {"bits": 8},
    "edgekit gptq, 8 bits": {"method": "gptq", "bits": 8},
    "edgekit gptq, 8 bits, 8-bit activations": {"method": "gptq", "bits": 8, "activation_bits": 8},
    "edgekit int8 weights per channel": {"mode": "weights"},
    "edgekit int8 weights per channel, learned": {"mode": "weights", "rounding": "learned"},
}
PEERS: dict[str, dict[str, Any]] = {
    "onnxruntime rtn": {"method": "rtn", "bits": 4, "is_symmetric": True},
    "onnxruntime rtn asymmetric": {"method": "rtn", "bits": 4, "is_symmetric": False},
    "onnxruntime hqq": {"method": "hqq", "bits": 4},
    "onnxruntime rtn, 8 bits": {"method": "rtn", "bits": 8, "is_symmetric": True},
}

Losses = tuple[np.ndarray, np.ndarray]


def quantized(name: str, model: Path, windows: Path, folder: Path, threads: int) -> Work:
    """Quantize the way that a name of OURS or PEERS says; what that told."""
    work: Work = {"way": "onnxruntime", "model": str(model.resolve()), "options": PEERS.get(name)}
    if name in OURS:
        work |= {"way": "edgekit", "options": OURS[name], "windows": str(windows.resolve()), "threads": threads}
    return made(folder, HERE / "quantize_int4_child.py", work)


def chosen(file: Path, count: int) -> np.ndarray:
    """Return `count` windows that lie evenly among those of a file, `[count, 512]`."""
    with np.load(file, allow_pickle=False) as held:
        windows = held["ids"].reshape(-1, LENGTH)
    places = np.linspace(0, len(windows) - 1, min(count, len(windows))).round().astype(int)
    found: np.ndarray = windows[places]
    return found


def score(path: Path, windows: np.ndarray, threads: int) -> Losses:
    """Return nll and the likeliest token at every position but the last of each window."""
    opened = session(path, threads)
    found = [losses(opened.run(None, {"input_ids": window[None]})[0][0], window) for window in windows]
    return np.concatenate([nll for nll, _ in found]), np.concatenate([top for _, top in found])


def divergence(original: Path, path: Path, windows: np.ndarray, threads: int) -> float:
    """Return the mean KL divergence, in nats, of a model's next token from the original's: free of the text's noise."""
    opened, total = [session(model, threads) for model in (original, path)], 0.0
    for window in windows:
        logits = [one.run(None, {"input_ids": window[None]})[0][0, :-1] for one in opened]
        for first, second in zip(*(np.array_split(rows, 8) for rows in logits), strict=True):
            before, after = _log_softmax(first), _log_softmax(second)
            total += float((np.exp(before) * (before - after)).sum())
    return total / (windows.size - len(windows))


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    wide = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
    found: np.ndarray = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return found


def judged(found: Losses, base: Losses, size: int) -> dict[str, float]:
    """Return what a model lost against the float one, token by token; `upper` ends the interval of 95 %."""
    change = found[0] - base[0]
    mean, error = float(change.mean()), float(change.std(ddof=1)) / change.size**0.5
    agreement = float((found[1] == base[1]).mean())
    return {
        "d_nll": mean,
        "error": error,
        "upper": mean + 1.96 * error,
        "agreement": agreement,
        "megabytes": size / 1e6,
    }


def compare(options: argparse.Namespace, keep: Path) -> None:
    """Quantize, score and print one row a method."""
    windows = chosen(options.windows_file, options.windows)
    base = score(options.model, windows, options.threads)
    mean = base[0].mean()
    print(f"float: nll {mean:.4f}, perplexity {np.exp(mean):.3f}, {len(windows)} windows", flush=True)
    print("| method | d nll +- SE | KL | top-1 agreement | MB | bits a weight | CPU s |\n|---|---|---|---|---|---|---|")
    for name in [*PEERS, *OURS]:
        if options.only and name not in options.only:
            continue
        folder = keep / name.replace(", ", "-").replace(" ", "-")
        told = quantized(name, options.model, options.windows_file, folder, options.threads)
        row = judged(score(folder / MODEL, windows, options.threads), base, stored(folder / MODEL))
        kl = divergence(options.model, folder / MODEL, windows, options.threads)
        bits = told.get("facts", {}).get("quantization", {}).get("bits_per_weight", "")
        print(
            f"| {name} | {row['d_nll']:.4f} +- {row['error']:.4f} | {kl:.5f} | {row['agreement']:.3f} | "
            f"{row['megabytes']:.1f} | {bits} | {told['cpu_seconds']:.0f} |",
            flush=True,
        )


def main() -> None:
    """Parse the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("windows_file", type=Path)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--only", nargs="*", default=[], choices=[*PEERS, *OURS])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="folder to leave the quantized models in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        compare(options, options.keep or Path(scratch))


if __name__ == "__main__":
    main()
