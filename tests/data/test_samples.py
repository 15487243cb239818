"""Samples: joined, cut and grouped without copying what is not asked for."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.data import Subset, take
from edgekit.data.samples import Grouped, join


class Numbers:
    """Sample i holds i, in one row of `widths[i]` columns."""

    def __init__(self, widths: list[int], *, joinable: bool = True) -> None:
        self.widths, self.joinable = widths, joinable
        self.ids = [f"n{index}" for index in range(len(widths))]
        self.labels = np.arange(len(widths))

    def __len__(self) -> int:
        return len(self.widths)

    def sample(self, index: int):
        return {"x": np.full((1, self.widths[index]), index)}

    def batches(self, size: int):
        return join(self, size, joinable=self.joinable)


@given(st.lists(st.integers(1, 3), max_size=30), st.integers(1, 7), st.booleans())
def test_batches_hold_every_sample_in_order(widths, size, joinable):
    samples = Numbers(widths, joinable=joinable)
    batches = [batch["x"] for batch in samples.batches(size)]
    assert [row[0] for batch in batches for row in batch] == list(range(len(widths)))
    assert all(len(batch) <= (size if joinable else 1) for batch in batches)
    for before, after in itertools.pairwise(batches):
        assert len(before) == size or not joinable or before.shape[1] != after.shape[1]


def test_a_batch_needs_room():
    with pytest.raises(ValueError, match="at least one"):
        next(Numbers([1]).batches(0))


@given(st.integers(0, 40), st.integers(0, 50), st.integers(0, 3))
def test_take_cuts_the_same_way_every_time(count, n, seed):
    samples = Numbers([1] * count)
    cut = take(samples, n, seed=seed)
    assert len(cut) == min(n, count)
    assert list(cut.labels) == sorted(cut.labels)
    assert list(take(samples, n, seed=seed).ids) == list(cut.ids)
    assert [int(cut.sample(index)["x"][0, 0]) for index in range(len(cut))] == list(cut.labels)


def test_take_is_spread_over_sorted_and_periodic_data():
    cut = take(Numbers([1] * 1000), 100)
    assert 350 < cut.labels.mean() < 650
    assert len(set(cut.labels % 10)) == 10
    assert list(take(Numbers([1] * 1000), 100, seed=1).labels) != list(cut.labels)


def test_subsets_keep_what_their_samples_say():
    subset = Subset(Numbers([1] * 5, joinable=False), [4, 2])
    assert subset.ids == ["n4", "n2"]
    assert [batch["x"].tolist() for batch in subset.batches(2)] == [[[4]], [[2]]]
    assert Subset(Subset(Numbers([1] * 5), [4, 2]), [1]).sample(0)["x"].item() == 2


def test_groups_leave_out_what_fills_none():
    grouped = Grouped(Numbers([1] * 8), 3)
    assert len(grouped) == 2
    assert grouped.sample(1)["x"].tolist() == [[3], [4], [5]]
    assert grouped.labels.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [len(batch["x"]) for batch in grouped.batches(8)] == [3, 3]
    with pytest.raises(IndexError):
        grouped.sample(2)


def test_naming_a_dataset_loads_nothing_heavy():
    script = (
        "import sys; from edgekit.data import Dataset, Samples, Feed, Subset, take; import edgekit.stage;"
        "print([name for name in ('PIL', 'tokenizers', 'datasets', 'pyarrow', 'onnx', 'torch', 'zipfile',"
        " 'edgekit.data.opening') if name in sys.modules])"
    )
    toolkit = str(Path(__file__).parents[2] / "toolkit")
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": toolkit}
    )
    assert ran.stdout.strip() in {"[]", "['zipfile']"}
