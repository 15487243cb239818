import os
import signal
import sys
import time

import numpy as np
import pytest

from edgekit import children
from edgekit.errors import EdgekitError, InputError, TargetError
from edgekit.graphs import probe
from edgekit.graphs.child import GIB, Limits, run_task
from graph_models import floats, model, node, take_in, value

KINDS = """
import os, resource, signal, sys, time
from edgekit.errors import TargetError

def crash(): os.kill(os.getpid(), signal.SIGSEGV)
def abort(): os.abort()
def hang(): time.sleep(600)
def spin():
    while True: pass
def fill(): return bytearray(64 << 30)
def write():
    with open("big", "wb") as file: file.seek(1 << 33); file.write(b"x")
def leave(): os._exit(7)
def bug(): return {}["nothing"]
def refuse(): raise TargetError("no", where="there", remedy="try")
def tell(**words): return {"words": words, "folder": os.getcwd(), "limits": resource.getrlimit(resource.RLIMIT_AS)[0]}
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Let the child do the functions above: the table of tasks is replaced in both processes."""
    home = tmp_path / "modules"
    home.mkdir()
    (home / "child_tasks.py").write_text(KINDS)
    (home / "wrapped.py").write_text(
        "import sys, child_tasks\nfrom edgekit.graphs import probe\n"
        "probe.TASKS = {name: f'child_tasks:{name}' for name in vars(child_tasks) if not name.startswith('_')}\n"
        "sys.exit(probe.main(sys.argv[1:]))\n"
    )
    real = children.subprocess.Popen

    def popen(argv, **options):
        assert argv[1:4] == ["-P", "-m", "edgekit.graphs.probe"]
        return real([argv[0], "-P", "-m", "wrapped", *argv[4:]], **options)

    monkeypatch.setattr(children.subprocess, "Popen", popen)
    monkeypatch.setattr(sys, "path", [*sys.path, str(home)])
    return tmp_path


def test_the_result_comes_back_and_the_child_works_in_the_folder(tasks):
    answer = run_task("tell", {"a": "-ü\n\udcff", "b": [1, None]}, folder=tasks, limits=Limits(memory=3 * GIB))
    assert answer == {"words": {"a": "-ü\n\udcff", "b": [1, None]}, "folder": str(tasks), "limits": 3 * GIB}


def test_limits_grow_with_the_model():
    limits = Limits(cpu_seconds=5).for_size(GIB)
    assert (limits.memory, limits.file, limits.cpu_seconds) == (10 * GIB, 3 * GIB, 5)


@pytest.mark.parametrize(
    ("task", "limits", "words"),
    [
        ("crash", Limits(), "signal SIGSEGV"),
        ("abort", Limits(), "signal SIGABRT"),
        ("leave", Limits(), "exit status 7"),
        ("hang", Limits(wall_seconds=1), "stopped after 1 s"),
        ("spin", Limits(cpu_seconds=1), "1 s of CPU time"),
        ("fill", Limits(memory=2 * GIB), "more than 2.0 GiB of memory"),
        ("write", Limits(file=GIB), "file of more than"),
    ],
)
def test_whatever_happens_to_the_child_is_an_input_error(tasks, task, limits, words):
    with pytest.raises(InputError, match=words) as error:
        run_task(task, {}, folder=tasks, limits=limits)
    assert error.value.remedy


def test_a_deadline_ends_it(tasks):
    with pytest.raises(TargetError, match="before the deadline"):
        run_task("hang", {}, folder=tasks, deadline=time.monotonic() + 0.5)


def test_its_errors_keep_their_class_and_a_bug_is_called_one(tasks):
    with pytest.raises(TargetError) as error:
        run_task("refuse", {}, folder=tasks)
    assert (error.value.text, error.value.where, error.value.remedy) == ("no", "there", "try")
    with pytest.raises(EdgekitError, match="KeyError") as bug:
        run_task("bug", {}, folder=tasks)
    assert type(bug.value) is EdgekitError


def test_every_task_names_a_function():
    import importlib

    for place in probe.TASKS.values():
        module, _, name = place.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_an_interrupt_leaves_no_child(tasks, monkeypatch):
    pids = []
    wait = children.subprocess.Popen

    def popen(argv, **options):
        process = wait(argv, **options)
        pids.append(process.pid)
        real = process.wait

        def interrupted(timeout=None):
            if timeout is not None:
                raise KeyboardInterrupt
            return real()

        process.wait = interrupted
        return process

    monkeypatch.setattr(children.subprocess, "Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        run_task("hang", {}, folder=tasks)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], signal.SIG_DFL)


def test_a_model_that_asks_for_too_much_memory_is_refused(tmp_path):
    bomb = model(
        [
            node("ConstantOfShape", ["shape"], ["big"]),
            node("ReduceSum", ["big"], ["s"]),
            node("Add", ["x", "s"], ["y"]),
        ],
        [value("x", [1, 1, 1])],
        [value("y", [1, 1, 1])],
        {"shape": np.array([1 << 14, 1 << 12, 1 << 10], np.int64)},
        opset=12,
    )
    facts, _ = take_in(bomb, tmp_path, child=True)
    (finding,) = facts["findings"]
    assert finding["rule"] == "old-opset", "it loads, but cannot be run to check a conversion"


def test_a_small_limit_refuses_a_fine_model(tmp_path):
    from edgekit.graphs.files import read_onnx

    fine = model(
        [node("MatMul", ["x", "W"], ["y"])], [value("x", ["b", 4])], [value("y", ["b", 3])], {"W": floats(4, 3)}
    )
    (tmp_path / "m.onnx").write_bytes(fine.SerializeToString())
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError):
        read_onnx(tmp_path / "m.onnx", tmp_path / "out", limits=Limits(memory=200 << 20))
