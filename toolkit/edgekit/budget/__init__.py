"""Budgets, figures and the verdict over them."""

from edgekit.budget.dominance import dominated
from edgekit.budget.figures import Budget, Check, Figure, Provenance, Status, Verdict
from edgekit.budget.judge import judge
from edgekit.budget.words import Effort, merge, parse_budget, parse_effort, parse_seconds, parse_size

__all__ = [
    "Budget",
    "Check",
    "Effort",
    "Figure",
    "Provenance",
    "Status",
    "Verdict",
    "dominated",
    "judge",
    "merge",
    "parse_budget",
    "parse_effort",
    "parse_seconds",
    "parse_size",
]
