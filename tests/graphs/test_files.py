import json
import os
import shutil
import stat

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgekit.artifact import sha256_file
from edgekit.errors import InputError, UnsupportedError
from edgekit.graphs.files import read_onnx
from graph_models import CASES, FLOAT, INT64, LIGHT, floats, model, node, rules, take_in, value


def expected(case):
    return json.loads((CASES / case / "expect.json").read_text())


def outputs(path, feed):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)


def linear(**options):
    return model(
        [node("MatMul", ["x", "W"], ["y"], name="mm")],
        [value("x", ["b", 4])],
        [value("y", ["b", 3])],
        {"W": floats(4, 3)},
        **options,
    )


# versions


def test_g01_an_opset_that_is_too_new_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(InputError) as error:
        take_in(CASES / "G01_ir_too_new" / "opset99.onnx", tmp_path, child=True)
    for word in expected("G01_ir_too_new")["error_mentions"]:
        assert word in str(error.value)
    assert str(onnx.defs.onnx_opset_version()) in str(error.value)


def test_g01_an_ir_version_that_is_only_a_number_too_high_is_lowered(tmp_path):
    facts, out = take_in(CASES / "G01_ir_too_new" / "ir99.onnx", tmp_path, child=True)
    (finding,) = facts["findings"]
    assert finding["rule"] == "ir-lowered"
    for word in expected("G01_ir_too_new")["error_mentions"]:
        assert word in finding["text"]
    assert onnx.load(out / "model.onnx").ir_version == facts["ir"] <= onnx.IR_VERSION


def test_an_ir_version_that_brings_unknown_fields_is_refused(tmp_path):
    data = (CASES / "G01_ir_too_new" / "ir99.onnx").read_bytes() + b"\xfa\x7d\x03abc"  # field 2015, of the future
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(InputError, match="maximum supported"):
        take_in(tmp_path / "m.onnx", tmp_path)


def test_an_old_opset_is_brought_up_and_gives_the_same(tmp_path):
    old = model(
        [
            node("Upsample", ["x", "scales"], ["u"], mode="nearest"),
            node("Softmax", ["u"], ["y"], axis=1),
        ],
        [value("x", [1, 3, 4, 4])],
        [value("y", [1, 3, 8, 8])],
        {"scales": np.array([1, 1, 2, 2], np.float32)},
        opset=9,
        ir=4,
    )
    facts, out = take_in(old, tmp_path)
    assert facts["opset"] == 13
    assert rules(facts) == ["opset-raised"]
    feed = {"x": floats(1, 3, 4, 4)}
    before, after = outputs(tmp_path / "given.onnx", feed), outputs(out / "model.onnx", feed)
    np.testing.assert_allclose(after[0], before[0], rtol=1e-6, atol=1e-7)


def test_an_old_opset_whose_conversion_cannot_be_checked_stays_and_says_so(tmp_path):
    picky = model(
        [node("Reshape", ["x", "shape"], ["y"])],
        [value("x", [1, "length"])],
        [value("y", [7, 11])],
        {"shape": np.array([7, 11], np.int64)},
        opset=11,
    )
    facts, out = take_in(picky, tmp_path)
    assert facts["opset"] == 11
    assert rules(facts) == ["old-opset"]
    assert (out / "model.onnx").exists()


