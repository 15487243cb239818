import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import house
from contract import onnx_artifact, run_stage
from edgekit.errors import InputError, TargetError, UsageError
from edgekit.graphs import saving, verify
from edgekit.stage import Context, Inputs
from edgekit.stages import simplify as module
from edgekit.stages.simplify import Simplify
from graph_models import CASES, INT64, floats, model, node, run_here, value


@pytest.fixture(autouse=True)
def in_process(request, monkeypatch):
    """Do the children's work in this process, except where a test is marked to use real ones."""
    if "real_children" not in request.fixturenames:
        monkeypatch.setattr(module, "run_task", run_here)
        monkeypatch.setattr(verify, "run_task", run_here)


@pytest.fixture
def real_children():
    """Use child processes as in production."""


def outputs(made, feed):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)


def ops(made):
    return [item.op_type for item in made.graph.node]


def data(shape=(1, 3, 8, 8), count=8):
    return house.dataset([{"x": floats(*shape, seed=i)} for i in range(count)])


@pytest.mark.parametrize("path", sorted((CASES / "G13_slim_slice_merge").glob("*.onnx")), ids=lambda path: path.stem)
def test_g13_slices_in_a_row_stay_equal(path, tmp_path):
    assert json.loads((path.parent / "expect.json").read_text())["equal_after_simplify"]
    before = onnx.load(path)
    feed = dict(np.load(path.with_suffix(".npz")))
    artifact = onnx_artifact(before, tmp_path / "in")
    (tmp_path / "out").mkdir()
    inputs = Inputs(artifact=artifact, folder=tmp_path / "in", profile=house.profile())
    facts = Simplify().run(inputs, tmp_path / "out", Context(scratch=tmp_path / "scratch"))
    after = onnx.load(tmp_path / "out" / "model.onnx")
    for a, b in zip(outputs(before, feed), outputs(after, feed), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not facts["findings"]


def messy():
    """A Constant to fold, a batch norm, an Identity, a double node, a dead one, two linear layers in a row."""
    statistics = {"g": floats(4), "s": floats(4, seed=1), "m": floats(4, seed=2), "v": np.abs(floats(4, seed=3)) + 0.2}
    return model(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("BatchNormalization", ["c", "g", "s", "m", "v"], ["n"]),
            node("Relu", ["n"], ["r1"]),
            node("Relu", ["n"], ["r2"]),
            node("Add", ["r1", "r2"], ["a"]),
            node("Identity", ["a"], ["i"]),
            node("Sigmoid", ["a"], ["dead"]),
            node("Add", ["one", "one"], ["two"]),
            node("Mul", ["i", "two"], ["d"]),
            node("GlobalAveragePool", ["d"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("MatMul", ["f", "u1"], ["h"]),
            node("MatMul", ["h", "u2"], ["y"]),
        ],
        [value("x", ["batch", 3, 8, 8]), value("unused", ["batch", 2])],
        [value("y", ["batch", 5])],
        {
            "w": floats(4, 3, 3, 3),
            "one": np.ones((1,), np.float32),
            "u1": floats(4, 32),
            "u2": floats(32, 5),
            **statistics,
        },
    )


def test_what_is_superfluous_goes_and_the_results_stay(tmp_path, real_children):
    made = messy()
    facts, after = run_stage(Simplify(), made, tmp_path, data=house.dataset(
        [{"x": floats(1, 3, 8, 8, seed=i), "unused": floats(1, 2)} for i in range(10)]
    ))  # fmt: skip
    found = facts["simplify"]["model.onnx"]
    assert found["nodes_before"] == 13
    assert found["nodes_after"] == len(after.graph.node) <= 7
    assert set(found["rewrites"]) == {"onnxslim", "merge-linears"}
    assert not {"BatchNormalization", "Identity", "Sigmoid"} & set(ops(after))
    assert ops(after).count("MatMul") + ops(after).count("Gemm") == 1
    assert [item.name for item in after.graph.input] == ["x", "unused"], "inputs stay, also those nobody reads"
    assert after.graph.output[0].type == made.graph.output[0].type
    assert after.ir_version == made.ir_version
    for rows in (1, 4):
        feed = {"x": floats(rows, 3, 8, 8, seed=99), "unused": floats(rows, 2)}
        np.testing.assert_allclose(outputs(after, feed)[0], outputs(made, feed)[0], rtol=1e-4, atol=1e-5)
    assert {item.name for item in after.graph.value_info} == {
        out for item in after.graph.node for out in item.output
    } - {"y"}, "what is known of shapes is written down"


def test_rewrites_can_be_left_out(tmp_path):
    _, plain = run_stage(Simplify(rewrites=False), messy(), tmp_path / "a")
    assert "BatchNormalization" in ops(plain)
    assert "Sigmoid" not in ops(plain)
    _, some = run_stage(Simplify(skip=("FusionConvBN", "merge-linears")), messy(), tmp_path / "b")
    assert "BatchNormalization" in ops(some)
    assert ops(some).count("MatMul") == 2
    facts, none = run_stage(Simplify(skip=("onnxslim", *module.OWN)), messy(), tmp_path / "c")
    assert none.SerializeToString() == messy().SerializeToString()
    assert facts["simplify"]["model.onnx"]["rewrites"] == {}


def test_an_unknown_rewrite_is_a_usage_error(tmp_path):
    inputs = Inputs(artifact=onnx_artifact(messy(), tmp_path / "in"), folder=tmp_path / "in", profile=house.profile())
    with pytest.raises(UsageError, match="FusionConvBM") as error:
        Simplify(skip=("FusionConvBM",)).run(inputs, tmp_path, Context(scratch=tmp_path))
    assert "FusionConvBN" in error.value.remedy


def test_a_model_with_nothing_to_gain_keeps_its_bytes(tmp_path):
    lean = model(
        [node("MatMul", ["x", "w"], ["y"])], [value("x", ["b", 4])], [value("y", ["b", 3])], {"w": floats(4, 3)}
    )
    facts, _ = run_stage(Simplify(), lean, tmp_path)
    assert (tmp_path / "out1" / "model.onnx").read_bytes() == (tmp_path / "in" / "model.onnx").read_bytes()
    assert facts["simplify"]["model.onnx"]["not_applied"]["onnxslim"] == "nothing to gain"
    assert not (tmp_path / "scratch1" / "simplify").exists()


def sabotage(monkeypatch, *guilty):
    """Let some of onnxslim's patterns change the weights: what the child writes is damaged afterwards."""
    real = module.run_task
    asked = []

    def run_task(task, request, **options):
        answer = real(task, request, **options)
        assert task == "slim"
        wanted = [name for name in module.patterns() if name not in request["skip"]] if request["fuse"] else []
        asked.append(wanted)
        if set(guilty) & set(wanted) or "always" in guilty:
            path = Path(request["target"])
            damaged = saving.load_model(path)
            item = max(damaged.graph.initializer, key=lambda tensor: len(tensor.raw_data))
            values = saving.value_of(item) * 1.01
            item.raw_data = values.astype(np.float32).tobytes()
            saving.save_model(damaged, path)
        return answer

    monkeypatch.setattr(module, "run_task", run_task)
    return asked


def stage(tmp_path, made, **options):
    inputs = Inputs(artifact=onnx_artifact(made, tmp_path / "in"), folder=tmp_path / "in", profile=house.profile())
    (tmp_path / "out").mkdir()
    facts = Simplify(**options).run(inputs, tmp_path / "out", Context(scratch=tmp_path / "scratch"))
    return facts, onnx.load(tmp_path / "out" / "model.onnx")


def small():
    return model(
        [
            node("Conv", ["x", "w"], ["c"]),
            node("BatchNormalization", ["c", "g", "g", "g", "v"], ["n"]),
            node("Identity", ["n"], ["y"]),
        ],
        [value("x", ["b", 3, 8, 8])],
        [value("y", ["b", 4, 6, 6])],
        {"w": floats(4, 3, 3, 3), "g": floats(4), "v": np.ones(4, np.float32)},
    )


def test_a_pattern_that_changes_results_is_found_and_left_out(tmp_path, monkeypatch):
    asked = sabotage(monkeypatch, "FusionConvBN")
    facts, after = stage(tmp_path, small())
    found = facts["simplify"]["model.onnx"]
    assert found["undone"] == ["onnxslim FusionConvBN"]
    assert "BatchNormalization" in ops(after)
    assert "Identity" not in ops(after), "the innocent rewrites are kept"
    (finding,) = facts["findings"]
    assert finding["rule"] == "simplify-undone"
    assert "FusionConvBN" in finding["text"]
    assert "results differ by 1.0e-02" in finding["text"]
    assert len(asked) <= 8, "found by bisection"


def test_when_everything_it_does_is_wrong_the_model_stays(tmp_path, monkeypatch):
    sabotage(monkeypatch, "always")
    facts, after = stage(tmp_path, small())
    assert facts["simplify"]["model.onnx"]["undone"] == ["onnxslim"]
    assert ops(after) == ops(small())


def test_a_crash_of_the_simplifier_is_a_finding(tmp_path, monkeypatch):
    def run_task(task, request, **options):
        raise InputError("work on the model ended with signal SIGSEGV: ", remedy="none")

    monkeypatch.setattr(module, "run_task", run_task)
    facts, after = stage(tmp_path, small())
    assert ops(after) == ops(small())
    assert "SIGSEGV" in facts["findings"][0]["text"]


def test_plain_numbers_as_constants_keep_their_type(tmp_path):
    """`value_floats` are float32 (onnxslim reads them as float64)."""
    made = model(
        [
            node("Constant", [], ["k"], value_float=0.5),
            node("Constant", [], ["b"], value_floats=[0.25, -1.0, 3.0, 0.1]),
            node("Constant", [], ["shape"], value_ints=[-1, 2, 2]),
            node("Mul", ["x", "k"], ["m"]),
            node("Add", ["m", "b"], ["a"]),
            node("Reshape", ["a", "shape"], ["y"]),
        ],
        [value("x", [1, 4])],
        [value("y", [1, 2, 2])],
    )
    facts, after = stage(tmp_path, made)
    assert facts["simplify"]["model.onnx"]["undone"] == []
    assert ops(after) == ["Mul", "Add", "Reshape"]
    assert [t.data_type for t in after.graph.initializer if t.name == "b"] == [onnx.TensorProto.FLOAT]


def test_a_graph_that_is_not_valid_any_more_is_not_taken(tmp_path, monkeypatch):
    import onnxslim

    def ruin(given, **_options):
        given.graph.node[0].op_type = "Gather"
        return given

    monkeypatch.setattr(onnxslim, "slim", ruin)
    facts, after = stage(tmp_path, small())
    assert facts["simplify"]["model.onnx"]["undone"] == ["onnxslim"]
    assert ops(after) == ops(small())


def test_a_merge_that_changes_results_is_undone(tmp_path, monkeypatch):
    real = module.merge_consecutive

    def wrong(made, folder):
        count = real(made, folder)
        tensor = made.graph.initializer[-1]
        tensor.raw_data = (np.frombuffer(tensor.raw_data, np.float32) * 1.5).tobytes()
        return count

    monkeypatch.setattr(module, "merge_consecutive", wrong)
    two = model(
        [node("MatMul", ["x", "a"], ["h"]), node("MatMul", ["h", "b"], ["y"])],
        [value("x", ["n", 4])],
        [value("y", ["n", 4])],
        {"a": floats(4, 16), "b": floats(16, 4)},
    )
    facts, after = stage(tmp_path, two)
    assert facts["simplify"]["model.onnx"]["undone"] == ["merge-linears"]
    assert ops(after) == ["MatMul", "MatMul"]


def test_a_model_that_cannot_be_run_is_left_alone(tmp_path):
    picky = model(
        [node("Identity", ["x"], ["i"]), node("Reshape", ["i", "s"], ["y"])],
        [value("x", ["n"])],
        [value("y", [7, 11])],
        {"s": np.array([7, 11], np.int64)},
    )
    facts, after = stage(tmp_path, picky)
    assert ops(after) == ["Identity", "Reshape"]
    assert facts["findings"][0]["rule"] == "simplify-unchecked"


def test_constants_that_would_bloat_the_model_are_not_folded(tmp_path):
    bloated = model(
        [node("ConstantOfShape", ["s"], ["big"]), node("Add", ["x", "big"], ["y"])],
        [value("x", [1, 512, 512])],
        [value("y", [1, 512, 512])],
        {"s": np.array([1, 512, 512], np.int64)},
    )
    _, after = stage(tmp_path, bloated)
    assert "ConstantOfShape" in ops(after)


def test_random_numbers_are_not_drawn_once_and_for_all(tmp_path):
    noisy = model(
        [
            node("RandomNormal", [], ["a"], shape=[1, 4]),
            node("RandomNormal", [], ["b"], shape=[1, 4]),
            node("Add", ["a", "b"], ["n"]),
            node("Identity", ["x"], ["i"]),
            node("Add", ["i", "n"], ["y"]),
        ],
        [value("x", [1, 4])],
        [value("y", [1, 4])],
    )
    _, after = stage(tmp_path, noisy)
    assert ops(after).count("RandomNormal") == 2
    assert "Identity" not in ops(after)
    assert not any(attribute.name == "seed" for item in after.graph.node for attribute in item.attribute)


def test_weights_of_quantized_models_stay_integers(tmp_path):
    made = model(
        [
            node("Identity", ["x"], ["i"]),
            node("QuantizeLinear", ["i", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
            node("MatMul", ["d", "wd"], ["y"]),
        ],
        [value("x", ["b", 64])],
        [value("y", ["b", 64])],
        {"s": np.float32(0.05), "z": np.int8(0), "w": np.ones((64, 64), np.int8)},
    )
    artifact = onnx_artifact(made, tmp_path / "in")
    artifact.facts["quantized"] = True
    (tmp_path / "out").mkdir()
    inputs = Inputs(artifact=artifact, folder=tmp_path / "in", profile=house.profile())
    Simplify().run(inputs, tmp_path / "out", Context(scratch=tmp_path / "s"))
    after = onnx.load(tmp_path / "out" / "model.onnx")
    assert sorted(ops(after)) == ["DequantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear"]
    assert {tensor.data_type for tensor in after.graph.initializer if len(tensor.dims) == 2} == {onnx.TensorProto.INT8}


def test_other_graphs_and_files_of_the_artifact_come_along(tmp_path):
    import msgspec

    artifact = onnx_artifact(small(), tmp_path / "in")
    (tmp_path / "in" / "decoder.onnx").write_bytes(small().SerializeToString())
    (tmp_path / "in" / "deep").mkdir()
    (tmp_path / "in" / "deep" / "tokenizer.json").write_text("{}")
    graphs = {**artifact.facts["graphs"], "decoder.onnx": artifact.facts["graphs"]["model.onnx"]}
    files = dict.fromkeys(("model.onnx", "decoder.onnx", "deep/tokenizer.json"), "")
    artifact = msgspec.structs.replace(artifact, files=files, facts={"graphs": graphs})
    (tmp_path / "out").mkdir()
    inputs = Inputs(artifact=artifact, folder=tmp_path / "in", profile=house.profile())
    facts = Simplify().run(inputs, tmp_path / "out", Context(scratch=tmp_path / "s"))
    assert set(facts["simplify"]) == {"model.onnx", "decoder.onnx"}
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == set(files)


def test_large_weights_stay_outside_while_the_graph_is_simplified(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "EXTERNAL_THRESHOLD", 1000)
    made = model(
        [
            node("Identity", ["x"], ["i"]),
            node("MatMul", ["i", "w"], ["h"]),
            node("Gather", ["table", "at"], ["g"], axis=0),
            node("Add", ["h", "g"], ["y"]),
        ],
        [value("x", ["b", 32])],
        [value("y", ["b", 16])],
        {"w": floats(32, 16), "table": floats(64, 16), "at": np.array(3, np.int64)},
    )
    artifact = onnx_artifact(made, tmp_path / "in")
    (tmp_path / "in" / "model.onnx").unlink()
    saving.save_model(onnx.ModelProto.FromString(made.SerializeToString()), tmp_path / "in" / "model.onnx")
    assert (tmp_path / "in" / "model.onnx.data").exists()
    (tmp_path / "out").mkdir()
    inputs = Inputs(artifact=artifact, folder=tmp_path / "in", profile=house.profile())
    Simplify().run(inputs, tmp_path / "out", Context(scratch=tmp_path / "s"))
    after = saving.load_model(tmp_path / "out" / "model.onnx")
    assert "Identity" not in ops(after)
    assert [item.name for item in after.graph.input] == ["x"]
    assert {tensor.name for tensor in after.graph.initializer} >= {"w", "table"}
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    feed = {"x": floats(2, 32)}
    np.testing.assert_allclose(session.run(None, feed)[0], outputs(made, feed)[0], rtol=1e-5, atol=1e-6)


def test_integer_inputs_are_drawn_inside_their_tables(tmp_path):
    made = model(
        [node("Identity", ["ids"], ["i"]), node("Gather", ["E", "i"], ["y"])],
        [value("ids", ["b", "s"], INT64)],
        [value("y", ["b", "s", 3])],
        {"E": floats(5, 3)},
    )
    facts, after = stage(tmp_path, made)
    assert ops(after) == ["Gather"]
    assert not facts["findings"]


def test_a_deadline_fails_the_stage_instead_of_doing_less(tmp_path, real_children):
    inputs = Inputs(artifact=onnx_artifact(small(), tmp_path / "in"), folder=tmp_path / "in", profile=house.profile())
    with pytest.raises(TargetError, match="deadline"):
        Simplify().run(inputs, tmp_path, Context(scratch=tmp_path / "s", deadline=time.monotonic() + 0.01))
