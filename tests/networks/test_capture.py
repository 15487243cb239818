"""The export inside its child process, called directly: which graph comes out, and when none does."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edgekit.artifact import canonical_json
from edgekit.errors import InputError, UnsupportedError, UsageError
from edgekit.networks import capture as capturing
from edgekit.networks import export
from edgekit.networks.inputs import with_inputs
from edgekit.networks.intake import intake_torch
from torch_models import TEXT, bert, saved

torch = pytest.importorskip("torch")
CASES = Path(__file__).parent.parent / "cases"


def captured(network, out, monkeypatch, heard=(), **options):
    """Capture a network that is already there."""
    monkeypatch.setattr(capturing, "rebuild", lambda *_, **__: network)
    out.mkdir(exist_ok=True)
    values = {"opset": 18, "dynamic": True, "shapes": {}, "dtypes": {}, "tolerance": 1e-4, "threads": 1, "folder": "."}
    listen = heard.append if isinstance(heard, list) else (lambda _event: None)
    return capturing.capture({**values, "out": str(out), **options}, listen)


def named(module, *example, **attributes):
    module.example_inputs = example
    for name, value in attributes.items():
        setattr(module, name, value)
    return with_inputs(module, {}, {})


def run(path, **feed):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feed), strict=True))


def rules(facts):
    return [finding["rule"] for finding in facts["findings"]]


def g15():
    from safetensors.torch import load_file

    parts = (
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.Flatten(),
    )
    net = torch.nn.Sequential(*parts, torch.nn.Linear(4 * 36, 5))
    net.load_state_dict(load_file(CASES / "G15_bn_training_mode" / "net.safetensors"))
    return net.train()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The module of case G15, its state before, and its capture."""
    net, out = g15(), tmp_path_factory.mktemp("g15") / "out"
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.MonkeyPatch.context() as patch:
        return net, before, captured(named(net, torch.zeros(1, 3, 8, 8)), out, patch), out


def test_a_module_in_training_mode_is_exported_in_evaluation_mode(trained):
    net, before, facts, out = trained
    reference = np.load(CASES / "G15_bn_training_mode" / "ref.npz")
    found = run(out / "model.onnx", input=reference["x"])["output"]
    assert np.abs(found - reference["y"]).max() < 1e-4
    assert all(part.training for part in net.modules()), "the mode is restored"
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert facts["capture"]["model.onnx"]["path"] == "dynamo"
    assert facts["graphs"]["model.onnx"]["inputs"][0]["shape"] == ("batch", 3, 8, 8)


def test_the_graph_is_portable_and_says_nothing_of_this_machine(trained):
    check_portable(trained[3] / "model.onnx", 18)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [17, 19, 20])
def test_other_opsets_are_what_was_asked(tmp_path, monkeypatch, opset):
    captured(named(g15(), torch.zeros(1, 3, 8, 8)), tmp_path / "out", monkeypatch, opset=opset)
    check_portable(tmp_path / "out" / "model.onnx", opset)


def check_portable(path, opset):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]
    assert model.ir_version == onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    assert {initializer.name for initializer in model.graph.initializer} >= {"0.weight", "5.weight"}
    assert not model.functions
    raw = model.SerializeToString()
    assert b"site-packages" not in raw
    assert b".py" not in raw
    assert not [node for node in model.graph.node if node.doc_string or node.metadata_props]


