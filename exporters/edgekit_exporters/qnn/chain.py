"""The law that leads from IQ-9075's clock to another device: what goes into it. Fitted by benchmarks/snapdragon.py.

Devices differ in what starting an operator costs, and in how fast weights come from memory: of two networks that take
as long on IQ-9075, the one of more operators is relatively slower on some and faster on others, and so is the one of
more weights. Who compiled a network is in it because published latencies come from two compilers: onnxruntime's
provider, which is what runs here, and Qualcomm's own converter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FORMS = ("power", "operators", "weights", "compiler", "curved", "cubed", "cubed by compiler")
"""From the simplest to the one with the most terms."""

SPREAD = "curved"
"""The form of what goes into how far off a prediction may be."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of a network before it has run on a device.

    Attributes:
        ms: milliseconds on IQ-9075.
        operators: of the graph as the HTP runs it (what AI Hub calls layers).
        parameters: elements of its weights.
        by_onnxruntime: whether onnxruntime's provider compiled it, as here, or Qualcomm's own converter.
    """

    ms: float
    operators: int
    parameters: float
    by_onnxruntime: bool = True


def terms(form: str, seen: Seen) -> list[float]:
    """Return the terms whose weighted sum is the natural log of a device's milliseconds; `form` is one of `FORMS`."""
    time, count = math.log(seen.ms), math.log(seen.operators)
    found = [1.0, time]
    if form == "power":
        return found
    found.append(count)
    if form == "operators":
        return found
    found.append(math.log(max(seen.parameters, 1.0)))
    if form == "weights":
        return found
    if form == "compiler":
        return [*found, float(seen.by_onnxruntime)]
    found += [time * time, time * count, count * count]
    if form == "curved":
        return found
    found += [time**3, time * time * count, time * count * count, count**3]
    return found if form == "cubed" else [*found, float(seen.by_onnxruntime)]
