"""The local transport and the child processes under both transports."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgekit.errors import EdgekitError, TargetError, UsageError
from edgekit.transport import open_transport
from edgekit.transports import local
from edgekit.transports.local import LocalTransport
from edgekit.transports.process import LIMIT, run_process
from sshd import alive, wait_for

ODD = ["plain", "a b", "it's", 'say "x"', "-rf", "größe", "$(id)", "a\nb", "x" * 255, "deep/er/x"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def machine():
    transport = LocalTransport()
    transport.open()
    yield transport
    transport.close()


def test_url():
    assert isinstance(open_transport("local"), LocalTransport)
    with pytest.raises(UsageError, match="names a machine"):
        open_transport("local://orin")


@pytest.mark.parametrize("name", ODD)
def test_files_of_any_name_go_and_come(machine, tmp_path, name):
    (tmp_path / "source").write_bytes(b"content")
    path = machine.push(tmp_path / "source", name)
    assert machine.run(["cat", "--", path], timeout=20).stdout == "content"
    machine.pull(name, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"content"


def test_what_is_there_is_not_copied_again(machine, tmp_path):
    (tmp_path / "source").write_bytes(b"once")
    path = machine.push(tmp_path / "source", "x")
    before = Path(path).stat().st_ino
    assert Path(machine.push(tmp_path / "source", "x")).stat().st_ino == before
    (tmp_path / "source").write_bytes(b"twice")
    with open(machine.push(tmp_path / "source", "x")) as file:
        assert file.read() == "twice"


def test_names_stay_in_the_work_folder(machine, tmp_path):
    (tmp_path / "source").write_bytes(b"")
    for name in ("/etc/x", "../x", "a/../../x", "", "a\0b"):
        with pytest.raises(EdgekitError, match="no name inside a work folder"):
            machine.push(tmp_path / "source", name)


def test_errors_are_told(machine, tmp_path):
    with pytest.raises(TargetError, match="cannot fetch 'nothing'"):
        machine.pull("nothing", tmp_path / "back")
    with pytest.raises(TargetError, match="cannot start 'no-such-command'"):
        machine.run(["no-such-command"], timeout=5)
    (tmp_path / "source").write_bytes(b"")
    machine.push(tmp_path / "source", "file")
    with pytest.raises(TargetError, match="cannot write 'file/x'"):
        machine.push(tmp_path / "source", "file/x")
    with pytest.raises(TargetError, match="not open"):
        LocalTransport().run(["true"], timeout=5)


def test_the_work_folder_goes_when_it_is_closed(home):
    transport = LocalTransport()
    transport.open()
    assert len(list(home.glob("device/local-*"))) == 1
    transport.close()
    transport.close()
    assert list(home.glob("device/*")) == []


def test_work_folders_of_dead_processes_go_and_those_of_living_ones_stay(home):
    child = subprocess.Popen(["true"])
    child.wait()
    root = home / "device"
    names = [f"{local._PREFIX}{child.pid}-x", f"{local._PREFIX}{os.getppid()}-x", "local-otherhost-1-x", "local-x"]
    for name in names:
        (root / name).mkdir(parents=True)
    transport = LocalTransport()
    transport.open()
    transport.close()
    assert {path.name for path in root.iterdir()} == set(names[1:])


def test_an_unwritable_home_falls_back_to_the_temporary_folder(home, tmp_path, monkeypatch):
    home.write_text("a file where a folder should be")
    monkeypatch.setattr(local.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    transport = LocalTransport()
    transport.open()
    assert list((tmp_path / "tmp").glob("local-*"))
    transport.close()
    (tmp_path / "no").write_text("")
    monkeypatch.setattr(local.tempfile, "gettempdir", lambda: str(tmp_path / "no"))
    with pytest.raises(TargetError, match="no work folder can be made"):
        LocalTransport().open()


# --- child processes ---


def test_a_timeout_ends_the_whole_group(machine):
    began = time.monotonic()
    with pytest.raises(TargetError, match=r"'sh' was stopped: no end after 0\.5 s"):
        machine.run(["sh", "-c", "sleep 987661 & sleep 987661; true"], timeout=0.5)
    assert time.monotonic() - began < 20
    wait_for(lambda: not alive("987661"))


def test_a_command_that_ignores_the_polite_signal_ends_too():
    with pytest.raises(TimeoutError):
        run_process(["sh", "-c", "trap '' TERM; sleep 987662; sleep 987662"], timeout=0.5)
    wait_for(lambda: not alive("987662"))


def test_a_child_left_behind_does_not_hold_us_up():
    done = run_process(["sh", "-c", "sleep 987663 & echo done"], timeout=60)
    assert (done.status, done.stdout) == (0, "done\n")
    wait_for(lambda: not alive("987663"))


def test_output_is_bounded_and_the_end_is_kept(machine):
    script = "head -c 300000 /dev/zero | tr '\\0' x; echo END; echo ERR >&2; exit 4"
    done = machine.run(["sh", "-c", script], timeout=20)
    assert done.status == 4
    assert len(done.stdout) == LIMIT
    assert done.stdout.endswith("xEND\n")
    assert done.stderr == "ERR\n"


def test_output_that_is_no_text_is_told_as_far_as_it_goes(machine):
    assert machine.run(["printf", "a\\377b"], timeout=20).stdout == "a\ufffdb"


def test_an_interrupt_ends_the_group():
    code = (
        "from edgekit.transports.process import run_process\n"
        "run_process(['sh', '-c', 'sleep 987664; true'], timeout=999)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    wait_for(lambda: alive("987664"))
    process.send_signal(2)
    assert process.wait(20) != 0
    wait_for(lambda: not alive("987664"))


def test_held_standard_input_closes_at_the_end():
    read, write = os.pipe()
    threading.Timer(0.2, os.close, [write]).start()
    with open(read, "rb") as source:
        assert run_process(["cat"], timeout=20, source=source).status == 0
    assert run_process(["cat"], timeout=20).stdout == ""
    with pytest.raises(TimeoutError):
        run_process(["cat"], timeout=0.3, hold=True)
