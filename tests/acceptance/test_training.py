"""Recipes that train, through the command: every round told, a kill resumed, teachers by class name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command import PI, ROOT, Ran
from edgekit.recipe import recipe_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
"""Each build starts a dozen processes that import torch."""

NETS = '''
import torch

CLASSES = ["bright", "dark", "striped"]

def block(inputs, outputs):
    conv = torch.nn.Conv2d(inputs, outputs, 3, padding=1)
    return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU())

class Net(torch.nn.Module):
    def __init__(self, width=32, seed=0, order=(0, 1, 2), classes=3):
        super().__init__()
        torch.manual_seed(seed)
        self.labels = [CLASSES[index] for index in order] if classes == 3 else []
        self.body = torch.nn.Sequential(block(1, width), block(width, width))
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

    def example_inputs(self):
        return {"x": torch.zeros(1, 1, 8, 8)}

def trained(order=(0, 1, 2)):
    """A network that knows the classes: a few steps on samples like those of the data."""
    from samples_of_training import samples
    net = Net()
    x, y = samples(400, 5)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    net.train()
    for start in range(0, 1600, 40):
        rows = torch.arange(start, start + 40) % 400
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        net.head.weight.copy_(net.head.weight[list(order)].clone())
        net.head.bias.copy_(net.head.bias[list(order)].clone())
    net.labels = [CLASSES[index] for index in order]
    return net

def model():
    return trained()

def turned():
    return trained((2, 0, 1))

def many():
    return Net(classes=7)

def student():
    return Net(width=8, seed=3)
'''
SAMPLES = """
import numpy as np

