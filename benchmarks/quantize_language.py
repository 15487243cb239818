"""The language model's rows of the bar: the same weights as ONNX, and as GGUF for llama.cpp."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from quantize_int4 import Losses, chosen, divergence, judged, quantized, score
from quantize_kept import Figures, Kept
from quantize_measure import MODEL, MissingError, cost, peer, slug, stored
from work_order import Work

TOLERANCE = 1e-3
CANDIDATES = {
    "language-4": ("edgekit gptq", "edgekit gptq, mixed, 6.2 bits", "onnxruntime rtn", "nncf"),
    "language-8": ("edgekit, 8 bits", "onnxruntime rtn, 8 bits"),
}
KINDS = {"language-4": ("IQ4_NL", "Q4_K_M"), "language-8": ("Q8_0",)}


def language(kept: Kept, options: argparse.Namespace, keep: Path) -> None:
    """Quantize and score what a row compares."""
    bench = Language(kept, options, keep / "language")
    for name in CANDIDATES[kept.row]:
        kept.once(name, partial(bench.by_onnx, name))
    for kind in KINDS[kept.row]:
        kept.once(f"llama.cpp {kind}", partial(bench.by_llama, kind))


class Language:
    """SmolLM2-135M off the checkpoint's grid, its windows, and the float model's losses on them."""

    def __init__(self, kept: Kept, options: argparse.Namespace, place: Path) -> None:
        """Take the windows; models go to `place`."""
        self._kept, self._options, self._place = kept, options, place
        self._file = options.inputs / "sotu_windows.npz"
        self._model, self._gguf = place / "float" / MODEL, place / "float-gguf" / "model.gguf"
        self._windows = chosen(self._file, options.windows)
        self._base: Losses | None = None

    def by_onnx(self, name: str) -> dict[str, Figures]:
        """Quantize ONNX; the figures."""
        folder, base = self._place / slug(name), self._floats()
        if name == "nncf":
            told = peer("nncf", self._options, folder, self._order(way="weights", calibration=self._rows()))
        else:
            told = quantized(name, self._model, self._file, folder, self._options.threads)
        found = score(folder / MODEL, self._windows, self._options.threads)
        kl = {"kl": divergence(self._model, folder / MODEL, self._windows, self._options.threads)}
        return {name: judged(found, base, stored(folder / MODEL)) | kl | cost(told)}

    def by_llama(self, kind: str) -> dict[str, Figures]:
        """Quantize GGUF; the figures, if the float GGUF is the model that the ONNX is."""
        base, folder = self._floats(), self._place / f"llama-{kind}"
        if not self._gguf.exists():
            peer("export", self._options, self._gguf.parent, {"way": "gguf"}, self._gguf.name)
        change = np.exp(self._scored("float", self._gguf)[0].mean() - base[0].mean()) - 1
        if abs(change) > TOLERANCE:
            raise MissingError(f"the GGUF is another model: its perplexity differs by {100 * change:.2f} %")
        order = {"way": "quantize", "type": kind, "model": str(self._gguf.resolve()), "threads": self._options.threads}
        told = peer("llama", self._options, folder, order, self._gguf.name)
        made = folder / self._gguf.name
        found = self._scored(kind, made)
        return {f"llama.cpp {kind}": judged(found, base, made.stat().st_size) | cost(told)}

    def _floats(self) -> Losses:
        if self._base is None:
            if not self._model.exists():
                peer("export", self._options, self._model.parent, {"way": "onnx"})
            self._base = score(self._model, self._windows, self._options.threads)
            perplexity = np.exp(self._base[0].mean())
            self._kept.about = f"float perplexity {perplexity:.3f}, {len(self._windows)} windows of 512 tokens"
        return self._base

    def _scored(self, name: str, model: Path) -> Losses:
        windows = self._place / "windows.npz"
        np.savez(windows, windows=self._windows)
        order: Work = {"way": "score", "model": str(model.resolve()), "windows": str(windows.resolve())}
        order |= {"count": len(self._windows), "threads": self._options.threads}
        folder = self._place / f"llama-{name}-score"
        peer("llama", self._options, folder, order, "losses.npz")
        with np.load(folder / "losses.npz", allow_pickle=False) as held:
            return held["nll"], held["top"]

    def _order(self, *, way: str, calibration: Path) -> dict[str, str]:
        return {"way": way, "model": str(self._model.resolve()), "calibration": str(calibration.resolve())}

    def _rows(self) -> Path:
        """Write the calibration windows as the peers' children read them."""
        with np.load(self._file, allow_pickle=False) as held:
            np.savez(self._place / "rows.npz", input_ids=held["calib"][:, None])
        return self._place / "rows.npz"
