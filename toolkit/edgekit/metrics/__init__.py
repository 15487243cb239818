"""What a model is judged by: built-in metrics by name, and the user's own functions.

A metric knows its direction and its range, so that a drop is always a loss: absolute points for metrics in
[0, 1], relative to the original otherwise.
"""

from edgekit.metrics.metric import Labels, Metric, Outputs, Rows
from edgekit.metrics.table import METRICS, default_metric, find_metric

__all__ = ["METRICS", "Labels", "Metric", "Outputs", "Rows", "default_metric", "find_metric"]