def test_the_legacy_exporter_steps_in_and_is_told(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no luck at /home/me/secret/path.py")

    monkeypatch.setattr(export, "_dynamo", broken)
    net = named(g15(), torch.zeros(1, 3, 8, 8))
    facts = captured(net, tmp_path / "out", monkeypatch)
    assert facts["capture"]["model.onnx"]["path"] == "torchscript"
    assert facts["opset"] == 17
    assert facts["graphs"]["model.onnx"]["outputs"][0]["shape"] == ("batch", 5)
    finding = next(finding for finding in facts["findings"] if finding["rule"] == "capture-path")
    assert "dynamo: RuntimeError: no luck at ..." in finding["text"]
    assert "secret" not in finding["text"]
    assert b".py" not in (tmp_path / "out" / "model.onnx").read_bytes()


class Branching(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.mean() > 0 else x * 3


class Leaking(torch.nn.Module):
    def forward(self, x):
        return x * float(x.detach().numpy().max())


def test_a_decision_by_data_is_never_traced(tmp_path, monkeypatch):
    with pytest.raises(UnsupportedError, match="data-dependent") as caught:
        captured(named(Branching(), torch.ones(1, 3)), tmp_path / "out", monkeypatch)
    assert "torch.where" in caught.value.remedy


def test_a_constant_that_a_trace_took_from_the_data_is_found(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"no export computes what the model does.*differs from torch"):
        captured(named(Leaking(), torch.rand(1, 3) + 1), tmp_path / "out", monkeypatch)


class Noisy(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.dropout(x)


class Failing(torch.nn.Module):
    def forward(self, x):
        raise ValueError(f"not {x.shape[0]} of them")


def test_a_model_that_is_random_or_fails_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="differs from one run to the next"):
        captured(named(Noisy(), torch.ones(1, 30)), tmp_path / "out", monkeypatch)
    with pytest.raises(InputError, match="batch 2: ValueError: not 2 of them"):
        captured(named(Failing(), torch.ones(1, 3)), tmp_path / "out", monkeypatch)


class OneByOne(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(3, 2)

    def forward(self, x):
        if x.shape[0] != 1:
            raise ValueError("one at a time")
        return self.line(x)


def test_a_model_of_one_sample_is_exported_as_one_and_told(tmp_path, monkeypatch):
    heard = []
    facts = captured(named(OneByOne(), torch.ones(1, 3)), tmp_path / "out", monkeypatch, heard)
    assert facts["graphs"]["model.onnx"]["inputs"][0]["shape"] == (1, 3)
    assert "batch-fixed" in rules(facts)
    assert [event.finding.rule for event in heard if hasattr(event, "finding")] == rules(facts)


class Odd(torch.nn.Module):
    """Returns its input, one tensor twice, a constant and integers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("constant", torch.arange(3.0))

    def forward(self, x, n):
        y = x + self.constant
        return {"x": x, "y": y, "again": y, "constant": self.constant, "most": (y.argmax(1) + n).int(), "flag": n > 0}


def test_odd_outputs_keep_their_names(tmp_path, monkeypatch):
    net = named(Odd(), torch.rand(1, 3), torch.ones(1, dtype=torch.int64))
    facts = captured(net, tmp_path / "out", monkeypatch)
    outputs = facts["graphs"]["model.onnx"]["outputs"]
    assert [(spec["name"], spec["dtype"], list(spec["shape"])) for spec in outputs] == [
        ("output_x", "float32", ["batch", 3]),
        ("y", "float32", ["batch", 3]),
        ("again", "float32", ["batch", 3]),
        ("constant", "float32", [3]),
        ("most", "int32", ["batch"]),
        ("flag", "bool", ["batch"]),
    ]
    x = np.array([[1, 5, 2], [0, 0, 9]], np.float32)
    found = run(tmp_path / "out" / "model.onnx", x=x, n=np.array([1, -4]))
    assert np.array_equal(found["output_x"], x)
    assert found["most"].tolist() == [2, -2]
    assert found["flag"].tolist() == [True, False]


def test_fixed_shapes_are_fixed(tmp_path, monkeypatch):
    facts = captured(named(g15(), torch.zeros(4, 3, 8, 8)), tmp_path / "out", monkeypatch, dynamic=False)
    assert facts["graphs"]["model.onnx"]["inputs"][0]["shape"] == (1, 3, 8, 8)
    assert facts["graphs"]["model.onnx"]["outputs"][0]["shape"] == (1, 5)
    assert not rules(facts)
    long = named(torch.nn.ReLU(), torch.zeros(1, 3), dynamic_axes={"input": {1: "length"}})
    with pytest.raises(UsageError, match="axis 1"):
        captured(long, tmp_path / "out", monkeypatch, dynamic=False)


def test_large_weights_go_beside_the_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(capturing.graph, "EXTERNAL_BYTES", 100)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.onnx.data").write_bytes(b"left by an attempt that failed")
    captured(named(g15(), torch.zeros(1, 3, 8, 8)), tmp_path / "out", monkeypatch)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.onnx", "model.onnx.data"}
    assert (tmp_path / "out" / "model.onnx").stat().st_size < 2000
    reference = np.load(CASES / "G15_bn_training_mode" / "ref.npz")
    found = run(tmp_path / "out" / "model.onnx", input=reference["x"])["output"]
    assert np.abs(found - reference["y"]).max() < 1e-4


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    folder = saved(bert(), tmp_path_factory.mktemp("bert") / "m")
    intake_torch(str(folder), folder.parent / "artifact")
    return folder.parent / "artifact"


@pytest.mark.slow
def test_a_language_model_has_its_axes_and_one_embedding(language, tmp_path):
    (tmp_path / "out").mkdir()
    arguments = {"folder": str(language), "out": str(tmp_path / "out"), "opset": 18, "dynamic": True}
    facts = capturing.capture(
        {**arguments, "shapes": {}, "dtypes": {}, "tolerance": 1e-4, "threads": 1}, lambda _e: None
    )
    made = facts["capture"]["model.onnx"]
    assert made["path"] == "dynamo"
    assert {check["batch"] for check in made["checked"]} == {1, 2, 3}
    assert len({check["sequence"] for check in made["checked"]}) == 3
    assert max(made["parity"].values()) < 1e-5
    graph = facts["graphs"]["model.onnx"]
    assert [(i["name"], list(i["shape"])) for i in graph["inputs"]] == [
        ("input_ids", ["batch", "sequence"]),
        ("attention_mask", ["batch", "sequence"]),
        ("token_type_ids", ["batch", "sequence"]),
    ]
    assert [(i["name"], list(i["shape"])) for i in graph["outputs"]] == [("logits", ["batch", 3])]
    assert facts["task"] == "text-classification"
    canonical_json(facts)
    model = onnx.load(tmp_path / "out" / "model.onnx")
    assert not [node.op_type for node in model.graph.node if node.op_type == "IsNaN"], "eager attention has none"
    assert sum(list(init.dims) == [TEXT["vocab_size"], TEXT["hidden_size"]] for init in model.graph.initializer) == 1


@pytest.mark.slow
def test_the_exporter_of_transformers_steps_in_with_the_same_names(language, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no luck")

    monkeypatch.setattr(export, "_dynamo", broken)
    (tmp_path / "out").mkdir()
    arguments = {"folder": str(language), "out": str(tmp_path / "out"), "opset": 18, "dynamic": True}
    facts = capturing.capture(
        {**arguments, "shapes": {}, "dtypes": {}, "tolerance": 1e-4, "threads": 1}, lambda _e: None
    )
    assert facts["capture"]["model.onnx"]["path"] == "transformers"
    assert [list(spec["shape"]) for spec in facts["graphs"]["model.onnx"]["inputs"]] == [["batch", "sequence"]] * 3
    assert [spec["name"] for spec in facts["graphs"]["model.onnx"]["outputs"]] == ["logits"]
    json.dumps(facts)
