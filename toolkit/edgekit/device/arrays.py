"""Feeds in .npz files, and outputs held against expected ones. Standard library and numpy, Python 3.8."""

import os
import zipfile
from typing import Any, Dict, Iterator, Optional, Tuple

import numpy as np


def read_feeds(path: str, layout: str = "feeds") -> Iterator[Dict[str, Any]]:
    """Yield the feeds of an .npz file, one in memory at a time; `layout` as the job says."""
    with np.load(path, allow_pickle=False) as archive:
        if layout == "plain":
            yield {name: archive[name] for name in archive.files}
            return
        members = {}  # type: Dict[int, Dict[str, str]]
        for key in archive.files:
            index, colon, name = key.partition(":")
            if not colon or not index.isdigit():
                raise ValueError("{}: '{}' is no key of a feed, such as '0:x'".format(os.path.basename(path), key))
            members.setdefault(int(index), {})[name] = key
        for index in sorted(members):
            yield {name: archive[key] for name, key in members[index].items()}


def write_feed(archive: zipfile.ZipFile, index: int, arrays: Dict[str, Any]) -> None:
    """Add one feed's arrays to an open archive."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise TypeError("output '{}' is a {}, not a tensor".format(name, type(array).__name__))
        plain = array.astype(str) if array.dtype == object else array
        entry = zipfile.ZipInfo("{}:{}.npy".format(index, name))
        entry.compress_type = archive.compression
        with archive.open(entry, "w", force_zip64=True) as member:
            np.lib.format.write_array(member, plain, allow_pickle=False)


def pairs(left: Iterator[Any], right: Iterator[Any]) -> Iterator[Tuple[Any, Any]]:
    """Yield pairs; ValueError when one side ends first."""
    end = object()
    while True:
        one, other = next(left, end), next(right, end)
        if one is end and other is end:
            return
        if one is end or other is end:
            raise ValueError("there are not as many inputs as expected outputs")
        yield one, other


def compare(found: Any, wanted: Any, absolute: float, relative: float) -> Dict[str, Any]:
    """Hold an output against what is expected: |found - wanted| <= absolute + relative * |wanted|, else equal.

    Returns:
        `matches`; `error`, the largest difference (floating point) or the number of elements that differ, None when
        the two cannot be compared; `text`, one phrase for people.
    """
    found = np.asarray(found)
    found = found.astype(str) if found.dtype == object else found
    if found.shape != wanted.shape or found.dtype.kind != wanted.dtype.kind:
        text = "{} {} instead of {} {}".format(found.dtype, found.shape, wanted.dtype, wanted.shape)
        return {"matches": False, "error": None, "text": text}
    if wanted.dtype.kind != "f":
        wrong = int(np.count_nonzero(found != wanted))
        return {"matches": not wrong, "error": wrong, "text": "{} of {} elements differ".format(wrong, wanted.size)}
    left, right = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(right)
    odd_left, odd_right = left[~finite], right[~finite]
    alike = (odd_left == odd_right) | (np.isnan(odd_left) & np.isnan(odd_right))
    if not np.isfinite(left[finite]).all() or not alike.all():
        return {"matches": False, "error": None, "text": "NaN or infinity where the other has none"}
    error = np.abs(left[finite] - right[finite])
    matches = bool((error <= absolute + relative * np.abs(right[finite])).all())
    largest = float(error.max()) if error.size else 0.0
    return {"matches": matches, "error": largest, "text": "largest error {:.3g}".format(largest)}


def worse(left: Optional[Dict[str, Any]], right: Dict[str, Any]) -> Dict[str, Any]:
    """Return the worse of two comparisons: a mismatch before a match, then the larger error."""
    told = [right] if left is None else [left, right]
    return max(told, key=lambda one: (not one["matches"], np.inf if one["error"] is None else one["error"]))
