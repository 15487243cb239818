import json

import numpy as np
import pytest

from edgekit.errors import InputError
from edgekit.graphs.files import check_dynamic
from graph_models import CASES, INT64, floats, model, node, run_here, take_in, value


@pytest.fixture(autouse=True)
def in_process(request, monkeypatch):
    """Do the child's work in this process, except for the case itself."""
    if "g05" not in request.node.name:
        monkeypatch.setattr("edgekit.graphs.files.run_task", run_in_folder)


def run_in_folder(task, request, *, folder, **options):
    return run_here(task, {**request, "model": str(folder / request["model"])}, **options)


def checked(source, tmp_path, **options):
    facts, out = take_in(source, tmp_path)
    return check_dynamic(out, facts["graphs"]["model.onnx"], **options)


def test_g05_a_baked_batch_is_an_error_that_names_axis_size_and_node(tmp_path):
    case = CASES / "G05_batch_baked"
    with pytest.raises(InputError) as error:
        checked(case / "model.onnx", tmp_path)
    assert json.loads((case / "expect.json").read_text())["error"] in error.value.text
    assert "node 'rs'" in error.value.where
    assert "--shape" in error.value.remedy


def test_g05_a_baked_batch_that_is_not_needed_is_a_warning_and_the_axis_is_fixed(tmp_path):
    found = checked(CASES / "G05_batch_baked" / "model.onnx", tmp_path, needed=False)
    assert found.base == {"batch": 1}
    assert found.fixed == {"batch": 1}
    (finding,) = found.findings
    assert (finding.severity, finding.node, finding.rule) == ("warning", "rs", "dynamic-axis-broken")


def test_a_batch_that_runs_but_gives_another_shape_is_found(tmp_path):
    baked = model(
        [node("Reshape", ["x", "s"], ["y"], name="rs")],
        [value("x", ["batch", 4])],
        [value("y", ["batch", "rest"])],
        {"s": np.array([1, -1], np.int64)},
    )
    with pytest.raises(InputError, match=r"batch=3 \(node rs\).*has shape \[1, 12\]"):
        checked(baked, tmp_path)


def test_rows_that_influence_each_other_are_reported(tmp_path):
    mixing = model(
        [node("ReduceMean", ["x"], ["m"], axes=[0]), node("Sub", ["x", "m"], ["y"], name="sub")],
        [value("x", ["batch", 4])],
        [value("y", ["batch", 4])],
    )
    found = checked(mixing, tmp_path)
    (finding,) = found.findings
    assert finding.rule == "batch-rows-mix"
    assert not found.fixed


def test_a_sound_batch_is_silent_even_when_its_axes_have_no_names(tmp_path):
    sound = model(
        [node("Add", ["a", "b"], ["s"]), node("MatMul", ["s", "W"], ["y"])],
        [value("a", [None, 4]), value("b", [None, 4])],
        [value("y", [None, 3])],
        {"W": floats(4, 3)},
    )
    found = checked(sound, tmp_path)
    assert found.base == {"a_dim0": 1, "b_dim0": 1}
    assert not found.findings


def test_other_axes_may_have_limits_of_their_own(tmp_path):
    limited = model(
        [node("Reshape", ["x", "s"], ["y"], name="rs")],
        [value("x", ["batch", "width"])],
        [value("y", ["batch", 4, 4])],
        {"s": np.array([0, 4, 4], np.int64)},
    )
    found = checked(limited, tmp_path)
    (finding,) = found.findings
    assert finding.rule == "dynamic-axis-limited"
    assert "width=32" in finding.text
    assert found.base == {"batch": 1, "width": 16}
    assert not found.fixed


def test_sizes_of_a_sample_are_used_where_guesses_fail(tmp_path):
    picky = model(
        [node("Reshape", ["x", "s"], ["y"])],
        [value("x", ["batch", "width"])],
        [value("y", ["batch", 77, 1])],
        {"s": np.array([0, 77, 1], np.int64)},
    )
    assert checked(picky, tmp_path / "a").base is None
    assert checked(picky, tmp_path / "a2", known={"width": 77}).base == {"batch": 1, "width": 77}


def test_indices_stay_inside_their_tables(tmp_path):
    lookup = model(
        [node("Cast", ["ids"], ["wide"], to=INT64), node("Gather", ["E", "wide"], ["y"])],
        [value("ids", ["batch", "length"], 6)],
        [value("y", ["batch", "length", 3])],
        {"E": floats(5, 3)},
    )
    found = checked(lookup, tmp_path)
    assert found.base == {"batch": 1, "length": 16}
    assert not found.findings


def test_a_fixed_model_needs_no_run(tmp_path, monkeypatch):
    fixed = model([node("Relu", ["x"], ["y"])], [value("x", [1, 4])], [value("y", [1, 4])])
    facts, out = take_in(fixed, tmp_path)
    monkeypatch.setattr("edgekit.graphs.files.run_task", None)
    assert check_dynamic(out, facts["graphs"]["model.onnx"]).base == {}
