"""A metric for the plain encoder, which has no classes: how well a linear probe reads valence off its first token.

    edgekit build samples/text/minilm --data samples/text/data --metric python:samples.text.metric:valence_accuracy ...

The probe (`head.npz`, fitted on float features by samples/text/train.py) stays as it is: a candidate is judged by how
well its hidden states still mean the same. It needs no attention mask, so padded and unpadded runs are the same to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HEAD = Path(__file__).resolve().parent / "head.npz"
OUTPUT = "last_hidden_state"

Column = npt.NDArray[Any] | Sequence[npt.NDArray[Any]]


def valence_accuracy(outputs: Mapping[str, Column], labels: npt.NDArray[Any]) -> tuple[float, npt.NDArray[np.float64]]:
    """Return the share of texts whose valence is right, and 0 or 1 for each.

    Args:
        outputs: `last_hidden_state`, `[tokens, 384]` a text.
        labels: 0 negative, 1 positive, `[n]`.
    """
    with np.load(HEAD, allow_pickle=False) as head:
        weight, bias = head["weight"], float(head["bias"])
    first = np.stack([np.asarray(states)[0] for states in outputs[OUTPUT]])
    scores = ((first @ weight + bias > 0) == (np.asarray(labels) > 0)).astype(np.float64)
    return float(scores.mean()), scores


valence_accuracy.higher_is_better = True  # type: ignore[attr-defined]
valence_accuracy.bounded = True  # type: ignore[attr-defined]
