"""`python:module:factory`: sequences, iterators, splits; deterministic or refused."""

from __future__ import annotations

import sys
import textwrap
import tracemalloc

import numpy as np
import pytest

from edgekit.artifact import TensorSpec
from edgekit.data import open_dataset
from edgekit.errors import InputError

SPEC = [TensorSpec(name="x", dtype="float32", shape=("b", 4))]


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write_module(body: str) -> str:
        (tmp_path / "user_data.py").write_text("import numpy as np\n" + textwrap.dedent(body))
        sys.modules.pop("user_data", None)
        return "python:user_data:make"

    yield write_module
    sys.modules.pop("user_data", None)


BODIES = {
    "list of feeds": "def make(): return [{'x': np.full((1, 4), i, np.float32)} for i in range(30)]",
    "list of bare arrays": "def make(): return [np.full(4, i, np.float32) for i in range(30)]",
    "one array": "def make(): return np.repeat(np.arange(30, dtype=np.float32)[:, None], 4, axis=1)",
    "generator": "def make():\n    for i in range(30): yield {'x': np.full((1, 4), i, np.float32)}",
    "generator of pairs": "def make():\n    for i in range(30): yield np.full((1, 4), i, np.float32), i",
    "pairs": "def make(): return [({'x': np.full((1, 4), i, np.float32)}, i) for i in range(30)]",
    "labels in the feed": "def make(): return [{'x': np.full((1, 4), i, np.float32), 'label': i} for i in range(30)]",
    "torch-like": """
        class Set:
            def __len__(self): return 30
            def __getitem__(self, i):
                if not 0 <= i < 30: raise IndexError
                return np.full(4, i, np.float32), np.int64(i)
        def make(): return Set()
    """,
}


@pytest.mark.parametrize("form", BODIES)
def test_all_forms_give_the_same_samples(write, form):
    found = open_dataset(write(BODIES[form]), SPEC)
    assert (len(found.calibration), len(found.evaluation)) == (15, 15)
    for split in (found.calibration, found.evaluation):
        for index, name in enumerate(split.ids):
            number = int(name.partition("[")[2][:-1])
            assert split.sample(index)["x"].tolist() == [[number] * 4]
            assert split.labels is None or split.labels[index] == number
    assert (found.evaluation.labels is not None) == any(word in form for word in ("pairs", "labels", "torch"))


BATCHES = {
    "list of batches": "def make(): return [(np.full((5, 4), i, np.float32), np.arange(5)) for i in range(6)]",
    "iterator of batches": """
        def make():
            for i in range(6): yield {'x': np.full((5, 4), i, np.float32)}, np.arange(5)
    """,
    "as a DataLoader": "def make():\n    for i in range(6): yield [np.full((5, 4), i, np.float32), np.arange(5)]",
}


