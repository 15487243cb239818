"""Files and commands through the ssh transport, on a real sshd on this machine."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from edgekit.errors import TargetError
from edgekit.transports import far_side
from edgekit.transports.process import LIMIT
from edgekit.transports.ssh import SshTransport
from sshd import alive, wait_for

pytestmark = pytest.mark.system("openssh-server")
ODD = [
    "plain",
    "a b",
    "it's",
    'say "x"',
    "-rf",
    "--",
    "größe\u00a0Ω",
    "$(id)",
    "`id`;&|",
    "a\nb",
    "*?[x]",
    "~",
    "%s\\n",
    "#",
]


@pytest.fixture(scope="module")
def machine(sshd):
    """One connection for all tests of this file: none of them breaks it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sshd.environment.items():
            patch.setenv(name, value)
        transport = SshTransport(sshd.url)
        transport.open()
        yield transport
        transport.close()


# --- files ---


@pytest.mark.parametrize("name", ["it's", "-rf", 'größe "Ω"', "$(id);`id`", "a\nb ", "deep/er/*", "x" * 255])
def test_files_of_any_name_go_and_come(machine, tmp_path, name):
    (tmp_path / "source").write_bytes(name.encode() * 99)
    path = machine.push(tmp_path / "source", name)
    assert path == f"{machine.folder}/{name}"
    assert machine.run(["cat", path], timeout=20).stdout == name * 99
    machine.pull(name, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == name.encode() * 99


@pytest.mark.parametrize("size", [0, 1, LIMIT + 1, 3_000_000])
def test_files_of_any_size_go_and_come(machine, tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "source").write_bytes(content)
    machine.push(tmp_path / "source", "sized")
    machine.pull("sized", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


def test_what_is_there_is_not_sent_again(machine, tmp_path):
    (tmp_path / "source").write_bytes(b"once")
    path = machine.push(tmp_path / "source", "kept")
    before = Path(path).stat()
    machine.push(tmp_path / "source", "kept")
    assert Path(path).stat().st_ino == before.st_ino
    (tmp_path / "source").write_bytes(b"twice")
    machine.push(tmp_path / "source", "kept")
    assert machine.run(["cat", path], timeout=20).stdout == "twice"


def test_half_a_file_is_completed(machine, tmp_path):
    content = os.urandom(400_000)
    (tmp_path / "source").write_bytes(content)
    part = f"{machine.folder}/.part-{hashlib.sha256(content).hexdigest()[:32]}"
    with open(part, "wb") as file:
        file.write(content[:300_000])
    sent = []
    remote = machine._remote
    machine._remote = lambda script, **kwargs: (sent.append(script), remote(script, **kwargs))[1]
    path = machine.push(tmp_path / "source", "resumed")
    assert [script[-1] for script in sent if script[0] == far_side.STORE] == ["300000"]
    with open(path, "rb") as file:
        assert file.read() == content
    assert not Path(part).exists()


@pytest.mark.parametrize("garbage", [b"x" * 100, b"x" * 500_000])
def test_a_wrong_beginning_is_noticed_and_the_next_try_starts_over(machine, tmp_path, garbage):
    content = os.urandom(400_000)
    (tmp_path / "source").write_bytes(content)
    part = f"{machine.folder}/.part-{hashlib.sha256(content).hexdigest()[:32]}"
    with open(part, "wb") as file:
        file.write(garbage)
    if len(garbage) < len(content):
        with pytest.raises(TargetError, match="other bytes arrived"):
            machine.push(tmp_path / "source", "over")
        assert not Path(machine.folder, "over").exists()
    path = machine.push(tmp_path / "source", "over")
    with open(path, "rb") as file:
        assert file.read() == content


def test_what_cannot_be_stored_leaves_the_old_and_nothing_half(machine, tmp_path):
    (tmp_path / "source").write_bytes(b"old")
    path = machine.push(tmp_path / "source", "full")
    (tmp_path / "source").write_bytes(os.urandom(300_000))
    full = far_side.STORE.replace("cat >>", "ulimit -f 8; cat >>")  # a disk of 8 blocks
    assert full != far_side.STORE
    keep, far_side.STORE = far_side.STORE, full
    try:
        with pytest.raises(TargetError, match="cannot store 'full'") as caught:
            machine.push(tmp_path / "source", "full")
    finally:
        far_side.STORE = keep
    assert caught.value.exit_status == 5
    assert "free space" in caught.value.remedy
    assert machine.run(["cat", path], timeout=20).stdout == "old"
    assert not list(Path(machine.folder).glob(".part*"))


def test_a_file_that_is_not_there(machine, tmp_path):
    with pytest.raises(TargetError, match="there is no 'nothing'"):
        machine.pull("nothing", tmp_path / "back")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
def test_names_stay_in_the_work_folder(machine, tmp_path, name):
    (tmp_path / "source").write_bytes(b"")
    for call in (lambda: machine.push(tmp_path / "source", name), lambda: machine.pull(name, tmp_path / "x")):
        with pytest.raises(Exception, match="no name inside a work folder"):
            call()


# --- commands ---


def test_arguments_arrive_as_they_are(machine):
    done = machine.run([machine.python, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *ODD], timeout=20)
    assert done.status == 0
    assert json.loads(done.stdout) == ODD


@pytest.mark.parametrize(("code", "status"), [(0, 0), (3, 3), (254, 254), (255, 254)])
def test_exit_status_comes_back_and_255_is_never_the_commands(machine, code, status):
    assert machine.run(["sh", "-c", f"exit {code}"], timeout=20).status == status


def test_output_is_cut_at_the_end_that_matters(machine):
    script = "head -c 300000 /dev/zero | tr '\\0' x; echo END; head -c 200000 /dev/zero | tr '\\0' y >&2; echo ERR >&2"
    done = machine.run(["sh", "-c", script], timeout=20)
    assert (len(done.stdout), len(done.stderr)) == (LIMIT, LIMIT)
    assert done.stdout.endswith("xEND\n")
    assert done.stderr.endswith("yERR\n")


def test_commands_run_in_the_work_folder_and_read_nothing(machine):
    assert machine.run(["pwd"], timeout=20).stdout.strip() == machine.folder
    assert machine.run(["cat"], timeout=20).stdout == ""


def test_a_missing_command_is_told(machine):
    done = machine.run(["no-such-command"], timeout=20)
    assert done.status in {126, 127}  # 126: a folder of PATH that may not be searched
    assert "no-such-command" in done.stderr


def test_a_timeout_ends_the_command_and_its_children_over_there(machine):
    with pytest.raises(TargetError, match="no end after 1 s"):
        machine.run(["sh", "-c", "sleep 987651 & sleep 987651; true"], timeout=1)
    wait_for(lambda: not alive("987651"))
    assert machine.run(["echo", "ok"], timeout=20).stdout == "ok\n"
