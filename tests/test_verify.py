import json
import os
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgekit import jobs, verify
from edgekit.errors import InputError, IntegrityError, TargetError
from edgekit.payload import GoldenSamples
from edgekit.signing import generate_key
from edgekit.target import Bundle
from edgekit.verify import verify_package
from packages import feeds, outputs, save_model, tiny_package


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    generate_key(folder / "key")
    return folder


@pytest.fixture(scope="module")
def signed(tmp_path_factory, keys):
    return tiny_package(tmp_path_factory.mktemp("signed"), key=keys / "key")


def test_a_whole_package(signed, keys):
    report = verify_package(signed.path, key=keys / "key.pub")
    assert report.status == "pass"
    told = report.to_dict()
    assert told["signature"]["status"] == "trusted"
    assert told["golden"][0]["status"] == "pass"
    assert told["payload"] == signed.seal.payload
    json.dumps(told)
    rows = dict(report.rows())
    assert rows["signature"].startswith("signed by the key given")
    assert "3 samples" in rows["golden, default"]


def test_what_is_not_proven_is_said(tmp_path, signed):
    told = dict(verify_package(signed.path, golden=False).rows())
    assert "not held against a key of yours" in told["signature"]
    assert not [name for name in told if name.startswith("golden")]
    plain = tiny_package(tmp_path, golden=None)
    report = verify_package(plain.path)
    assert report.status == "unproven"
    assert dict(report.rows())["signature"].startswith("unsigned")
    assert report.to_dict()["signature"] == {"status": "unsigned", "key_id": None}


def test_a_model_without_golden_outputs_is_not_proven(tmp_path):
    package = tiny_package(tmp_path, golden=GoldenSamples(inputs=feeds(), outputs=None))
    report = verify_package(package.path)
    assert report.status == "unproven"
    assert "something else each time" in dict(report.rows())["golden, default"]


@pytest.mark.parametrize("known", [False, True])
def test_other_runtimes_need_their_device(tmp_path, known):
    save_model(tmp_path / "compiled" / "model.onnx")
    package = tiny_package(
        tmp_path,
        compiled=Bundle(folder=tmp_path / "compiled", facts={"runtime": "tensorrt", "model": "model.onnx"}),
        golden=GoldenSamples(inputs=feeds(), outputs=outputs(feeds()) if known else None),
    )
    report = verify_package(package.path)
    assert report.status == "unproven"
    assert report.golden[0].text.startswith("needs device")


def test_a_model_that_gives_other_outputs(tmp_path):
    wrong = outputs(feeds())
    wrong[1]["y"] = wrong[1]["y"] + 0.1
    package = tiny_package(tmp_path, golden=GoldenSamples(inputs=feeds(), outputs=wrong))
    with pytest.raises(IntegrityError, match=r"golden outputs: output 'y': largest error 0\.1") as caught:
        verify_package(package.path)
    assert "onnxruntime" in caught.value.remedy
    assert verify_package(package.path, golden=False).status == "pass"


def test_a_model_that_is_none(tmp_path):
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "model.onnx").write_bytes(b"no model")
    package = tiny_package(tmp_path)
    with pytest.raises(IntegrityError, match=r"INVALID_PROTOBUF|Protobuf|parsing"):
        verify_package(package.path)


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname"])
def test_a_model_that_reaches_out_of_its_folder(tmp_path, location):
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 3], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "outside",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [weight],
    )
    (tmp_path / "compiled").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "compiled" / "model.onnx").write_bytes(model.SerializeToString())
    package = tiny_package(tmp_path)
    with pytest.raises(IntegrityError, match="External data path"):
        verify_package(package.path)


def test_the_runner_in_the_package_is_never_run(tmp_path, monkeypatch):
    evil = tmp_path / "device"
    evil.mkdir()
    marker = tmp_path / "owned"
    for name in ("runner.py", "numpy.py", "json.py"):
        (evil / name).write_text(f"open({str(marker)!r}, 'w')\nraise SystemExit(0)\n")
    with monkeypatch.context() as patch:
        patch.setattr("edgekit.payload.runner_files", lambda: sorted(evil.iterdir()))
        package = tiny_package(tmp_path)
    assert {"runner/numpy.py", "runner/runner.py"} <= {file.name for file in package.manifest.files}
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", *filter(None, sys.path)]))  # "" means the working folder
    assert verify_package(package.path).status == "pass"
    assert not marker.exists()


def test_nothing_runs_before_hashes_and_signature_hold(tmp_path, signed, monkeypatch):
    def never(*_args, **_kwargs):
        raise AssertionError("ran")

    monkeypatch.setattr(verify, "run_job", never)
    generate_key(tmp_path / "other")
    damaged = tmp_path / "damaged.edgekit"
    content = bytearray(signed.path.read_bytes())
    content[content.index(b"License of the model")] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(IntegrityError):
        verify_package(damaged)
    with pytest.raises(IntegrityError, match="another key"):
        verify_package(signed.path, key=tmp_path / "other.pub")


def test_golden_files_that_would_fill_the_memory(tmp_path, monkeypatch):
    def bomb(_feeds):
        header = np.lib.format.header_data_from_array_1_0(np.zeros(1, np.float32))
        path = tmp_path / "bomb.npz"
        with zipfile.ZipFile(path, "w") as archive, archive.open("0:x.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (1 << 40,)})
        return path.read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr("edgekit.payload.encode_feeds", bomb)
        package = tiny_package(tmp_path)
    with pytest.raises(InputError, match="claims"):
        verify_package(package.path)


def stand_in(tmp_path, monkeypatch, text):
    (tmp_path / "runner.py").write_text(text)
    monkeypatch.setattr(jobs, "DEVICE", tmp_path)


def test_a_runner_that_dies(tmp_path, signed, monkeypatch):
    stand_in(tmp_path, monkeypatch, "import os, sys; print('so long', file=sys.stderr, flush=True); os.abort()")
    with pytest.raises(IntegrityError, match=r"SIGABRT.*so long"):
        verify_package(signed.path)


@pytest.mark.parametrize("kind", ["missing", "memory"])
def test_a_machine_that_lacks_something(tmp_path, signed, monkeypatch, kind):
    error = {"error": {"kind": kind, "text": "no runtime", "remedy": ""}}
    stand_in(tmp_path, monkeypatch, f"import json; json.dump({error!r}, open('result.json', 'w')); raise SystemExit(1)")
    with pytest.raises(TargetError, match="no runtime") as caught:
        verify_package(signed.path)
    assert caught.value.remedy


def test_a_runner_that_hangs(tmp_path, signed, monkeypatch):
    stand_in(tmp_path, monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(verify, "_TIMEOUT", 0.2)
    with pytest.raises(TargetError, match="did not finish"):
        verify_package(signed.path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_exit_status_6(tmp_path_factory, signed, data):
    content = bytearray(signed.path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.write_bytes(content)
    with pytest.raises(IntegrityError) as caught:
        verify_package(path)
    assert caught.value.exit_status == 6