def samples(count, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.normal(size=(count, 1, 8, 8)) * 0.3
    x += np.array([1.0, -1.0, 0.0])[y][:, None, None, None]
    x[y == 2, :, ::2] += 1.0
    return x.astype(np.float32), y.astype(np.int64)
"""
RECIPE = """
title = "Two rounds"
[[stage]]
use = "distill"
epochs = 1
[[repeat]]
rounds = 2
[[repeat.stage]]
use = "prune-channels"
ratio = 0.2
multiple = 4
[[repeat.stage]]
use = "distill"
epochs = 3
feature-epochs = 1
[[stage]]
use = "simplify"
[[stage]]
use = "quantize-int8"
[[stage]]
use = "quantize-aware-train"
epochs = 2
"""


@pytest.fixture(scope="session")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    (folder / "nets_of_training.py").write_text(NETS)
    (folder / "samples_of_training.py").write_text(SAMPLES)
    (folder / "two-rounds.toml").write_text(RECIPE)
    names: dict[str, object] = {}
    exec(SAMPLES, names)
    for split, count, seed in (("training", 400, 0), ("calibration", 60, 1), ("evaluation", 300, 2)):
        x, y = names["samples"](count, seed)
        (folder / "data").mkdir(exist_ok=True)
        np.savez(folder / "data" / f"{split}.npz", x=x, y=y)
    (folder / "data" / "labels.txt").write_text("bright\ndark\nstriped\n")
    return folder


def asked(project, out, model="model", recipe="two-rounds.toml", *more):
    where = project / recipe if recipe.endswith(".toml") else recipe
    given = (f"python:nets_of_training:{model}", "--data", project / "data", "--recipe", where, "--out", out)
    return ("build", *given, "--profile", "raspberry-pi-5", "--max-drop", "10%", "--json", *more)


def stages(ran):
    return [stage["name"] for stage in ran.json["stages"]]


@pytest.fixture(scope="session")
def whole(edgekit, project):
    """What an uninterrupted build gives."""
    ran = edgekit(*asked(project, project / "whole"), cwd=project, home=project / "home")
    assert ran.status == 0, ran.err
    return ran


def test_a_recipe_of_rounds_ends_in_a_package_that_shows_them(whole, project):
    assert Path(whole.json["package"]).is_file()
    names = stages(whole)
    assert names.count("repeat") == names.count("prune-channels") >= 1
    assert "quantize-aware-train" in names
    rounds = [stage["facts"] for stage in whole.json["stages"] if stage["name"] == "repeat"]
    assert rounds[0]["kept"]
    assert all(row["latency_ms"] for row in rounds)
    assert "prune-channels" in next((project / "whole").glob("*.html")).read_text()
    qat = next(stage["facts"]["qat"] for stage in whole.json["stages"] if stage["name"] == "quantize-aware-train")
    assert qat["matches"]["sqnr_db"] >= 40
    assert qat["matches"]["argmax"] >= 0.999


def test_a_killed_training_is_resumed(edgekit, project, whole, tmp_path):
    """`kill -9` after a checkpoint in the first round: the same command ends in the same artifact."""
    home = tmp_path / "home"
    process = subprocess.Popen(
        edgekit.argv(*asked(project, tmp_path / "out")),
        env=edgekit.environment(home),
        cwd=project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not list(home.glob("scratch/*/train/checkpoint.safetensors")):
        time.sleep(0.005)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert list(home.glob("scratch/*/train/checkpoint.safetensors"))
    again = edgekit(*asked(project, tmp_path / "out"), cwd=project, home=home)
    assert again.status == 0, again.err
    assert again.json["artifact"] == whole.json["artifact"]
    assert stages(again) == stages(whole)
    assert not list((home / "scratch").iterdir())
    assert not list(home.glob("shared/.*"))


def with_torchrun(_folder):
    """Two processes as torchrun starts them."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]


def with_mpirun(folder):
    """Two processes as `accelerate launch` has them started on CPUs: by mpirun, here that of Open MPI."""
    hosts = folder / "hosts"
    hosts.write_text("localhost slots=2\n")
    number = ("--num_processes", "2", "--num_machines", "1", "--main_process_port", free_port())
    return [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--mpirun_hostfile", str(hosts), *number]


@pytest.mark.parametrize("launch", [with_torchrun, with_mpirun])
def test_two_processes_train_together(edgekit, project, whole, tmp_path, launch):
    """A launcher starts the command twice: one package, one result on stdout, as accurate as that of one process."""
    home = tmp_path / "home"
    launcher = launch(tmp_path)
    command = [*launcher, "-m", "edgekit", *map(str, asked(project, tmp_path / "out"))]
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # mpirun is a package's
    environment = {**edgekit.environment(home), **MPI, "PATH": binaries}
    done = subprocess.run(
        command, env=environment, cwd=project, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = Ran(0, done.stdout, done.stderr)  # one JSON object
    assert Path(found.json["package"]).is_file()
    assert len(list((tmp_path / "out").glob("*.edgekit"))) == 1
    assert stages(found)[:3] == stages(whole)[:3]
    assert found.check("accuracy")["value"] > 0.85
    trained = next(stage["facts"]["training"] for stage in found.json["stages"] if stage["name"] == "distill")
    assert trained is None or trained["epochs"] >= 1
    assert not list((home / "scratch").iterdir())
    more = [*launcher, "-m", "edgekit", *map(str, asked(project, tmp_path / "none", "student", "missing.toml"))]
    done = subprocess.run(more, env=environment, cwd=project, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode != 0
    assert json.loads(done.stdout)["exit"] == 2


MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Tests may run as root in a container, which mpirun refuses unless it is told twice."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("recipe", ["prune-int8", "distill-prune-int8", "qat-int8"])
def test_shipped_recipes_run(edgekit, project, tmp_path, recipe):
    """One round of those that have ten."""
    text = recipe_path(recipe).read_text().replace("rounds = 10", "rounds = 1")
    (project / f"{recipe}.toml").write_text(text)
    ran = edgekit(*asked(project, tmp_path / "out", "model", f"{recipe}.toml"), cwd=project)
    assert ran.status == 0, ran.err
    assert Path(ran.json["package"]).is_file()
    assert ran.check("accuracy")["value"] > 0.85


def test_the_vision_sample_is_distilled_and_pruned_and_a_kill_resumed(edgekit, tmp_path):
    """Three rounds of the shipped recipe on 2,000 images, killed in the second: the same command ends in a package."""
    vision, data, home = ROOT / "samples" / "vision", tmp_path / "data", tmp_path / "home"
    data.mkdir()
    (tmp_path / "three.toml").write_text(
        recipe_path("distill-prune-int8").read_text().replace("rounds = 10", "rounds = 3")
    )
    for name in ("calibration.npz", "preprocessing.toml"):
        shutil.copy(vision / "data" / name, data)
    with np.load(vision / "data" / "evaluation.npz") as known:
        for split, rows in (("training", slice(3000, 5000)), ("evaluation", slice(0, 2000))):
            np.savez(data / f"{split}.npz", x=known["x"][rows], y=known["y"][rows])
    model = ("python:samples.vision.network:build", "--weights", vision / "model.safetensors", "--data", data)
    command = ("build", *model, "--shape", "x=1x1x28x28/8x1x28x28/64x1x28x28", "--recipe", tmp_path / "three.toml")
    command = (*command, "--profile", PI, "--max-drop", "4%", "--out", tmp_path / "out", "--json")
    process = subprocess.Popen(
        edgekit.argv(*command),
        env=edgekit.environment(home),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen: set[Path] = set()
    while process.poll() is None and len(seen) < 2:
        seen |= set(home.glob("scratch/*/train/checkpoint.safetensors"))
        time.sleep(0.05)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = subprocess.run(
        edgekit.argv(*command),
        env=edgekit.environment(home),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    ran = Ran(done.returncode, done.stdout, done.stderr)
    assert ran.status == 0, ran.err
    assert Path(ran.json["package"]).is_file()
    found = ran.json["stages"]
    assert sum(stage["cached"] for stage in found if stage["name"] == "distill") >= 2  # the first finds no teacher
    rounds = [stage["facts"] for stage in found if stage["name"] == "repeat"]
    assert [row["kept"] for row in rounds] == [True, True, True]
    times = [row["latency_ms"] for row in rounds]
    assert times == sorted(times, reverse=True)
    pruned = [stage["facts"]["pruning"] for stage in found if stage["name"] == "prune-channels"]
    assert pruned[-1]["after"]["macs"] < 0.7 * pruned[0]["before"]["macs"]
    taught = [stage["facts"] for stage in found if stage["name"] == "distill"]
    matched = [facts["features"]["history"] for facts in taught if facts.get("features")]
    assert len(matched) == 3
    assert all(history[0]["held_out"] < 0.5 for history in matched)  # projections start near the teacher
    report = next((tmp_path / "out").glob("*.html")).read_text()
    assert report.count("prune-channels") >= 3


def test_a_teacher_with_other_classes_or_order(edgekit, project, tmp_path):
    """D01 and D03: matched by name; another count is refused with both numbers, and nothing is written."""
    recipe = project / "distill.toml"
    recipe.write_text('[[stage]]\nuse = "distill"\nepochs = 15\nrate = 0.01\n[[stage]]\nuse = "simplify"\n')
    scores = {}
    for teacher in ("model", "turned"):
        more = ("--teacher", f"python:nets_of_training:{teacher}", "--allow-dominated")
        ran = edgekit(*asked(project, tmp_path / teacher, "student", "distill.toml", *more), cwd=project)
        scores[teacher] = ran.check("accuracy")["value"]
    assert min(scores.values()) > 0.85
    more = ("--teacher", "python:nets_of_training:many")
    ran = edgekit(*asked(project, tmp_path / "many", "student", "distill.toml", *more), cwd=project)
    assert ran.status == 4
    assert "teacher has 7 outputs, student 3; give --label-map" in ran.json["error"]["text"]
    assert not (tmp_path / "many").exists() or not list((tmp_path / "many").iterdir())


def test_too_few_samples_and_onnx_models_are_refused(edgekit, project, tmp_path, given):
    few = tmp_path / "few"
    few.mkdir()
    with np.load(project / "data" / "training.npz") as arrays:
        np.savez(few / "training.npz", x=arrays["x"][:40], y=arrays["y"][:40])
    command = list(asked(project, tmp_path / "out"))
    command[command.index("--data") + 1] = few
    ran = edgekit(*command, cwd=project)
    assert ran.status == 4
    assert "are too few to train with" in ran.json["error"]["text"]
    ran = edgekit("build", given.model, "--data", given.data(), "--recipe", "prune-int8", "--json")
    assert ran.status == 4
    assert "PyTorch" in ran.json["error"]["remedy"]
