"""A model of 2.1 GiB with external data through the whole build: within 7 GiB of memory, in float32 and in int8."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from command import Ran, sound
from edgekit.verify import verify_package

GIB = 1 << 30
SIZE, LAYERS = 4096, 34
DISK = 14 * GIB
"""The model, what the store holds of both builds, and the packages."""


def matrices(folder: Path) -> Path:
    """Write a chain of products with weights of their own, none of them zero, in a file beside the model."""
    rng = np.random.default_rng(0)
    nodes, tensors, last = [], [], "x"
    with (folder / "w.bin").open("wb") as file:
        for layer in range(LAYERS):
            tensor = TensorProto(name=f"W{layer}", data_type=TensorProto.FLOAT, dims=[SIZE, SIZE])
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in (("location", "w.bin"), ("offset", file.tell()), ("length", 4 * SIZE * SIZE)):
                entry = tensor.external_data.add()
                entry.key, entry.value = key, str(text)
            tensors.append(tensor)
            (rng.standard_normal((SIZE, SIZE), np.float32) * np.float32((2 / SIZE) ** 0.5)).tofile(file)
            nodes.append(helper.make_node("MatMul", [last, f"W{layer}"], [f"h{layer}"], name=f"product{layer}"))
            last = "y" if layer == LAYERS - 1 else f"r{layer}"
            nodes.append(helper.make_node("Relu", [f"h{layer}"], [last], name=f"relu{layer}"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIZE]) for name in "xy")
    graph = helper.make_graph(nodes, "matrices", [x], [y], tensors)
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(folder / "data.npz", x=rng.standard_normal((24, SIZE), np.float32))
    return path


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_more_than_two_gigabytes_build_within_seven_of_memory(edgekit, tmp_path):
    if shutil.disk_usage(tmp_path).free < DISK:
        pytest.skip(f"needs {DISK // GIB} GiB of disk space")
    model = matrices(tmp_path)
    home = tmp_path / "home"
    for recipe, share in (("fp32", 1.0), ("int8", 0.26)):
        words = ["build", model, "--profile", "host", "--recipe", recipe, "--data", tmp_path / "data.npz"]
        with (tmp_path / "out.json").open("w+") as out, (tmp_path / "err").open("w+") as err:
            child = subprocess.Popen(
                edgekit.argv(*words, "--out", tmp_path / recipe, "--json"),
                env=edgekit.environment(home),
                stdout=out,
                stderr=err,
            )
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            told = [(file.seek(0), file.read())[1] for file in (out, err)]
        ran = sound(Ran(child.returncode, *told))
        assert ran.status == 0, ran.err
        assert usage.ru_maxrss * 1024 < 7 * GIB
        assert ran.check("size")["value"] < share * 4.001 * LAYERS * SIZE * SIZE
        assert ran.check("agreement")["value"] > 0.8
        package = Path(ran.json["package"])
        verify_package(package)
        package.unlink()
