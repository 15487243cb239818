"""What is told of an int8 model: what was tried and chosen, how near its outputs are, and where they fall short."""

from __future__ import annotations

from typing import Any

from edgekit.events import Finding
from edgekit.graphs.int8_choice import Choice
from edgekit.graphs.int8_search import Search, Trial


def shortfalls(trial: Trial, floor: float, *, judged: bool) -> list[Finding]:
    """Warn of outputs that stay below the floor; nothing when they were not judged on real samples."""
    if not judged:
        return []
    return [
        Finding(
            severity="warning",
            node="",
            rule="accuracy-floor",
            text=f"{fault}, and leaving nodes float does not help",
            remedy="Judge by the metric, or build with --recipe fp16.",
        )
        for fault in trial.faults(floor)
    ]


def int8_summary(choice: Choice, trial: Trial, search: Search) -> dict[str, Any]:
    """Return the facts of a quantization as JSON values: form, range method, why, and each output's distance."""
    outputs = {
        name: {
            "sqnr_db": round(found.sqnr, 2),
            "worst_sample_db": round(found.worst, 2),
            "cosine": round(found.cosine, 5),
        }
        | ({"incomparable": found.incomparable} if found.incomparable else {})
        for name, found in trial.distances.items()
    }
    return {
        "form": choice.form.label,
        "method": choice.method,
        "why": choice.why,
        "candidates": choice.scores,
        "outputs": outputs,
        "judged_on": len(search.reference.indices),
        "grids": len(trial.plan.grids),
    }
