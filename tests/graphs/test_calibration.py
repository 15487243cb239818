"""Constants found again from times that a known machine would take, and what the fit says of itself."""

import dataclasses

import numpy as np
import pytest

from edgekit.graphs.calibration import Timed, fit_machine, milliseconds, slowdown
from edgekit.graphs.cost import cost_of
from edgekit.graphs.fusion import ONNXRUNTIME, fuse
from edgekit.graphs.roofline import Constants
from edgekit.graphs.sessions import open_session
from edgekit.graphs.work import KINDS, work_of
from edgekit.graphs.workouts import workouts
from graph_models import LIGHT

START = Constants(
    peaks=(1e11, 2e11, 4e11),
    shares=(0.5, 0.3, 0.4),
    depthwise=0.2,
    grouped=0.2,
    recurrent=0.1,
    vector=0.1,
    bandwidth=1e10,
    launch=3e-6,
    cache_bytes=30e6,
    cache_bandwidth=4e10,
)
TRUE = dataclasses.replace(
    START,
    peaks=(2.1e11, 1.26e11, 9e11),
    shares=(1.0, 1.0, 1.0),
    matmul=0.8,
    depthwise=0.55,
    grouped=0.8,
    recurrent=0.4,
    vector=0.12,
    bandwidth=1.7e10,
    launch=0.4e-6,
    cache_bandwidth=7e10,
)


@pytest.fixture(scope="module")
def works(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("workouts"), []
    for workout in workouts("uint8"):
        path = folder / "model.onnx"
        path.write_bytes(workout.model.SerializeToString())
        found.append((workout, work_of(fuse(cost_of(path), ONNXRUNTIME))))
    return found


@pytest.fixture(scope="module")
def others():
    names = ("resnet50", "squeezenet", "shufflenet", "inception_v2")
    return {name: work_of(fuse(cost_of(LIGHT / f"light_{name}.onnx"), ONNXRUNTIME)) for name in names}


def timed(works, known=TRUE, *, noise=0.0):
    rng = np.random.default_rng(0)
    return [
        Timed(
            name=workout.name,
            network=workout.network,
            work=work,
            ms=milliseconds(work, known) * float(np.exp(rng.normal(0, noise))),
        )
        for workout, work in works
    ]


def test_a_machine_is_found_again(works, others):
    found = fit_machine(timed(works), START)
    for name, work in others.items():
        assert milliseconds(work, found.constants) == pytest.approx(milliseconds(work, TRUE), rel=0.03), name
    assert found.constants.peaks[0] == pytest.approx(TRUE.peaks[0], rel=0.03)
    assert found.constants.peaks[2] == pytest.approx(TRUE.peaks[2], rel=0.05)
    assert found.constants.launch == pytest.approx(TRUE.launch, rel=0.1)
    assert found.constants.shares == (1.0, 1.0, 1.0)
    assert found.constants.peaks[1] / found.constants.peaks[0] == pytest.approx(60 / 50), "fp16 moves with fp32"
    assert 1 <= found.spread < 1.1


def test_noise_shows_in_the_interval(works, others):
    quiet, loud = (fit_machine(timed(works, noise=noise), START) for noise in (0.02, 0.3))
    assert quiet.spread < loud.spread
    assert loud.networks == 6
    off = [abs(np.log(milliseconds(work, loud.constants) / milliseconds(work, TRUE))) for work in others.values()]
    assert np.mean(np.array(off) <= np.log(loud.spread)) >= 0.75


def test_the_interval_comes_from_networks_that_were_left_out(works):
    items = timed(works)
    odd = [dataclasses.replace(item, ms=2 * item.ms) if item.name == "mobile" else item for item in items]
    found = fit_machine(odd, START)
    assert found.ratios["mobile"] < 0.75, "what the others say of it, not what it says of itself"
    assert found.spread > 1.3


def test_what_was_not_measured_stays_where_it_was(works):
    without = [item for item in timed(works) if "recurrent" not in item.name]
    known = fit_machine(without, START).constants
    assert known.recurrent == pytest.approx(0.1 / 0.5, rel=0.01)


def test_a_machine_without_a_cache_has_none_after(works):
    bare = dataclasses.replace(START, cache_bytes=0.0, cache_bandwidth=0.0)
    found = fit_machine(timed(works, dataclasses.replace(TRUE, cache_bytes=0.0, cache_bandwidth=0.0)), bare)
    assert (found.constants.cache_bytes, found.constants.cache_bandwidth) == (0, 0)


def test_how_much_slower_a_machine_is(others):
    item = Timed(name="resnet50", network=True, work=others["resnet50"], ms=3 * milliseconds(others["resnet50"], START))
    fast = dataclasses.replace(item, ms=0.1 * item.ms)
    assert slowdown([item], START) == pytest.approx(3)
    assert slowdown([item, fast, item], START) == pytest.approx(3)


def test_workouts_cover_the_kinds_of_kernels(works):
    kinds = {KINDS[kind] for _, work in works for kind in np.unique(work.kind)}
    assert kinds == set(KINDS) - {"attention"}
    names = [workout.name for workout, _ in works]
    assert len(set(names)) == len(names)
    assert not any(workout.name.endswith("-int8") for workout in workouts())


@pytest.mark.parametrize(("activation", "symmetric"), [("uint8", False), ("int8", True)])
def test_quantized_workouts_run_and_are_counted_as_int8(tmp_path, activation, symmetric):
    drawn = [workout for workout in workouts(activation, symmetric=symmetric) if workout.name.endswith("-int8")]
    assert {workout.name for workout in drawn} == {"mobile-int8", "residual-int8", "branches-int8"}
    path = tmp_path / "model.onnx"
    path.write_bytes(drawn[0].model.SerializeToString())
    rows = cost_of(path).rows
    assert all(row.dtype == "int8" for row in rows if row.macs)
    feed = {"x": np.random.default_rng(0).standard_normal(drawn[0].shape, np.float32)}
    (output,) = open_session(path).run(None, feed)
    assert np.isfinite(output).all()
    assert np.ptp(output) > 0
