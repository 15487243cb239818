import numpy as np
import pytest

import house
import kinds
from edgekit.errors import InputError
from edgekit.graphs.calibrate import Reference, open_graph


def session(shape, folder):
    nodes = [kinds.node("Reshape", ["x", "shape"], ["y"])]
    model = kinds.build(nodes, [kinds.value("x", ["n"])], [kinds.value("y", None)], {"shape": np.array(shape)})
    return open_graph(model, folder, threads=1)


def test_a_graph_that_fails_where_the_original_runs_has_no_value_there(tmp_path):
    samples = house.MemorySamples([{"x": np.ones(size, np.float32)} for size in (4, 6)])
    reference = Reference(session([2, -1], tmp_path), samples, [0, 1])
    (found,) = reference.distances(session([4, -1], tmp_path)).values()
    assert found.incomparable.startswith(f"it has no value for {samples.ids[1]}: the model does not run")
    assert not next(iter(reference.distances(session([2, -1], tmp_path)).values())).incomparable


def test_a_sample_that_the_original_does_not_take_is_an_error(tmp_path):
    samples = house.MemorySamples([{"x": np.ones(3, np.float32)}])
    with pytest.raises(InputError, match="does not run on this sample"):
        Reference(session([2, -1], tmp_path), samples, [0]).distances(session([3, -1], tmp_path))


def test_tokens_that_a_mask_hides_do_not_count(tmp_path):
    def opened(wrong):
        nodes = [kinds.node("Add", ["x", "shift"], ["y"])]
        shift = np.array([[[0.0], [wrong[0]], [wrong[1]]]], np.float32)
        sides = [[kinds.value(name, [1, 3, 2])] for name in "xy"]
        return open_graph(kinds.build(nodes, *sides, {"shift": shift}), tmp_path, threads=1)

    feed = {"x": np.ones((1, 3, 2), np.float32), "attention_mask": np.array([[1, 1, 0]])}
    reference = Reference(opened((0, 0)), house.MemorySamples([feed]), [0])
    assert reference.distances(opened((0, 5)))["y"].noise == 0
    assert reference.distances(opened((5, 0)))["y"].noise == 50
