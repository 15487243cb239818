"""Qualcomm's real compiler, through the exporter: what it makes, what it refuses, and that both are told."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import house
import kinds
from contract import onnx_artifact
from edgekit.artifact import sha256_file
from edgekit.errors import UnsupportedError, UsageError
from edgekit.exporter import load_exporter
from edgekit.profile import Graph, load_profile
from edgekit_exporters.qnn import EXAMPLES, told
from edgekit_exporters.qnn.options import check_options
from edgekit_exporters.qnn.sanitize import order_gates, plain_gathers

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs the extra qnn (onnxruntime-qnn, x86-64 Linux)"
)
EXPORTER = load_exporter("qnn")
PHONE = load_profile("snapdragon-8-gen3")


def compiled(model, tmp_path, profile=PHONE, name="one"):
    artifact = onnx_artifact(model, tmp_path / name / "in")
    (tmp_path / name / "out").mkdir()
    facts = EXPORTER.compile(artifact, tmp_path / name / "in", profile, tmp_path / name / "out")
    return facts, tmp_path / name / "out"


def linted(model, tmp_path, profile=PHONE):
    artifact = onnx_artifact(model, tmp_path / "lint")
    return EXPORTER.lint(artifact, tmp_path / "lint", profile)


def with_erf(depth=8):
    weights = {"w": np.random.default_rng(0).normal(size=(depth, depth)).astype(np.float32)}
    nodes = [
        kinds.node("MatMul", ["x", "w"], ["a"], name="product"),
        kinds.node("Erf", ["a"], ["b"], name="bell"),
        kinds.node("Add", ["b", "x"], ["y"], name="sum"),
    ]
    return kinds.build(nodes, [kinds.value("x", [1, depth])], [kinds.value("y", [1, depth])], weights)


@needs_compiler
def test_a_context_binary_is_made_and_told_whole(tmp_path):
    facts, out = compiled(kinds.residual_cnn()[0], tmp_path)
    context = facts["context"]
    assert (context["soc_model"], context["vtcm_mb"], context["htp"]) == (57, 8, 75)
    assert context["compatibility"].split(":")[5:7] == ["57", "8"], "the compiler's own word for SoC and memory"
    assert context["refused"] == []
    assert context["graphs"] == 1
    assert facts["loads"] == ["model_ctx.onnx", "model_ctx_qnn.bin"]
    assert facts["model"] == "model.onnx", "the graph itself stays in the bundle, for where the binary does not load"
    assert "findings" not in facts
    nodes = onnx.load(out / "model_ctx.onnx", load_external_data=False).graph.node
    assert [node.op_type for node in nodes] == ["EPContext"], "nothing is left to the CPU"
    assert (out / "model_ctx_qnn.bin").stat().st_size > 4096


@needs_compiler
def test_the_example_loads_the_binary_and_falls_back_to_the_graph_for_another_chip(tmp_path):
    _, out = compiled(kinds.residual_cnn()[0], tmp_path)
    done = subprocess.run([sys.executable, str(out / "load.py")], capture_output=True, text=True, check=True)
    assert "not on the HTP" not in done.stdout
    assert "float32 (1, 10)" in done.stdout
    facts = json.loads((out / "context.json").read_text())
    facts["compatibility"] = facts["compatibility"].replace(":57:", ":36:")
    (out / "context.json").write_text(json.dumps(facts))
    done = subprocess.run([sys.executable, str(out / "load.py")], capture_output=True, text=True, check=True)
    assert "the package 'v2" in done.stdout
    assert "float32 (1, 10)" in done.stdout
    assert "Build.SOC_MODEL" in (out / "Load.kt").read_text()


@pytest.mark.skipif(shutil.which("kotlinc") is None, reason="needs a Kotlin compiler (Debian: kotlin)")
def test_the_kotlin_example_compiles(tmp_path):
    example = Path(EXAMPLES, "Load.kt")
    signatures = sorted(Path(__file__).with_name("kotlin").glob("*.kt"))
    command = ["kotlinc", "-d", str(tmp_path / "out"), str(example), *map(str, signatures)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "LoadKt.class").is_file()


def test_both_examples_look_at_the_same_facts():
    """What keeps a wrong binary, or a silent CPU, out in one language must do so in the other."""
    for name in ("load.py", "Load.kt"):
        text = Path(EXAMPLES, name).read_text(encoding="utf-8")
        for fact in ("others", "soc", "refused", "compatibility", "model", "disable_cpu_ep_fallback"):
            assert f'"{fact}"' in text or f".{fact}" in text, (name, fact)


@needs_compiler
def test_each_soc_has_its_own_binary_in_one_process_and_the_same_bytes_again(tmp_path):
    model = kinds.residual_cnn()[0]
    found = {}
    for name in ("snapdragon-8-gen3", "snapdragon-8-gen1", "iq-9075"):
        facts, out = compiled(model, tmp_path, load_profile(name), name)
        found[name] = (facts["context"]["compatibility"], sha256_file(out / "model_ctx_qnn.bin"))
    assert len(set(found.values())) == 3
    again = type(EXPORTER)()
    artifact = onnx_artifact(model, tmp_path / "again")
    (tmp_path / "more").mkdir()
    again.compile(artifact, tmp_path / "again", PHONE, tmp_path / "more")
    assert sha256_file(tmp_path / "more" / "model_ctx_qnn.bin") == found["snapdragon-8-gen3"][1]


@needs_compiler
def test_qualcomm_estimates_where_its_compiler_knows_the_soc(tmp_path):
    estimate = compiled(kinds.residual_cnn()[0], tmp_path, load_profile("iq-9075"))[0]["context"]["estimate"]
    assert 0 < estimate["low"] <= estimate["us"] <= estimate["high"]
    assert estimate["read"] > 0
    assert estimate["missing"] == 0
    assert compiled(kinds.residual_cnn()[0], tmp_path, PHONE, "phone")[0]["context"]["estimate"] is None


@needs_compiler
def test_a_node_that_the_compiler_refuses_is_an_error_with_its_reason(tmp_path):
    (found,) = [f for f in linted(with_erf(), tmp_path) if f.severity == "error"]
    assert (found.node, found.rule) == ("bell", "qnn-operator-fallback")
    assert "Operators of type `Erf` are not supported" in found.text, "the real tool's own words"
    assert "--allow-fallback" in found.remedy


@needs_compiler
def test_with_fallback_the_rest_runs_on_the_htp_and_what_does_not_is_told(tmp_path):
    facts, out = compiled(with_erf(), tmp_path)
    assert [row["node"] for row in facts["context"]["refused"]] == ["bell"]
    assert [f["severity"] for f in facts["findings"]] == ["warning"]
    kinds_left = [node.op_type for node in onnx.load(out / "model_ctx.onnx", load_external_data=False).graph.node]
    assert kinds_left.count("Erf") == 1
    assert "EPContext" in kinds_left


@needs_compiler
def test_a_network_that_would_lie_on_the_cpu_alone_is_an_error_whatever_is_allowed(tmp_path):
    nodes = [kinds.node("Erf", ["x"], ["y"], name="bell")]
    model = kinds.build(nodes, [kinds.value("x", [1, 8])], [kinds.value("y", [1, 8])], {})
    errors = [f for f in linted(model, tmp_path) if f.severity == "error"]
    assert any("fallback" not in f.rule for f in errors)
    with pytest.raises(UnsupportedError, match="Erf"):
        compiled(model, tmp_path)


@needs_compiler
@pytest.mark.parametrize("name", ["qcs6490", "qcm6690", "snapdragon-888"])
@pytest.mark.parametrize("kind", [kinds.residual_cnn, kinds.small_transformer])
def test_a_chip_without_floats_refuses_a_float_network(name, kind, tmp_path):
    errors = [f for f in linted(kind()[0], tmp_path, load_profile(name)) if f.severity == "error"]
    assert errors, "the compiler of the 888 takes it: its twin does not"


def test_without_the_extra_the_package_says_that_nothing_was_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr("edgekit_exporters.qnn.is_installed", lambda: False)
    facts, out = compiled(kinds.residual_cnn()[0], tmp_path)
    assert [f["rule"] for f in facts["findings"]] == ["qnn-not-compiled"]
    assert "edgekit-toolkit[qnn]" in facts["findings"][0]["remedy"]
    assert [path.name for path in out.iterdir()] == ["model.onnx"]
    assert linted(kinds.residual_cnn()[0], tmp_path)[-1].rule == "qnn-not-compiled"


def test_a_profile_without_a_soc_is_not_compiled_for(tmp_path):
    phone = house.profile(runtime="qnn", family="snapdragon", graph=Graph(max_rank=5, dynamic_shapes=False))
    facts, _ = compiled(kinds.residual_cnn()[0], tmp_path, phone)
    assert "names no SoC" in facts["findings"][0]["text"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"soc_modle": "57"}, "Did you mean 'soc_model'"),
        ({"htp_performance_mode": "turbo"}, "'turbo' is no value"),
        ({"htp_arch": "99"}, "no option"),
        ({"soc_model": "43;57"}, "no number"),
        ({"backend_type": "gpu"}, "'gpu' is no value"),
    ],
)
def test_what_the_provider_would_ignore_silently_is_refused(options, text):
    with pytest.raises(UsageError, match=text.replace("[", r"\[")):
        check_options(options, "qnn")


def test_hard_sigmoid_gates_are_read_first_and_the_rest_is_left_alone():
    nodes = [
        kinds.node("HardSigmoid", ["x"], ["h"], alpha=1 / 6, beta=0.5),
        kinds.node("Mul", ["x", "h"], ["a"], name="gate"),
        kinds.node("Mul", ["h", "a"], ["b"], name="right"),
        kinds.node("Mul", ["x", "b"], ["y"], name="other"),
    ]
    model = kinds.build(nodes, [kinds.value("x", [1, 8])], [kinds.value("y", [1, 8])], {})
    assert order_gates(model) == ["gate"]
    assert [list(n.input) for n in model.graph.node[1:]] == [["h", "x"], ["h", "a"], ["x", "b"]]
    assert order_gates(model) == []


def test_a_gather_of_everything_in_its_order_is_a_reshape_and_others_stay():
    everything = np.stack(np.meshgrid([0], [0, 1, 2], indexing="ij"), -1).reshape(1, 1, 3, 2)
    for number, (indices, op) in enumerate([(everything, "Reshape"), (everything[:, :, ::-1], "GatherND")]):
        nodes = [
            kinds.node("Cast", ["x"], ["b"], to=onnx.TensorProto.BOOL),
            kinds.node("GatherND", ["b", "i"], ["g"], name="mask"),
            kinds.node("Cast", ["g"], ["y"], to=onnx.TensorProto.FLOAT),
        ]
        constants = {"i": np.ascontiguousarray(indices)}
        model = kinds.build(nodes, [kinds.value("x", [1, 3])], [kinds.value("y", [1, 1, 3])], constants)
        feed = {"x": np.array([[0, 1, 0]], np.float32) + np.float32(number)}
        before = kinds.run(model, feed)[0]
        assert plain_gathers(model) == (["mask"] if op == "Reshape" else [])
        assert model.graph.node[1].op_type == op
        np.testing.assert_array_equal(kinds.run(model, feed)[0], before)


def test_the_estimates_of_several_graphs_are_summed(tmp_path):
    head = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier,ONNX Source Ops\n"
    rows = [
        ("Performance Estimates", 0),
        ("Simulated (Accelerator exec time us)", 10),
        ("Simulated (Accelerator exec time us (lower estimate))", 8),
        ("Simulated (Accelerator exec time us (upper estimate))", 14),
        ("Input Fill", 100),
        ("Intermediate Spill", 7),
        ("Missing Ops (Number of Ops with no Costs associated)", 1),
    ]
    lines = [f"0,BACKEND,{value},US,BACKEND,SUB-EVENT,{name},\n" for name, value in rows]
    (tmp_path / "p.csv").write_text(head + "".join(lines * 2))
    assert told.read_estimate(tmp_path / "p.csv") == told.Estimate(
        us=20, low=16, high=28, read=200, written=14, spilled=14, missing=2
    )
    (tmp_path / "q.csv").write_text(head + "0,FINALIZE,10,US,BACKEND,ROOT,QNN (finalize) time,\n")
    assert told.read_estimate(tmp_path / "q.csv") is None


def test_refusals_come_from_the_log_when_there_is_no_trace(tmp_path):
    log = (
        "[W] QNN.backendValidateOpConfig() failed for node `k1` of type `ReluMinMax` with error code 3110\n"
        "[V] LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (Clip) :\n"
        "\tOperator type: Clip Node name: k1 Node index: 1\n"
        "\tREASON : Failed to add node.\n"
    )
    (tmp_path / "log").write_text(log)
    error = "Fail: Node 'stem_token_1' OpType:Conv with domain:com.ms.internal.nhwc was inserted"
    found = told.read_refused(tmp_path / "no-trace", tmp_path / "log", error)
    assert [(row.node, row.op) for row in found] == [("k1", "Clip"), ("stem", "Conv")]
    assert "ReluMinMax is not valid here (code 3110)" in found[0].reason
    rows = [
        {"node_name": "erf", "op_type": "Erf", "reason": "Operators of type `Erf` are not supported", "node_index": 1},
        {"node_name": "QNNExecutionProvider_QNNExecutionProvider_45_3_0", "op_type": "QNNExecutionProvider_45_3"},
    ]
    (tmp_path / "trace").write_text(json.dumps({"unsupported_nodes": rows}))
    assert [row.node for row in told.read_refused(tmp_path / "trace", tmp_path / "log", error)] == ["erf"]
