"""Hold an array against the model's input: dtype, rank, fixed axes, finite values. Lossless casts only."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from edgekit.artifact import TensorSpec
from edgekit.data.faults import NonFiniteError, Note
from edgekit.errors import InputError, UnsupportedError, did_you_mean

Array = npt.NDArray[np.generic]


def numpy_dtype(spec: TensorSpec) -> np.dtype[np.generic]:
    """Return the numpy dtype of an input; `string` is `str`, bfloat16 and its kin come from `ml_dtypes`.

    Raises:
        UnsupportedError: numpy has no such dtype.
    """
    if spec.dtype == "string":
        return np.dtype(np.str_)
    with contextlib.suppress(TypeError):
        return np.dtype(spec.dtype)
    try:
        import ml_dtypes

        found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, spec.dtype))
        return found
    except (ImportError, AttributeError):
        raise UnsupportedError(
            f"no arrays can be made for the dtype {spec.dtype}",
            where=f"input '{spec.name}'",
            remedy="Export the model with float32, float16 or integer inputs.",
        ) from None


def check_names(found: Collection[str], specs: Sequence[TensorSpec], where: str) -> None:
    """Raise InputError unless every input of the model has an array; both names stand in the error."""
    missing = [spec.name for spec in specs if spec.name not in found]
    if not missing:
        return
    spare = sorted(set(found) - {spec.name for spec in specs})
    there = ", ".join(f"'{name}'" for name in sorted(found)) or "none"
    wanted = ", ".join(f"'{name}'" for name in missing)
    if len(missing) == 1 and len(spare) == 1:
        remedy = f"Rename '{spare[0]}' to '{missing[0]}' if that is what it holds."
    elif spare:
        remedy = f"The arrays are found by the names of the model's inputs. {did_you_mean(missing[0], spare)}"
    else:
        remedy = f"Add an array named '{missing[0]}'."
    plural = "s" if len(missing) > 1 else ""
    raise InputError(f"no array for the model's input{plural} {wanted}; there are {there}", where=where, remedy=remedy)


def conform(array: Array, spec: TensorSpec, *, where: str, notes: list[Note] | None = None) -> Array:
    """Return the array as the model takes it: batch axis added if it alone is missing, dtype cast if lossless.

    float64 becomes float32 (and float32 float16) with a note as long as it stays finite; integers change width and
    floats become integers only if every value stays what it is. Integers never become floats: which scaling they
    had in training is not in the array.

    Args:
        array: a sample, with or without its batch axis.
        spec: the model's input.
        where: the sample's id, for errors.
        notes: casts are appended here.

    Raises:
        InputError: another rank, another fixed axis, a batch axis that is empty and not so by the model's own
            declaration, a dtype that would lose something.
        NonFiniteError: NaN or infinity.
    """
    return _cast(_shaped(array, spec, where), spec, where, notes)


def _shaped(array: Array, spec: TensorSpec, where: str) -> Array:
    place = f"{where}, array '{spec.name}'"
    shape = array.shape
    if array.ndim == len(spec.shape) - 1 and (spec.shape[0] == 1 or isinstance(spec.shape[0], str)):
        array = array[None]
    if array.ndim != len(spec.shape):
        raise InputError(
            f"shape {_text(shape)} has {len(shape)} axes, the model wants {len(spec.shape)}: {_text(spec.shape)}",
            where=place,
            remedy="One sample is given with its batch axis or without it, every other axis as the model has it.",
        )
    wrong = [axis for axis, want in enumerate(spec.shape) if isinstance(want, int) and array.shape[axis] != want]
    if wrong:
        axis = wrong[0]
        raise InputError(
            f"axis {axis} is {array.shape[axis]}, the model wants {spec.shape[axis]}: "
            f"given {_text(array.shape)}, wanted {_text(spec.shape)}",
            where=place,
            remedy=_layout_remedy(array.shape, spec),
        )
    if array.shape and not array.shape[0] and spec.shape[0] != 0:
        raise InputError(f"axis 0 is empty: given {_text(array.shape)}", where=place, remedy="Remove the sample.")
    return array


def fits(shape: Sequence[int], spec: TensorSpec) -> bool:
    """Say whether a shape, batch axis included, is one that the model takes."""
    return len(shape) == len(spec.shape) and all(
        isinstance(want, str) or size == want for size, want in zip(shape, spec.shape, strict=True)
    )


def _layout_remedy(shape: Sequence[int], spec: TensorSpec) -> str:
    if len(shape) == 4 and fits([shape[axis] for axis in (0, 3, 1, 2)], spec):  # noqa: PLR2004 - images
        return "The array looks like NHWC and the model wants NCHW: declare transpose = [2, 0, 1] (kind tensor)."
    if len(shape) == 4 and fits([shape[axis] for axis in (0, 2, 3, 1)], spec):  # noqa: PLR2004 - images
        return "The array looks like NCHW and the model wants NHWC: declare transpose = [1, 2, 0] (kind tensor)."
    for order in itertools.permutations(range(1, min(len(shape), 6))):
        if len(shape) <= 6 and fits([shape[0], *(shape[axis] for axis in order)], spec):  # noqa: PLR2004 - 120 orders
            given = [axis - 1 for axis in order]
            return f"The axes fit in another order: declare transpose = {given} (kind tensor)."
    return "Prepare the arrays as for the model's training, or declare a preprocessing."


def _cast(array: Array, spec: TensorSpec, where: str, notes: list[Note] | None) -> Array:
    place = f"{where}, array '{spec.name}'"
    wanted = numpy_dtype(spec)
    if array.dtype.kind == "O":
        raise InputError("the array holds Python objects", where=place, remedy="Save plain numbers.")
    if _floating(array.dtype):
        _check_finite(array, place)
    elif spec.dtype == "string" or array.dtype.kind not in "biu":
        return _same_kind(array, spec, wanted, place)
    if array.dtype == wanted:
        return array
    if notes is not None and array.dtype.newbyteorder("=") != wanted.newbyteorder("="):
        notes.append(
            Note(
                rule="data-dtype-cast",
                node=spec.name,
                text=f"{array.dtype} cast to {spec.dtype}, the dtype of the input",
            )
        )
    if _floating(wanted):
        return _to_float(array, spec, wanted, place)
    return _to_integer(array, spec, wanted, place)


def _to_float(array: Array, spec: TensorSpec, wanted: np.dtype[np.generic], place: str) -> Array:
    if not _floating(array.dtype):
        raise InputError(
            f"dtype {array.dtype}, model wants {spec.dtype}; say which scaling was used in training",
            where=place,
            remedy='Declare it as the preprocessing, e.g. kind = "image" or kind = "tensor" with scale = "1/255" '
            "(scale = 1 if the values are right as they are), or save the scaled array.",
        )
    with np.errstate(over="ignore"):
        cast = array.astype(wanted)
    if not np.isfinite(cast).all():
        raise InputError(
            f"values up to {np.abs(array).max():g} do not fit into {spec.dtype}",
            where=place,
            remedy="Scale the data.",
        )
    return cast


def _to_integer(array: Array, spec: TensorSpec, wanted: np.dtype[np.generic], place: str) -> Array:
    if wanted.kind not in "biu":
        return _same_kind(array, spec, wanted, place)
    low, high = 0, 1
    if wanted.kind != "b":
        limits = np.iinfo(wanted.name)
        low, high = int(limits.min), int(limits.max)
    whole = not _floating(array.dtype) or bool((array == np.floor(array.astype(np.float64))).all())
    if not whole or int(array.min()) < low or int(array.max()) > high:
        raise InputError(
            f"dtype {array.dtype}, model wants {spec.dtype}: the values {array.min()} .. {array.max()} would change",
            where=place,
            remedy=f"Save the array as {spec.dtype}, quantized as in training.",
        )
    return array.astype(wanted)


def _same_kind(array: Array, spec: TensorSpec, wanted: np.dtype[np.generic], place: str) -> Array:
    if array.dtype.kind == wanted.kind == "U":
        return array
    raise InputError(f"dtype {array.dtype}, model wants {spec.dtype}", where=place, remedy="Save it in that dtype.")


def _check_finite(array: Array, place: str) -> None:
    finite = np.isfinite(array)
    if not finite.all():
        bad = int(finite.size - np.count_nonzero(finite))
        what = "NaN" if np.isnan(array).any() else "infinite"
        raise NonFiniteError(
            f"{bad} of {array.size} values are not finite ({what})",
            where=place,
            remedy="Remove or repair the sample.",
        )


def _floating(dtype: np.dtype[np.generic]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and dtype.names is None and "float" in dtype.name)


def _text(shape: Sequence[int | str]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"
