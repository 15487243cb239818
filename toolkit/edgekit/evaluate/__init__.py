"""Original against candidate: run both on the same samples, compare the metric and every output.

original = run_onnx(folder, samples.batches(1))
save_outputs(out / "reference.npz", original)
comparison = evaluate(load_outputs(out / "reference.npz"), candidate, samples.labels, metric,
count=len(samples)) verdict = judge(budget, [*figures(comparison, on="jetson"), ...])
"""

from edgekit.evaluate.comparison import Comparison, compare, evaluate, figures
from edgekit.evaluate.distances import ColumnGroup, OutputDistance
from edgekit.evaluate.reference import load_outputs, save_outputs
from edgekit.evaluate.session import is_steady, run_onnx
from edgekit.evaluate.simulated import (
    Simulated,
    disagreements,
    distance_findings,
    judge_simulated,
    with_disagreement,
)

__all__ = [
    "ColumnGroup",
    "Comparison",
    "OutputDistance",
    "Simulated",
    "compare",
    "disagreements",
    "distance_findings",
    "evaluate",
    "figures",
    "is_steady",
    "judge_simulated",
    "load_outputs",
    "run_onnx",
    "save_outputs",
    "with_disagreement",
]