def test_operators_of_onnxruntime_are_taken_with_a_warning(tmp_path):
    contrib = model(
        [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft", name="g")],
        [value("x", ["b", 4])],
        [value("y", ["b", 4])],
        domains=[("com.microsoft", 1)],
    )
    facts, _ = take_in(contrib, tmp_path)
    (finding,) = facts["findings"]
    assert (finding["rule"], finding["node"]) == ("non-standard-operator", "g")
    assert "Gelu" in finding["text"]


# graphs in odd forms


def test_g02_initializers_among_the_inputs_are_no_inputs(tmp_path):
    case = CASES / "G02_initializer_as_input"
    facts, out = take_in(case / "model.onnx", tmp_path, child=True)
    names = [spec["name"] for spec in facts["graphs"]["model.onnx"]["inputs"]]
    assert names == expected("G02_initializer_as_input")["inputs"]
    feed = dict(np.load(case / "calib" / "000.npz"))
    np.testing.assert_allclose(
        outputs(out / "model.onnx", feed)[0], outputs(case / "model.onnx", feed)[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("file", ["model.onnx", "dup.onnx"])
def test_g03_every_node_gets_a_name_of_its_own(tmp_path, file):
    facts, out = take_in(CASES / "G03_no_node_names_dup_names" / file, tmp_path, child=True)
    names = [item.name for item in onnx.load(out / "model.onnx").graph.node]
    assert len(set(names)) == len(names)
    assert all(names)
    if file == "dup.onnx":
        assert facts["renamed_nodes"] == {"mm_1": "mm", "mm_2": "mm"}
        assert names[0] == "mm"
    else:
        assert names == ["MatMul_0", "Relu_0", "MatMul_1"]
        assert "renamed_nodes" not in facts


def test_g12_left_out_inputs_work(tmp_path):
    case = CASES / "G12_empty_string_optional_input"
    _, out = take_in(case / "model.onnx", tmp_path)
    feed = dict(np.load(case / "calib" / "000.npz"))
    np.testing.assert_array_equal(outputs(out / "model.onnx", feed)[0], outputs(case / "model.onnx", feed)[0])


def test_nodes_out_of_order_are_sorted_and_a_cycle_is_refused(tmp_path):
    twisted = linear()
    del twisted.graph.node[:]
    twisted.graph.node.extend([node("Relu", ["h"], ["y"]), node("MatMul", ["x", "W"], ["h"], name="mm")])
    _, out = take_in(twisted, tmp_path / "a")
    assert [item.op_type for item in onnx.load(out / "model.onnx").graph.node] == ["MatMul", "Relu"]
    twisted.graph.node[1].input[0] = "y"
    with pytest.raises(InputError, match="cycle"):
        take_in(twisted, tmp_path / "b")


def test_a_tensor_made_twice_is_refused(tmp_path):
    double = linear()
    double.graph.node.append(node("MatMul", ["x", "W"], ["y"], name="again"))
    with pytest.raises(InputError, match="two nodes make the tensor 'y'"):
        take_in(double, tmp_path)


def test_sparse_weights_become_dense(tmp_path):
    sparse = linear()
    dense = numpy_helper.to_array(sparse.graph.initializer[0]).copy()
    dense[dense < 0.5] = 0
    at = np.flatnonzero(dense)
    del sparse.graph.initializer[:]
    values = numpy_helper.from_array(dense.reshape(-1)[at], "W")
    indices = numpy_helper.from_array(at.astype(np.int64), "W_at")
    sparse.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 3]))
    facts, out = take_in(sparse, tmp_path / "a")
    assert rules(facts) == ["sparse-initializer"]
    feed = {"x": floats(2, 4)}
    np.testing.assert_allclose(outputs(out / "model.onnx", feed)[0], feed["x"] @ dense, rtol=1e-5, atol=1e-6)
    sparse.graph.sparse_initializer[0].indices.raw_data = (at + 100).astype(np.int64).tobytes()
    with pytest.raises(InputError, match="sparse weight is damaged"):
        take_in(sparse, tmp_path / "b")


def test_local_functions_are_inlined(tmp_path):
    body = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    calls = model(
        [
            helper.make_node("Twice", ["x"], ["h"], domain="mine"),
            helper.make_node("Twice", ["h"], ["y"], domain="mine"),
        ],
        [value("x", ["b", 4])],
        [value("y", ["b", 4])],
        domains=[("mine", 1)],
        functions=[body],
    )
    _, out = take_in(calls, tmp_path)
    made = onnx.load(out / "model.onnx")
    assert [item.op_type for item in made.graph.node] == ["Add", "Add"]
    assert not made.functions
    np.testing.assert_array_equal(outputs(out / "model.onnx", {"x": floats(2, 4)})[0], 4 * floats(2, 4))


def test_axes_are_fixed_or_named(tmp_path):
    vague = linear()
    dims = vague.graph.input[0].type.tensor_type.shape.dim
    dims[0].Clear()
    dims[1].dim_param = "4"
    vague.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    facts, _ = take_in(vague, tmp_path)
    signature = facts["graphs"]["model.onnx"]
    assert signature["inputs"][0]["shape"] == ["x_dim0", 4]
    assert signature["outputs"][0]["shape"] == ["y_dim0", 3]


def test_axes_of_unknown_size_are_not_one_axis(tmp_path):
    made = model([node("Relu", ["x"], ["y"])], [value("x", ["?", 3, "?", "?"])], [value("y", ["?", 3, "?", "?"])])
    facts, _ = take_in(made, tmp_path)
    assert facts["graphs"]["model.onnx"]["inputs"][0]["shape"] == ["x_dim0", 3, "x_dim2", "x_dim3"]


