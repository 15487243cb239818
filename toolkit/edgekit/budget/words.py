"""Budgets in words: what stands behind `--max-drop`, in `edgekit.toml` and in profiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from edgekit.budget.figures import PERCENTILES, Budget
from edgekit.errors import UsageError, did_you_mean

_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*([^\s0-9.+-]*)\s*")
_MILLISECONDS = {
    "us": "0.001",
    "\N{MICRO SIGN}s": "0.001",
    "\N{GREEK SMALL LETTER MU}s": "0.001",
    "ms": "1",
    "s": "1000",
}
_SECONDS = {"s": "1", "m": "60", "min": "60", "h": "3600"}
_BYTES = {"": "1", "b": "1"} | {
    f"{letter}{suffix}": str(base**power)
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_MILLIJOULES = {
    "uJ": "0.001",
    "\N{MICRO SIGN}J": "0.001",
    "\N{GREEK SMALL LETTER MU}J": "0.001",
    "mJ": "1",
    "J": "1000",
}


def parse_budget(words: Mapping[str, Any]) -> Budget:
    """Read budgets as users write them.

    Args:
        words: option name without dashes -> words. `max-drop`: `1%` or `0.01`; `latency-p50`, `-p90`, `-p95`,
            `-p99`: `20ms`, `1.5 s`, `300us`; `max-size`, `max-memory`: `5MB`, `1kB` (powers of 1000),
            `200MiB` (powers of 1024), `12345` (bytes); `energy`: `50mJ`, `0.1J`. Numbers of a TOML file may
            stand for such words.

    Raises:
        UsageError: an unknown option, words that are no quantity, no unit, or an amount that nothing can
            keep.
    """
    fields: dict[str, Any] = {}
    latency: dict[str, float] = {}
    for name, given in words.items():
        if name not in _READERS:
            raise UsageError(f"unknown budget '{name}'", remedy=did_you_mean(name, list(_READERS)))
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise _wrong(name, given, "is no quantity")
        amount = _READERS[name](name, str(given))
        if name.startswith("latency-"):
            latency[name.removeprefix("latency-")] = float(amount)
        else:
            fields["energy_mj" if name == "energy" else name.replace("-", "_")] = amount
    return Budget(latency_ms=latency, **fields)


def merge(*budgets: Budget) -> Budget:
    """Join budgets; where two set the same axis (each latency percentile is one), the later one wins."""
    fields: dict[str, Any] = {}
    latency: dict[str, float] = {}
    for budget in budgets:
        given = msgspec.structs.asdict(budget)
        latency |= given.pop("latency_ms")
        fields |= {name: value for name, value in given.items() if value is not None}
    return Budget(latency_ms=latency, **fields)


def parse_size(word: str, name: str) -> int:
    """Return the bytes of a size such as `5MB` or `200MiB`; UsageError that names the option."""
    return _size(name, word)


def parse_seconds(word: str, name: str) -> float:
    """Return the seconds of a span such as `90s` or `10m`; UsageError that names the option."""
    return float(_positive(name, word, _SECONDS))


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is simulated: so many samples, or as many as take so many seconds of a core; one of both is None."""

    samples: int | None = None
    seconds: float | None = None


def parse_effort(word: str, name: str) -> Effort:
    """Return the number of samples of `500`, or the time of `10m`; UsageError that names the option."""
    if word.strip().isdecimal() and int(word) > 0:
        return Effort(samples=int(word))
    return Effort(seconds=parse_seconds(word, name))


def _drop(name: str, word: str) -> float:
    amount, unit = _quantity(name, word, {"": "1", "%": "0.01"})
    if amount < 0:
        raise _wrong(name, word, "is negative")
    if not unit and amount >= 1:
        raise _wrong(name, word, "would allow the model to lose everything")
    return float(amount)


def _latency(name: str, word: str) -> float:
    return float(_positive(name, word, _MILLISECONDS))


def _energy(name: str, word: str) -> float:
    return float(_positive(name, word, _MILLIJOULES))


def _size(name: str, word: str) -> int:
    amount = int(_positive(name, word, _BYTES, fold=True))
    if not amount:
        raise _wrong(name, word, "is less than a byte")
    return amount


_READERS: dict[str, Callable[[str, str], float]] = {
    "max-drop": _drop,
    **{f"latency-{percentile}": _latency for percentile in PERCENTILES},
    "max-size": _size,
    "max-memory": _size,
    "energy": _energy,
}
_EXAMPLES = {
    "max-drop": "1%",
    "max-size": "5MB",
    "max-memory": "200MB",
    "energy": "50mJ",
    "sustained": "10m",
    "simulate": "500 (samples) or 10m",
}


def _positive(name: str, word: str, units: Mapping[str, str], *, fold: bool = False) -> Decimal:
    amount, _ = _quantity(name, word, units, fold=fold)
    if amount <= 0:
        raise _wrong(name, word, "is not above 0")
    return amount


def _quantity(name: str, word: str, units: Mapping[str, str], *, fold: bool = False) -> tuple[Decimal, str]:
    """Return the amount in the base unit, exact in decimal, and the unit that was written."""
    match = _NUMBER.fullmatch(word)
    if match is None:
        raise _wrong(name, word, "is no quantity")
    unit = match[2].lower() if fold else match[2]
    if unit not in units:
        raise _wrong(name, word, f"has the unknown unit '{unit}'" if unit else "lacks its unit")
    amount = Decimal(match[1]) * Decimal(units[unit])
    if abs(amount) > Decimal("1e18"):
        raise _wrong(name, word, "is beyond any device")
    return amount, unit


def _wrong(name: str, word: object, what: str) -> UsageError:
    return UsageError(f"'{word}' {what}", where=name, remedy=f"Write for example {name} {_EXAMPLES.get(name, '20ms')}.")
