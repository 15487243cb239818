"""A `.pt2` is taken apart and put together again: the good ones load the same, the bad ones never reach torch."""

import io
import json
import struct
import zipfile

import pytest

from edgekit.errors import EdgekitError, InputError, UnsupportedError
from edgekit.networks import program
from edgekit.networks.archive import rewrite
from edgekit.networks.capture import capture
from edgekit.networks.rebuild import rebuild

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"


def net():
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3)
            self.norm = torch.nn.BatchNorm2d(4)
            self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x, *, shift):
            return {
                "mean": self.drop(self.norm(self.conv(x)) * self.scale[:, None, None]).mean((2, 3)),
                "sum": x + shift,
            }

    torch.manual_seed(0)
    return Net()


def exported(made=None, **options):
    import torch

    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "shift": {0: batch}}
    inputs = {"shift": torch.randn(4, 1, 1, 1)}
    made = made or net().eval()
    return torch.export.export(made, (torch.randn(4, 3, 8, 8),), inputs, dynamic_shapes=shapes, **options)


def written(path, ep):
    import torch

    torch.export.save(ep, path)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return written(tmp_path_factory.mktemp("pt2") / "net.pt2", exported())


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def put(path, files, top="net", **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in files.items():
            archive.writestr(f"{top}/{name}", data)
    return path


def edited(good, tmp_path, name, change):
    files = members(good)
    value = json.loads(files[name])
    files[name] = json.dumps(change(value) or value).encode()
    return put(tmp_path / "edited.pt2", files)


def refused(path, tmp_path, error=InputError, match=None):
    with pytest.raises(error, match=match) as caught:
        rewrite(path, tmp_path / "out.pt2")
    assert caught.value.remedy
    return caught.value


def test_a_program_is_taken_in_and_runs_the_same(good, tmp_path):
    import torch

    out = tmp_path / "artifact"
    out.mkdir()
    facts = program.intake_program(good, out)
    assert facts["source"]["from"] == "exported-program"
    assert {path.name for path in out.iterdir()} == {"record.json", "program.pt2", "examples.safetensors"}
    assert b"data.pkl" not in b"".join(members(out / "program.pt2").values())
    assert not members(out / "program.pt2")[SAMPLES]
    assert b"stack_trace" not in members(out / "program.pt2")[MODEL]
    original = torch.export.load(good)
    network = rebuild(out)
    assert list(network.examples) == ["x", "shift"]
    assert network.axes == {"x": {0: "batch"}, "shift": {0: "batch"}}
    assert {check["batch"] for check in network.checks} == {4, 2}
    feed = network.feed({"batch": 5})
    wanted = original.module()(feed["x"], shift=feed["shift"])
    found = network.run(feed)
    assert all(torch.equal(found[name], wanted[name]) for name in ("mean", "sum"))


def test_it_exports_with_its_dynamic_axis(good, tmp_path):
    art, out = tmp_path / "artifact", tmp_path / "onnx"
    art.mkdir()
    out.mkdir()
    program.intake_program(good, art)
    facts = capture(arguments(art, out), lambda _event: None)
    assert facts["capture"]["model.onnx"]["path"] == "dynamo"
    assert max(facts["capture"]["model.onnx"]["parity"].values()) < 1e-5
    graph = facts["graphs"]["model.onnx"]
    assert [(i["name"], list(i["shape"])) for i in graph["inputs"]] == [
        ("x", ["batch", 3, 8, 8]),
        ("shift", ["batch", 1, 1, 1]),
    ]
    assert [(i["name"], list(i["shape"])) for i in graph["outputs"]] == [
        ("mean", ["batch", 4]),
        ("sum", ["batch", 3, 8, 8]),
    ]


def arguments(art, out, **options):
    values = {"opset": 18, "dynamic": True, "shapes": {}, "dtypes": {}, "tolerance": 1e-4, "threads": 1}
    return {"folder": str(art), "out": str(out), **values, **options}


def test_equal_programs_give_equal_bytes(good, tmp_path):
    files = members(good)
    other = put(tmp_path / "other.pt2", dict(reversed(files.items())), top="renamed", compression=zipfile.ZIP_DEFLATED)
    rewrite(good, tmp_path / "a.pt2")
    rewrite(other, tmp_path / "b.pt2")
    assert (tmp_path / "a.pt2").read_bytes() == (tmp_path / "b.pt2").read_bytes()


def test_a_program_of_another_device_comes_to_the_cpu(good, tmp_path):
    def move(model):
        return json.loads(json.dumps(model).replace('{"type": "cpu", "index": null}', '{"type": "cuda", "index": 0}'))

    files = members(good)
    for name in (MODEL, WEIGHTS, CONSTANTS):
        files[name] = json.dumps(move(json.loads(files[name]))).encode()
        assert b"cuda" in files[name]
    rewrite(put(tmp_path / "gpu.pt2", files), tmp_path / "out.pt2")
    rewrite(good, tmp_path / "cpu.pt2")
    assert (tmp_path / "out.pt2").read_bytes() == (tmp_path / "cpu.pt2").read_bytes()


def test_shapes_that_run_code_are_refused(good, tmp_path):
    flag = tmp_path / "ran"

    def attack(model):
        text = json.dumps(model)
        evil = f"__import__('pathlib').Path('{flag}').touch() or "
        return json.loads(text.replace('"expr_str": "', f'"expr_str": "{evil}', 1))

    refused(edited(good, tmp_path, MODEL, attack), tmp_path, match="unsafe symbolic shape")
    assert not flag.exists()


def test_operators_that_run_code_are_refused(good, tmp_path):
    def attack(model):
        model["graph_module"]["graph"]["nodes"][0]["target"] = "torch.os.system"

    refused(edited(good, tmp_path, MODEL, attack), tmp_path, match="no tensor operator")


def test_guards_are_left_out(good, tmp_path):
    def attack(model):
        model["guards_code"] = ["__import__('os').system('true')"]

    rewrite(edited(good, tmp_path, MODEL, attack), tmp_path / "out.pt2")
    assert "guards_code" not in json.loads(members(tmp_path / "out.pt2")[MODEL])


@pytest.mark.parametrize("text", ["x'); import os #", 'x"]', "x\\", "f(x)", "x\ny"])
def test_names_that_leave_their_quotes_are_refused(good, tmp_path, text):
    def attack(model):
        model["graph_module"]["signature"]["input_specs"][0]["parameter"]["parameter_name"] = text

    refused(edited(good, tmp_path, MODEL, attack), tmp_path, match="unsafe text")
    refused(edited(good, tmp_path, WEIGHTS, lambda w: {"config": {text: w["config"].popitem()[1]}}), tmp_path)


def test_string_arguments_stay_in_their_quotes(good, tmp_path):
    def attack(text):
        def change(model):
            model["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = {"as_string": text}

        return change

    rewrite(edited(good, tmp_path, MODEL, attack("bhwc,hkc->bhwk")), tmp_path / "out.pt2")
    refused(edited(good, tmp_path, MODEL, attack("' or evil() or '")), tmp_path, match="unsafe text")


@pytest.mark.parametrize("name", [WEIGHTS, CONSTANTS])
def test_pickled_tensors_are_refused(good, tmp_path, name):
    def attack(table):
        next(iter(table["config"].values()))["use_pickle"] = True

    assert "pickle" in refused(edited(good, tmp_path, name, attack), tmp_path).text


@pytest.mark.parametrize("path", ["custom_obj_0", "opaque_obj_0", "../../x", "/etc/passwd", "weight_0/../x"])
def test_custom_objects_and_odd_paths_are_refused(good, tmp_path, path):
    def attack(table):
        next(iter(table["config"].values()))["path_name"] = path

    refused(edited(good, tmp_path, CONSTANTS, attack), tmp_path)


def test_tensors_without_data_are_refused(good, tmp_path):
    files = members(good)
    files["data/weights/weight_0"] = b""
    refused(put(tmp_path / "x.pt2", files), tmp_path, match="no data")
    del files["data/weights/weight_0"]
    refused(put(tmp_path / "x.pt2", files), tmp_path, match="missing from the archive")


def test_compiled_code_and_several_programs_are_not_supported(good, tmp_path):
    files = members(good)
    refused(put(tmp_path / "x.pt2", {**files, "data/aotinductor/model/a.so": b"x"}), tmp_path, UnsupportedError)
    refused(put(tmp_path / "x.pt2", {**files, "models/b.json": b"{}"}), tmp_path, UnsupportedError)


def test_legacy_pickled_weights_are_refused(good, tmp_path):
    files = members(good)
    files["data/weights/model.pt"] = files.pop(WEIGHTS)
    refused(put(tmp_path / "x.pt2", files), tmp_path, match="pickle")
    old = tmp_path / "old.pt2"
    with zipfile.ZipFile(old, "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr("version", "8.8")
    refused(old, tmp_path)


def test_a_member_twice_is_refused(good, tmp_path):
    path = tmp_path / "twice.pt2"
    path.write_bytes(good.read_bytes())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(next(name for name in archive.namelist() if name.endswith(MODEL)), b"{}")
    refused(path, tmp_path, match="twice")


def test_a_decompression_bomb_is_refused(good, tmp_path):
    files = {**members(good), "extra/zeros": bytes(200 << 20)}
    refused(put(tmp_path / "x.pt2", files, compression=zipfile.ZIP_DEFLATED), tmp_path, match="bomb")


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all", struct.pack("<I", 0x04034B50) * 9])
def test_what_is_no_archive_is_refused(tmp_path, data):
    (tmp_path / "x.pt2").write_bytes(data)
    refused(tmp_path / "x.pt2", tmp_path)


def test_a_damaged_archive_is_refused(good, tmp_path):
    data = good.read_bytes()
    for offset in range(0, len(data), max(1, len(data) // 40)):
        for change in (data[:offset], data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :]):
            (tmp_path / "x.pt2").write_bytes(change)
            try:
                rewrite(tmp_path / "x.pt2", tmp_path / "out.pt2")
            except EdgekitError as error:
                assert error.exit_status in (4, 7)  # noqa: PT017 - most damage is refused, some touches nothing read


def test_sample_inputs_that_need_pickle_are_refused(good, tmp_path):
    import torch

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    buffer = io.BytesIO()
    torch.save(((Evil(),), {}), buffer)
    (tmp_path / "samples").write_bytes(rewrite_samples(good, tmp_path, buffer.getvalue()))
    with pytest.raises(InputError, match="sample inputs need pickle"):
        program._samples(exported(), tmp_path / "samples")
    assert not (tmp_path / "ran").exists()


def rewrite_samples(good, tmp_path, data):
    return rewrite(put(tmp_path / "x.pt2", {**members(good), SAMPLES: data}), tmp_path / "out.pt2")


def test_a_program_in_training_mode_is_refused(tmp_path):
    import torch

    with pytest.raises(InputError, match="training mode") as caught:
        program._check_inference(exported(net().train()))
    assert "eval()" in caught.value.remedy

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(1))

        def forward(self, x, *, shift):
            self.n.add_(1)
            return x * self.n + shift

    with pytest.raises(UnsupportedError, match="changes its own buffers"):
        program._check_inference(exported(Counting().eval()).run_decompositions({}))


def test_a_program_without_samples_gets_random_ones(good, tmp_path):
    empty = tmp_path / "none"
    empty.write_bytes(b"")
    tensors, findings = program._samples(exported(), empty)
    assert {name: tuple(value.shape) for name, value in tensors.items()} == {"x": (4, 3, 8, 8), "shift": (4, 1, 1, 1)}
    assert [finding.rule for finding in findings] == ["no-sample-inputs"]