def test_an_output_without_rank_gets_the_inferred_one(tmp_path):
    vague = linear()
    vague.graph.output[0].type.tensor_type.ClearField("shape")
    facts, _ = take_in(vague, tmp_path)
    assert facts["graphs"]["model.onnx"]["outputs"][0]["shape"] == ["b", 3]


def test_an_input_without_rank_is_refused(tmp_path):
    vague = linear()
    vague.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(InputError, match="no declared shape"):
        take_in(vague, tmp_path)


def test_control_flow_is_kept(tmp_path):
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [f"{op}_out"])], op, [], [value(f"{op}_out", ["b", 4])])
        for op in ("Relu", "Neg")
    ]
    flow = model(
        [helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])],
        [value("c", [], TensorProto.BOOL), value("x", ["b", 4])],
        [value("y", ["b", 4])],
    )
    _, out = take_in(flow, tmp_path)
    x = floats(2, 4)
    np.testing.assert_array_equal(outputs(out / "model.onnx", {"x": x, "c": np.array(False)})[0], -x)


@pytest.mark.parametrize("file", sorted(path.name for path in LIGHT.glob("light_*.onnx"))[2:5])
def test_models_of_2017_come_in(tmp_path, file):
    facts, _ = take_in(LIGHT / file, tmp_path)
    assert facts["opset"] == 13
    assert len(facts["graphs"]["model.onnx"]["inputs"]) == 1
    assert rules(facts) == ["initializer-input", "opset-raised"]


# what is no model, or not one for us


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"hello, this is no model\n", "is text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        (b"PK\x03\x04" + bytes(60), "zip archive"),
        (b"\x89HDF\r\n" + bytes(60), "HDF5"),
        (b"\x08\x08", "not an ONNX model"),
        (bytes(1000), "not an ONNX model"),
        (np.random.default_rng(0).bytes(64), "not an ONNX model"),
    ],
)
def test_other_files_are_refused(tmp_path, data, words):
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(InputError, match=words):
        take_in(tmp_path / "m.onnx", tmp_path, child=not data)


def test_a_directory_a_pipe_and_nothing_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    for path, words in ((tmp_path, "directory"), (tmp_path / "pipe.onnx", "regular"), (tmp_path / "none", "No such")):
        with pytest.raises(InputError, match=words):
            read_onnx(path, tmp_path)


def test_a_truncated_model_is_refused(tmp_path):
    data = linear().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data[: len(data) - 20])
    with pytest.raises(InputError):
        take_in(tmp_path / "m.onnx", tmp_path)


@pytest.mark.parametrize("kind", ["string", "sequence", "optional"])
def test_inputs_that_are_no_tensors_are_refused_by_name(tmp_path, kind):
    odd = linear()
    extra = odd.graph.input.add()
    if kind == "string":
        extra.CopyFrom(value("words", ["b"], TensorProto.STRING))
    elif kind == "sequence":
        extra.CopyFrom(helper.make_tensor_sequence_value_info("words", FLOAT, None))
    else:
        inner = helper.make_tensor_type_proto(FLOAT, [1])
        extra.CopyFrom(helper.make_value_info("words", helper.make_optional_type_proto(inner)))
    with pytest.raises(UnsupportedError, match=kind) as error:
        take_in(odd, tmp_path)
    assert "input 'words'" in error.value.where


def test_a_custom_operator_is_refused_by_name(tmp_path):
    custom = model(
        [helper.make_node("MyGelu", ["x"], ["y"], domain="acme.ops", name="custom")],
        [value("x", [1])],
        [value("y", [1])],
        domains=[("acme.ops", 1)],
    )
    with pytest.raises(UnsupportedError, match=r"MyGelu.*acme\.ops") as error:
        take_in(custom, tmp_path)
    assert "node 'custom'" in error.value.where


def test_an_operator_that_does_not_exist_is_refused(tmp_path):
    wrong = model([node("Nonsense", ["x"], ["y"])], [value("x", [1])], [value("y", [1])])
    with pytest.raises((InputError, UnsupportedError), match="Nonsense"):
        take_in(wrong, tmp_path)


