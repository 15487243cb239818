"""The constants of the Jetson profiles: what they are fitted on, and that they are what the fit gives."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from edgekit.profile import load_profile

FOLDER = Path(__file__).parent.parent / "benchmarks" / "jetson"
POINTS = json.loads((FOLDER / "points.json").read_text(encoding="utf-8"))
PUBLISHED = {
    # 10^9 operations and 10^6 parameters: Ultralytics' tables, torchvision, Devlin et al.
    "yolo11n": (6.5, 2.6),
    "yolo11s": (21.5, 9.4),
    "yolo11m": (68.0, 20.1),
    "yolo11l": (86.9, 25.3),
    "yolo11x": (194.9, 56.9),
    "yolov8n": (8.7, 3.2),
    "resnet50-v1.5": (8.18, 25.6),
    "bert-large-squad-384": (246, 335),
}


@pytest.fixture(scope="module")
def scripts():
    sys.path.insert(0, str(FOLDER))
    try:
        import fit
        import tables

        yield fit, tables
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def fitted(scripts):
    fit = scripts[0].Fit(scripts[0].load_points())
    return fit, fit.constants()


def test_every_point_is_used_or_says_why_not():
    assert len(POINTS) == 82
    assert sum("use" in point for point in POINTS) == 40
    for point in POINTS:
        assert ("use" in point) != bool(point.get("left_out")), point
        assert point["source"]
        if "use" in point:
            assert (FOLDER / "tables" / f"{point['use']['table']}.json").is_file()
            assert load_profile(point["use"]["profile"]).family == "jetson"


@pytest.mark.parametrize("name", PUBLISHED)
def test_tables_have_the_published_totals(name):
    table = json.loads((FOLDER / "tables" / f"{name}.json").read_text(encoding="utf-8"))
    operations, parameters = PUBLISHED[name]
    assert 2 * table["macs"] / 1e9 == pytest.approx(operations, rel=0.01)
    assert table["parameters"] / 1e6 == pytest.approx(parameters, rel=0.025)
    counted = sum(count * macs for count, *_, macs, _, _ in table["kernels"])
    assert counted == table["macs"]


def test_tables_are_what_the_script_draws(scripts):
    for name in ("yolov8n", "retinanet-resnext50-fpn"):
        stored = json.loads((FOLDER / "tables" / f"{name}.json").read_text(encoding="utf-8"))
        assert json.loads(json.dumps(scripts[1].table_of(name))) == stored


def test_the_profile_holds_what_the_fit_gives(scripts, fitted):
    fit, values = fitted
    roofline = load_profile("jetson").roofline
    for name, value in zip(scripts[0].START, values, strict=True):
        assert getattr(roofline, name).value == pytest.approx(value, rel=0.01), name
    assert roofline.vector.value == scripts[0].VECTOR
    shares = scripts[0].largest_shares(fit, values)
    assert roofline.fitted_on == {kind: pytest.approx(share, abs=0.0051) for kind, share in shares.items()}


def test_a_model_that_was_left_out_is_predicted(scripts, fitted):
    fit, _ = fitted
    models = [point.model for point in fit.points]
    ratios = fit.unseen(models)
    off = np.abs(ratios - 1)
    assert np.median(off) < 0.08
    assert off.max() < 0.25
    spread = scripts[0].spread_factor(ratios, models)
    assert load_profile("jetson").roofline.spread.value == pytest.approx(spread, abs=0.005)


@pytest.mark.slow
def test_nested_intervals_cover_what_they_promise(scripts, fitted):
    fit, _ = fitted
    models = [point.model for point in fit.points]
    ratios, spreads = fit.unseen(models), scripts[0].nested_spreads(fit, models)
    assert 0.85 <= np.mean(np.abs(np.log(ratios)) <= np.log(spreads)) <= 0.95
    assert np.median(spreads) <= 1.25
    unlike = fit.unseen([point.family for point in fit.points])
    stated = re.search(r"largest error is (\d+) %", load_profile("jetson").roofline.spread_unlike.source)
    assert np.abs(unlike - 1).max() == pytest.approx(int(stated[1]) / 100, abs=0.005)
    assert np.abs(np.log(unlike)).max() < np.log(load_profile("jetson").roofline.spread_unlike.value)
