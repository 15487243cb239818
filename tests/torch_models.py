"""Tiny models with random weights, and files made by hand: what the tests of the networks room build with."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64"}
TEXT = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def safetensors_bytes(arrays: dict[str, np.ndarray], **header: Any) -> bytes:
    """Write the format by hand, so that the reader is not tested with its own library."""
    entries: dict[str, Any] = dict(header)
    data = b""
    for name, array in arrays.items():
        raw = array.tobytes()
        span = [len(data), len(data) + len(raw)]
        entries[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": span}
        data += raw
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def bare_directory(folder: Path, **config: Any) -> Path:
    """Write a directory that looks like a model's, without torch."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **config}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"w": np.ones((2, 3), np.float32)}))
    return folder


def bert(**options: Any) -> Any:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**{**TEXT, "num_labels": 3, **options}))


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder
