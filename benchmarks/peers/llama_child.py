"""Quantizes one GGUF with llama.cpp, and scores one on windows of tokens; runs in an environment of its own."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
from work_order import Work, answer, losses

TYPES = {
    "IQ4_NL": llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_NL,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
}


def quantize(work: Work) -> None:
    """Write `model` in the type that the work order names."""
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = TYPES[work["type"]]
    options.nthread = work["threads"]
    status = llama_cpp.llama_model_quantize(work["model"].encode(), work["out"].encode(), ctypes.byref(options))
    if status:
        raise SystemExit(f"llama_model_quantize: status {status}")


def score(work: Work) -> None:
    """Write `nll` and `top` of every window, one after the other; keys and values of attention in float32."""
    with np.load(work["windows"], allow_pickle=False) as held:
        windows = held["windows"]
    model = llama_cpp.Llama(
        work["model"],
        n_ctx=windows.shape[1],
        n_batch=windows.shape[1],
        n_ubatch=windows.shape[1],
        n_threads=work["threads"],
        n_threads_batch=work["threads"],
        logits_all=True,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    found = []
    for window in windows:
        model.reset()
        model.eval(window.tolist())
        found.append(losses(model.scores[: len(window)], window))
    np.savez(work["out"], nll=np.concatenate([nll for nll, _ in found]), top=np.concatenate([top for _, top in found]))


if __name__ == "__main__":
    answer({"quantize": quantize, "score": score})