@pytest.mark.parametrize("form", BATCHES)
def test_batches_are_split_into_samples(write, form):
    found = open_dataset(write(BATCHES[form]), SPEC)
    assert (len(found.calibration), len(found.evaluation)) == (15, 15)
    for index, name in enumerate(found.evaluation.ids):
        number = int(name.partition("[")[2][:-1])
        assert found.evaluation.sample(index)["x"].tolist() == [[number // 5] * 4]
        assert found.evaluation.labels[index] == number % 5


def test_a_vector_of_targets_is_one_label(write):
    body = "def make(): return [(np.full(4, i, np.float32), np.arange(4) + 0.5) for i in range(30)]"
    found = open_dataset(write(body), SPEC)
    assert len(found.evaluation) == 15
    assert found.evaluation.labels.tolist() == [[0.5, 1.5, 2.5, 3.5]] * 15


def test_batches_after_single_samples_are_refused(write):
    body = "def make(): return [np.zeros((1, 4), np.float32), np.zeros((2, 4), np.float32)]"
    with pytest.raises(InputError, match="sample 1 has 2 rows"):
        open_dataset(write(body), SPEC)


def test_the_id_is_that_of_the_content(write):
    assert open_dataset(write(BODIES["generator"]), SPEC).id == open_dataset(write(BODIES["list of feeds"]), SPEC).id


def test_splits_by_name(write):
    body = """
        def some(start, count): return [(np.full((1, 4), start + i, np.float32), i % 2) for i in range(count)]
        def make(): return {'train': some(0, 40), 'test': iter(some(100, 25))}
    """
    found = open_dataset(write(body), SPEC)
    assert (len(found.calibration), len(found.evaluation)) == (40, 25)
    assert all("/test[" in name for name in found.evaluation.ids)
    with pytest.raises(InputError, match="split 'x'"):
        open_dataset(write("def make(): return {'x': np.zeros((30, 4), np.float32)}"), SPEC)


def test_a_declared_preprocessing_is_applied(write):
    model = [TensorSpec(name="x", dtype="float32", shape=("b", 3, 4, 5))]
    body = "def make(): return [np.full((8, 10, 3), i, np.uint8) for i in range(3)]"
    found = open_dataset(write(body), model, preprocessing={"kind": "image"})
    np.testing.assert_allclose(found.calibration.sample(2)["x"], np.full((1, 3, 4, 5), 2 / 255), rtol=1e-5)
    batch = "def make(): return [np.full((2, 8, 10, 3), i, np.uint8) for i in range(3)]"
    found = open_dataset(write(batch), model, preprocessing={"kind": "image"})
    assert len(found.calibration) == 6
    np.testing.assert_allclose(found.calibration.sample(5)["x"], np.full((1, 3, 4, 5), 2 / 255), rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def make(): raise OSError('disk on fire')", "OSError: disk on fire"),
        ("def make(): return 5", "gave int"),
        ("def make(): return [(1, 2, 3)]", "tuple of 3"),
        ("def make(): return [{'y2': np.zeros((1, 4), np.float32)}]", "'x'; there are 'y2'"),
        ("def make(): return [{'x': object()}]", "no arrays"),
        ("def make(): return [['some', 'words', 'and', 'more']]", "dtype <U5"),
        ("def make(): return []", "no samples"),
        ("def make():\n    yield np.zeros(4, np.float32)\n    raise KeyError('lost')", "sample 1 raised KeyError"),
        ("def make(): return [np.zeros(4, np.float32), 3 / 0]", "ZeroDivisionError"),
        ("raise ImportError('half')", "ImportError: half"),
        ("import nothing_like_this\ndef make(): return []", "no module 'nothing_like_this'"),
        ("def mke(): return []", "no function 'make'"),
        ("def make(): return [(np.full(4, i, np.float32), None if i == 3 else 1) for i in range(9)]", "no label"),
    ],
)
def test_what_goes_wrong_in_a_factory_is_told(write, body, words):
    with pytest.raises(InputError, match=words) as caught:
        open_dataset(write(body), SPEC)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "url", ["python:", "python:module", "python:no_such_module_here:make", "python:missing.py:make"]
)
def test_wrong_urls_are_refused(url):
    with pytest.raises(InputError):
        open_dataset(url, SPEC)


def test_a_file_can_be_named(write, tmp_path):
    write(BODIES["list of feeds"])
    assert len(open_dataset(f"python:{tmp_path / 'user_data.py'}:make", SPEC).calibration) == 15


def test_a_factory_that_gives_other_samples_each_time_is_refused(write):
    body = """
        class Random:
            calls = 0
            def __len__(self): return 25
            def __getitem__(self, i):
                Random.calls += 1
                return np.full(4, Random.calls, np.float32)
        def make(): return Random()
    """
    found = open_dataset(write(body), SPEC)
    with pytest.raises(InputError, match="not what it was"):
        found.evaluation.sample(0)


def test_iterators_are_not_held_in_memory(write):
    def peak(count: int) -> int:
        url = write(f"def make():\n    for i in range({count}): yield np.full((1, 4096), i, np.float32)")
        tracemalloc.start()
        found = open_dataset(url, [TensorSpec(name="x", dtype="float32", shape=("b", 4096))])
        for _ in found.evaluation.batches(8):
            pass
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(30)
    assert peak(1500) - peak(150) < 3 << 20  # 22 MB more data
