"""The metrics by name."""

from __future__ import annotations

from pathlib import Path

from edgekit.errors import UsageError, did_you_mean
from edgekit.metrics import agreement, classes, values
from edgekit.metrics.metric import Labels, Metric
from edgekit.metrics.user import PREFIX, load_metric

METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="accuracy", higher_is_better=True, bounded=True, per_sample=classes.correct),
        Metric(name="top5", higher_is_better=True, bounded=True, per_sample=classes.correct_top5),
        Metric(
            name="f1",
            higher_is_better=True,
            bounded=True,
            per_sample=classes.predicted_and_true,
            total=classes.macro_f1,
        ),
        Metric(name="nll", higher_is_better=False, bounded=False, per_sample=classes.negative_log_likelihood),
        Metric(
            name="perplexity",
            higher_is_better=False,
            bounded=False,
            per_sample=classes.negative_log_likelihood,
            total=classes.perplexity,
        ),
        Metric(
            name="wer",
            higher_is_better=False,
            bounded=False,
            per_sample=values.word_error_rows,
            total=values.word_error_rate,
        ),
        Metric(name="mse", higher_is_better=False, bounded=False, per_sample=values.squared_error),
        Metric(
            name="rmse",
            higher_is_better=False,
            bounded=False,
            per_sample=values.squared_error,
            total=values.root_mean,
        ),
        Metric(name="mae", higher_is_better=False, bounded=False, per_sample=values.absolute_error),
        Metric(
            name="spearman",
            higher_is_better=True,
            bounded=False,
            per_sample=values.value_and_truth,
            total=values.rank_correlation,
        ),
        Metric(
            name="agreement",
            higher_is_better=True,
            bounded=True,
            needs_labels=False,
            per_sample=agreement.agreement,
        ),
        Metric(
            name="cosine",
            higher_is_better=True,
            bounded=True,
            needs_labels=False,
            per_sample=agreement.cosine,
        ),
    )
}
"""Name -> metric."""

ALIASES = {"top1": "accuracy", "ppl": "perplexity"}
"""Other words for metrics."""


def find_metric(spec: str, folder: Path | None = None) -> Metric:
    """Return a metric by its name, or the user's own.

    Args:
        spec: a name of `METRICS` or `ALIASES`, or `python:module:function`.
        folder: where the user's module is looked for first; the current directory by default.

    Raises:
        UsageError: no such metric (with a suggestion), module or function, or a function that lacks
            `higher_is_better`.
        InputError: the user's module cannot be imported.
    """
    if spec.startswith(PREFIX):
        return load_metric(spec, Path.cwd() if folder is None else folder)
    name = ALIASES.get(spec, spec)
    if name not in METRICS:
        raise UsageError(f"unknown metric '{spec}'", remedy=did_you_mean(spec, [*METRICS, *ALIASES]))
    return METRICS[name]


def default_metric(labels: Labels) -> Metric:
    """Return what is judged when nothing was asked.

    Without labels it is agreement with the original; with class indices accuracy, with numbers MAE, with
    texts WER.
    """
    if labels is None:
        return METRICS["agreement"]
    kind = labels.dtype.kind
    return METRICS["accuracy" if kind in "iub" else "mae" if kind == "f" else "wer"]
