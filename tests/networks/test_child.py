import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import edgekit
from edgekit import events
from edgekit.errors import EdgekitError, InputError, TargetError, UnsupportedError
from edgekit.networks.child import run_in_child

HERE = {"PYTHONPATH": str(Path(__file__).parent)}


def call(job, arguments=None, **options):
    return run_in_child(f"jobs:{job}", arguments or {}, environment=HERE, **options)


def test_a_result_comes_back_whatever_is_printed():
    found = call("echo", {"a": [1, "ü"]}, threads=3)
    assert found["got"] == {"a": [1, "ü"]}
    assert found["threads"] == "3"
    assert not found["torch"]


def test_strings_hash_alike_in_every_child():
    assert call("echo")["hash"] == call("echo")["hash"]


def test_events_reach_the_listener():
    heard = []
    assert call("tells", listen=heard.append) is None
    assert heard[0] == events.Progress(label="half", done=1, total=2)
    assert heard[1].finding.rule == "r"


def test_an_error_keeps_its_class_and_words():
    with pytest.raises(UnsupportedError) as caught:
        call("refuses")
    assert (caught.value.text, caught.value.where, caught.value.remedy) == ("no", "here", "do that")


def test_a_bug_is_told_as_one_with_its_trace():
    with pytest.raises(EdgekitError) as caught:
        call("bug")
    assert caught.value.exit_status == 1
    assert "ZeroDivisionError: oops" in caught.value.text
    assert "jobs.py" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("name", "said"), [("SIGSEGV", "SIGSEGV; its last words: last words"), ("SIGKILL", "memory ran out")]
)
def test_a_crash_is_an_error_that_names_the_signal(name, said):
    with pytest.raises(InputError, match=said):
        call("dies", {"signal": name})


def test_leaving_without_a_word_is_an_error():
    with pytest.raises(InputError, match="exit status 3"):
        call("exits")


def test_a_missing_library_is_a_missing_tool():
    with pytest.raises(TargetError, match="optimum is not installed") as caught:
        call("needs", {"name": "optimum.exporters"})
    assert "edgekit-toolkit[torch]" in caught.value.remedy
    with pytest.raises(EdgekitError) as caught:
        call("needs", {"name": "something_of_ours"})
    assert caught.value.exit_status == 1


def test_the_deadline_ends_it(tmp_path):
    with pytest.raises(TargetError, match="deadline"):
        call("sleeps", {"file": str(tmp_path / "pid")}, deadline=time.monotonic() + 2)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_listener_that_raises_ends_the_child():
    def refuse(_event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call("tells", listen=refuse)


def test_the_child_does_not_outlive_its_parent(tmp_path):
    pid = tmp_path / "pid"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from edgekit.networks.child import run_in_child;"
        "run_in_child('jobs:sleeps', {'file': sys.argv[2]})"
    )
    root = str(Path(edgekit.__file__).parent.parent)
    parent = subprocess.Popen([sys.executable, "-c", code, root, str(pid)], env={**os.environ, **HERE})
    wait_for(lambda: pid.exists() and pid.read_text())
    child = int(pid.read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not alive(child))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen within 30 s")
