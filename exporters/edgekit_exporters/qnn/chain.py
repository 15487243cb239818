"""The law that leads from IQ-9075's clock to another device: what goes into it. Fitted by benchmarks/snapdragon.py.

The number of operators is in it because devices differ in what starting one costs: of two networks that take as long on
IQ-9075, the one of more and smaller operators is relatively slower on some, faster on others.
"""

from __future__ import annotations

import math

FORMS = ("power", "operators", "curved")
"""From the simplest to the one with the most terms."""


def terms(form: str, ms: float, operators: int) -> list[float]:
    """Return the terms whose weighted sum is the natural log of a device's milliseconds.

    Args:
        form: one of `FORMS`.
        ms: milliseconds on IQ-9075.
        operators: of the graph as the HTP runs it (what AI Hub calls layers).
    """
    time, count = math.log(ms), math.log(operators)
    linear = [1.0, time]
    if form == "power":
        return linear
    linear.append(count)
    return linear if form == "operators" else [*linear, time * time, time * count, count * count]
