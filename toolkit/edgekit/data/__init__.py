"""Calibration, training and evaluation data: content-hashed, streamed, splits disjoint.

`open_dataset` reads what a user has (a folder of images by class, `.npz`, `.npy`, CSV or JSONL text, a saved
`datasets` directory, `python:module:factory`) and gives a `Dataset` whose samples are fed to the model as they are.
`preprocess_one` redoes the recorded preprocessing for one raw input. Images and arrays are decoded in this process,
under limits (`limits.py`) and never through pickle; the data is the user's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgekit.data.samples import Dataset, Feed, Samples, Subset, take

if TYPE_CHECKING:
    from edgekit.data.opening import open_dataset
    from edgekit.data.pipeline import preprocess_one

__all__ = ["Dataset", "Feed", "Samples", "Subset", "open_dataset", "preprocess_one", "take"]

_HOMES = {"open_dataset": "edgekit.data.opening", "preprocess_one": "edgekit.data.pipeline"}


def __getattr__(name: str) -> Any:
    """Import the readers when they are first used: naming a `Dataset` loads none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edgekit.data' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
