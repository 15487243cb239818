"""Rounds the weights of one model, each only once per set of scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgekit.graphs.weights import Operand, Weights
from edgekit.numerics.affine import quantize_weight, rounding_error, weight_scales

Scales = npt.NDArray[np.float32]

_ROWS = 4096  # of a lookup table that are looked at to choose the axis of its scales


class Rounder:
    """Gives the integers and scales of weight operands.

    Attributes:
        weights: the operands.
        bits: bits of a weight.
    """

    def __init__(self, weights: Weights, *, bits: int, tables: frozenset[tuple[int, str]] = frozenset()) -> None:
        """Start with nothing rounded; `tables` are the keys of weights that have 8 bits all the same."""
        self.weights = weights
        self.bits = bits
        self._tables = tables
        self._table_axes: dict[tuple[int, str], int] = {}
        self._rounded: dict[tuple[Any, ...], npt.NDArray[np.int8]] = {}

    def bits_of(self, operand: Operand) -> int:
        """Return the bits of one weight."""
        return 8 if operand.key in self._tables else self.bits

    def rounded(self, operand: Operand, scales: Scales, axis: int | None) -> npt.NDArray[np.int8]:
        """Return a weight's integers for these scales."""
        key = (operand.key, axis, scales.tobytes())
        if key not in self._rounded:
            self._rounded[key] = quantize_weight(self.weights.values(operand), scales, axis, bits=self.bits_of(operand))
        return self._rounded[key]

    def table_axis(self, operand: Operand) -> int:
        """Return the axis of a lookup table along which scales lose least: its rows or its last axis."""
        if operand.key not in self._table_axes:
            values = self.weights.values(operand)
            rows = values[:: max(values.shape[0] // _ROWS, 1)]
            axes = sorted({0 if operand.axis is None else operand.axis, values.ndim - 1})
            self._table_axes[operand.key] = min(
                axes, key=lambda axis: rounding_error(rows, axis, bits=self.bits_of(operand))
            )
        return self._table_axes[operand.key]

    def scales(self, operand: Operand, axis: int | None) -> Scales:
        """Return a weight's own scales, before any bias has a say."""
        return weight_scales(self.weights.values(operand), axis, bits=self.bits_of(operand))


def in_half(scales: Scales) -> Scales:
    """Return scales that float16 holds exactly, none below the given ones; the given ones where its range is too small.

    A table of embeddings has a scale for each row, which in float32 is as much as four of its integers.
    """
    with np.errstate(over="ignore"):
        half = scales.astype(np.float16)
    half = np.where(half.astype(np.float32) < scales, np.nextafter(half, np.float16(np.inf)), half)
    fits = np.isfinite(half).all() and half.min(initial=np.inf) >= np.finfo(np.float16).tiny
    return half.astype(np.float32) if fits else scales


def narrow(scales: Scales) -> npt.NDArray[np.floating]:
    """Return scales in float16 where that holds them exactly."""
    with np.errstate(over="ignore"):
        half = scales.astype(np.float16)
    return half if np.array_equal(half.astype(np.float32), scales) else scales


def tables_of(weights: Weights, ops: dict[str, str]) -> frozenset[tuple[int, str]]:
    """Return the keys of the weights that are only looked up in: four bits are too few for them."""
    products = {operand.key for operand in weights.operands if ops[operand.node] != "Gather"}
    return frozenset(operand.key for operand in weights.operands) - products
