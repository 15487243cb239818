"""Whether a rewritten model still gives what the one before gave, on samples: the parent's side."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.artifact import TensorSpec
from edgekit.errors import InputError, UnsupportedError
from edgekit.graphs.child import run_task
from edgekit.graphs.dynamic import batch_axes, other_axes
from edgekit.graphs.edit import load_model
from edgekit.graphs.feeds import Feed, index_bounds, random_feed, save_feeds
from edgekit.graphs.saving import model_bytes
from edgekit.graphs.storage import tensors_in

if TYPE_CHECKING:
    import onnx

    from edgekit.data import Samples

_ROWS = 3


_NOISE_CEILING = 1e-2


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How two models compare.

    Attributes:
        fits: indices of the feeds that the first one runs; empty when nothing was compared.
        difference: the largest error of an output relative to its largest value over all feeds; None when shapes,
            types or the places of NaN and infinity differ, or the second model fails.
        tolerance: what is allowed.
        noise: how far the runtime's own optimizations move the first model's results, measured when `difference` is
            above the tolerance.
        reason: why nothing was compared, or why and where they differ.
    """

    fits: tuple[int, ...]
    difference: float | None
    tolerance: float
    noise: float = 0.0
    reason: str = ""

    @property
    def same(self) -> bool:
        """Whether results were compared and are the same, up to rounding.

        Rounding is what the tolerance allows, or twice what the runtime's own optimizations do (never more than 1 %):
        an output that is tiny for all samples, such as a probability near 0, has no more digits than that.
        """
        if not self.fits or self.difference is None:
            return False
        return self.difference <= max(self.tolerance, min(2 * self.noise, _NOISE_CEILING))


def compare(
    left: Path,
    right: Path,
    feeds: Sequence[Feed],
    *,
    tolerance: float | None = None,
    threads: int = 1,
    deadline: float | None = None,
) -> Agreement:
    """Run two model files on the same feeds, in a child process, unoptimized, and compare their outputs.

    Args:
        left: the model that is right.
        right: the model in question.
        feeds: what to run; those that the left model does not run are left out.
        tolerance: what is allowed; None takes `tolerance_of` the left model.
        threads: CPU threads.
        deadline: `time.monotonic()` value by which it must end.

    Raises:
        TargetError: the deadline passed.
    """
    allowed = tolerance_of(left) if tolerance is None else tolerance
    with tempfile.TemporaryDirectory(prefix="edgekit-compare-") as folder:
        names = save_feeds(Path(folder) / "feeds.npz", feeds)
        request = {
            "left": str(left.resolve()),
            "right": str(right.resolve()),
            "feeds": str(Path(folder) / "feeds.npz"),
            "names": names,
            "tolerance": allowed,
            "threads": threads,
        }
        size = model_bytes(left) + model_bytes(right)
        try:
            answer = run_task("compare", request, folder=Path(folder), size=size, deadline=deadline)
        except (InputError, UnsupportedError) as error:
            return Agreement(fits=(), difference=None, tolerance=allowed, reason=error.text)
    output = f"output '{answer['output']}'" if answer["output"] else ""
    return Agreement(
        fits=tuple(answer["fits"]),
        difference=answer["difference"],
        tolerance=allowed,
        noise=answer["noise"],
        reason=answer["right_error"] or (output if answer["fits"] else answer["reason"]),
    )


def make_feeds(
    model: onnx.ModelProto, folder: Path, specs: Sequence[TensorSpec], samples: Samples | None, *, seed: int
) -> list[Feed]:
    """Return feeds to compare models on: real samples when there are any that fit, else random ones.

    Where the batch axis is dynamic, there is a feed of one row and one of three; where other axes are, and there is
    no sample, several sizes, of which the model need not take all.

    Args:
        model: the model.
        folder: where its external data lies.
        specs: its inputs.
        samples: the calibration split, or None.
        seed: for random feeds.
    """
    names = [spec.name for spec in specs]
    real = _real(samples, names, dynamic=bool(batch_axes(specs))) if samples is not None else []
    if real:
        return real
    bounds = index_bounds(model, specs, folder)
    batches, others = batch_axes(specs), other_axes(specs)
    feeds: list[Feed] = []
    for size in (16, 64, 224) if others else (1,):
        for rows in (1, _ROWS) if batches else (1,):
            sizes = dict.fromkeys(batches, rows) | dict.fromkeys(others, size)
            feeds.append(random_feed(specs, sizes, bounds, seed=2 * seed + len(feeds)))
    if len(feeds) == 1:
        feeds.append(random_feed(specs, {}, bounds, seed=2 * seed + 1))
    return feeds


def _real(samples: Samples, names: Sequence[str], *, dynamic: bool) -> list[Feed]:
    first = []
    for index in range(min(_ROWS, len(samples))):
        feed = samples.sample(index)
        if not set(names) <= set(feed):
            return []
        first.append({name: feed[name] for name in names})
    if dynamic and len(samples) >= _ROWS:
        batch = next(iter(samples.batches(_ROWS)))
        first.append({name: batch[name] for name in names})
    return first


def tolerance_of(path: Path) -> float:
    """Return how far outputs may move, relative to their largest value: 1e-4, more where there are 16-bit floats."""
    import onnx

    kinds = {tensor.data_type for tensor in tensors_in(load_model(path))}
    if onnx.TensorProto.BFLOAT16 in kinds:
        return 4 * 2**-7
    return 4 * 2**-10 if onnx.TensorProto.FLOAT16 in kinds else 1e-4