def test_a_type_without_kernel_is_named(tmp_path):
    weight = helper.make_tensor("W", TensorProto.BFLOAT16, [2, 2], [1.0, 2.0, 3.0, 4.0])
    brain = model(
        [node("MatMul", ["x", "W"], ["y"], name="mm")],
        [value("x", [1, 2], TensorProto.BFLOAT16)],
        [value("y", [1, 2], TensorProto.BFLOAT16)],
    )
    brain.graph.initializer.append(weight)
    with pytest.raises(UnsupportedError, match="bfloat16"):
        take_in(brain, tmp_path)


# facts


def test_an_opset_older_than_the_kernels_is_named(tmp_path):
    nodes = [node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)]
    made = model(nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], {"b": floats(4)}, opset=6)
    with pytest.raises(UnsupportedError, match=r"opset 6 is older than onnxruntime has kernels for \(7\)") as caught:
        take_in(made, tmp_path)
    assert "version_converter" in caught.value.remedy


def test_the_license_in_the_metadata_is_a_fact(tmp_path):
    licensed = linear()
    helper.set_model_props(licensed, {"License": "Apache-2.0", "author": "someone"})
    facts, _ = take_in(licensed, tmp_path)
    assert facts["license"] == "Apache-2.0"


def qdq():
    return model(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        [value("x", ["b", 4])],
        [value("y", ["b", 4])],
        {"s": np.float32(0.1), "z": np.int8(0)},
    )


def integer_weights_behind_cast():
    weight = np.random.default_rng(0).integers(-127, 127, (4, 3)).astype(np.int8)
    return model(
        [
            node("Cast", ["W8"], ["Wf"], to=FLOAT),
            node("Mul", ["Wf", "scale"], ["W"]),
            node("MatMul", ["x", "W"], ["y"]),
        ],
        [value("x", ["b", 4])],
        [value("y", ["b", 3])],
        {"W8": weight, "scale": np.float32(0.01)},
    )


@pytest.mark.parametrize("make", [qdq, integer_weights_behind_cast])
def test_quantized_models_are_recognized(tmp_path, make):
    facts, _ = take_in(make(), tmp_path)
    assert facts["quantized"] is True
    assert "already-quantized" in rules(facts)


def test_float_models_are_not_taken_for_quantized(tmp_path):
    lookup = model(
        [node("Gather", ["E", "ids"], ["y"])],
        [value("ids", ["b"], INT64)],
        [value("y", ["b", 3])],
        {"E": floats(10, 3), "flags": np.zeros((2, 2), np.int8)},
    )
    assert take_in(lookup, tmp_path)[0]["quantized"] is False


