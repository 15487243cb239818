"""Tensor rules: applied to arrays as they come from a file or a factory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.data.conform import numpy_dtype
from edgekit.data.rules import TensorRule, factor
from edgekit.errors import InputError

Array = npt.NDArray[np.generic]


def apply(array: Array, rule: TensorRule, spec: TensorSpec, where: str) -> Array:
    """Return the array after transpose, expand and arithmetic (in float32); what is not declared is not done.

    Args:
        array: a sample of the input's rank less what `expand` adds, with its batch axis or without it.
        rule: what to do; its axes count from 0 without the batch axis.
        spec: the model's input.
        where: the sample's id, for errors.

    Raises:
        InputError: the rule does not fit the array's rank, or arithmetic is declared for what is not numbers.
    """
    place = f"{where}, array '{spec.name}'"
    rank = len(spec.shape) - 1 - (rule.expand is not None)
    if (rule.transpose or rule.expand is not None) and array.ndim not in {rank, rank + 1}:
        raise InputError(
            f"the preprocessing wants samples of {rank} axes, this one has the shape {list(array.shape)}",
            where=place,
            remedy="Correct transpose or expand, or the arrays.",
        )
    alone = array.ndim == rank
    array = array[None] if alone else array
    if rule.transpose:
        array = _transposed(array, rule.transpose, place)
    if rule.expand is not None:
        array = _expanded(array, rule.expand, place)
    if rule.computes:
        array = _computed(array, rule, spec, place)
    return array[0] if alone else array


def _transposed(array: Array, order: tuple[int, ...], place: str) -> Array:
    if sorted(order) != list(range(array.ndim - 1)):
        raise InputError(
            f"transpose {list(order)} is no order of the {array.ndim - 1} axes of a sample",
            where=place,
            remedy="Name each axis once, counting from 0 without the batch axis.",
        )
    return array.transpose(0, *(axis + 1 for axis in order))


def _expanded(array: Array, position: int, place: str) -> Array:
    if not 0 <= position <= array.ndim - 1:
        raise InputError(f"expand {position}", where=place, remedy=f"A position in 0 .. {array.ndim - 1}.")
    return np.expand_dims(array, position + 1)


def _computed(array: Array, rule: TensorRule, spec: TensorSpec, place: str) -> Array:
    if array.dtype.kind not in "biuf":
        raise InputError(f"dtype {array.dtype} cannot be scaled", where=place, remedy="Give numbers.")
    values = array.astype(np.float32)
    if rule.scale is not None:
        values *= np.float32(factor(rule.scale, place))
    if rule.mean is not None:
        values -= _along(rule.mean, rule.axis, values, place)
    if rule.std is not None:
        values /= _along(rule.std, rule.axis, values, place)
    if numpy_dtype(spec).kind in "iu":
        return np.rint(values)
    return values


def _along(numbers: float | tuple[float, ...], axis: int, values: Array, place: str) -> npt.NDArray[np.float32]:
    found = np.array(numbers, np.float32)
    if found.ndim == 0 or found.size == 1:
        return found
    if not 0 <= axis < values.ndim - 1 or values.shape[axis + 1] != found.size:
        raise InputError(
            f"{found.size} numbers of mean or std along axis {axis} of a sample of shape {list(values.shape[1:])}",
            where=place,
            remedy="Correct axis, or give one number per entry of that axis.",
        )
    shape = [1] * values.ndim
    shape[axis + 1] = found.size
    return found.reshape(shape)