def test_training_mode_is_reported(tmp_path):
    batch = model(
        [node("BatchNormalization", ["x", "g", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1, name="bn")],
        [value("x", ["n", 2, 3, 3])],
        [value("y", ["n", 2, 3, 3])],
        {"g": np.ones(2, np.float32), "b": floats(2), "m": floats(2), "v": np.ones(2, np.float32)},
    )
    facts, _ = take_in(batch, tmp_path)
    assert "training-mode" in rules(facts)


# external data


def with_external(folder, *, name="netz é.onnx", location="wägen.bin"):
    folder.mkdir(parents=True, exist_ok=True)
    big = model(
        [node("MatMul", ["x", "W"], ["y"], name="mm")],
        [value("x", ["b", 16])],
        [value("y", ["b", 16])],
        {"W": floats(16, 16)},
    )
    onnx.save(big, folder / name, save_as_external_data=True, location=location, size_threshold=0)
    return folder / name


def refer(path, **entries):
    """Rewrite the external data entry of the only weight."""
    damaged = onnx.load(path, load_external_data=False)
    tensor = damaged.graph.initializer[0]
    found = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, text in found.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    path.write_bytes(damaged.SerializeToString())
    return path


@pytest.mark.parametrize("name", ["Mödel 模型", "a\nb", "-dash", "ro", "plain"])
def test_g07_odd_paths_work_and_the_source_stays_as_it_was(tmp_path, name):
    path = with_external(tmp_path / name)
    folder = path.parent
    before = {item.name: (sha256_file(item), item.stat().st_mtime_ns) for item in folder.iterdir()}
    if name == "ro":
        for item in folder.iterdir():
            item.chmod(0o444)
        folder.chmod(0o555)
    facts, out = take_in(path, tmp_path / "work", child=True)
    assert facts["external"] == ["wägen.bin"]
    assert {item.name: (sha256_file(item), item.stat().st_mtime_ns) for item in folder.iterdir()} == before
    assert [item.name for item in out.iterdir()] == ["model.onnx"], "small weights are taken into the one file"
    feed = {"x": floats(2, 16)}
    np.testing.assert_array_equal(outputs(out / "model.onnx", feed)[0], outputs(path, feed)[0])
    folder.chmod(0o755)


def test_a_path_that_is_no_text_works(tmp_path):
    folder = tmp_path / os.fsdecode(b"bad\xff")
    with_external(tmp_path / "model").parent.rename(folder)
    path = folder / "netz é.onnx"
    facts, _ = take_in(path, tmp_path / "work", child=True)
    assert facts["external"]
    (folder / "w\udcfe.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="is empty") as error:
        read_onnx(folder / "w\udcfe.onnx", tmp_path)
    error.value.where.encode()


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "../secret.bin"}, "outside the model's folder"),
        ({"location": "sub/../../secret.bin"}, "outside the model's folder"),
        ({"location": "/etc/passwd"}, "outside the model's folder"),
        ({"location": "link.bin"}, "link that leaves"),
        ({"location": "folder/secret.bin"}, "link that leaves"),
        ({"location": "missing.bin"}, "'missing.bin' is missing"),
        ({"location": ""}, "without a location"),
        ({"location": "pipe.bin"}, "not a regular file"),
        ({"offset": "1"}, r"bytes 1 to 1025 are needed"),
        ({"offset": "99999999999"}, "are needed"),
        ({"offset": "-4"}, "not a byte count"),
        ({"offset": "9" * 30}, "not a byte count"),
        ({"length": "8"}, "8 bytes where 1024 are needed"),
        ({"length": "1e3"}, "not a byte count"),
    ],
)
def test_external_data_is_never_trusted(tmp_path, entries, words):
    path = with_external(tmp_path / "model")
    (tmp_path / "secret.bin").write_bytes(bytes(1024))
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    (path.parent / "folder").symlink_to(tmp_path)
    (path.parent / "sub").mkdir()
    os.mkfifo(path.parent / "pipe.bin")
    with pytest.raises(InputError, match=words) as error:
        take_in(
            refer(path, **entries),
            tmp_path / "work",
            child=entries.get("location") in {"../secret.bin", "link.bin", "pipe.bin"},
        )
    assert "tensor 'W'" in error.value.where
    assert error.value.remedy


def test_a_link_within_the_folder_is_fine(tmp_path):
    path = with_external(tmp_path / "model")
    shutil.move(path.parent / "wägen.bin", path.parent / "real.bin")
    (path.parent / "wägen.bin").symlink_to("real.bin")
    facts, _ = take_in(path, tmp_path / "work")
    assert facts["external"] == ["wägen.bin"]


def test_large_weights_stay_in_a_file_of_their_own(tmp_path, monkeypatch):
    from edgekit.graphs import saving

    path = with_external(tmp_path / "model")
    monkeypatch.setattr(saving, "EXTERNAL_THRESHOLD", 512)
    out = tmp_path / "out"
    out.mkdir()
    saving.save_model(saving.load_model(path), out / "model.onnx", source=path.parent)
    assert (out / "model.onnx.data").stat().st_size == 1024
    feed = {"x": floats(2, 16)}
    np.testing.assert_array_equal(outputs(out / "model.onnx", feed)[0], outputs(path, feed)[0])


def test_dims_that_do_not_fit_the_values_are_refused(tmp_path):
    for dims in ([4, 4], [1 << 40, 1 << 20], [-4, 3]):
        wrong = linear()
        del wrong.graph.initializer[0].dims[:]
        wrong.graph.initializer[0].dims.extend(dims)
        with pytest.raises(InputError, match="dims") as error:
            take_in(wrong, tmp_path / str(dims[0]))
        assert "tensor 'W'" in error.value.where


def test_what_is_written_is_the_same_every_time_and_private_to_nobody(tmp_path):
    first = take_in(linear(), tmp_path / "a")[1] / "model.onnx"
    second = take_in(linear(), tmp_path / "b")[1] / "model.onnx"
    assert first.read_bytes() == second.read_bytes()
    assert stat.S_ISREG(first.lstat().st_mode)


def test_names_that_are_no_text_are_refused(tmp_path):
    data = linear().SerializeToString().replace(b"\x02mm", b"\x02m\xff")
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(InputError, match="not UTF-8") as error:
        take_in(tmp_path / "m.onnx", tmp_path)
    assert "NodeProto.name" in error.value.where
