"""The ssh transport against a real sshd on this machine, and its exact commands without one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgekit.errors import TargetError, UsageError
from edgekit.transport import open_transport
from edgekit.transports import far_side
from edgekit.transports.address import Address, parse_url
from edgekit.transports.ssh import SshTransport
from sshd import Proxy, alive, wait_for

needs_sshd = pytest.mark.system("openssh-server")


@pytest.fixture
def machine(reachable):
    transport = SshTransport(reachable.url)
    transport.open()
    yield transport
    transport.close()


# --- URLs and commands ---


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ssh://orin", Address(host="orin")),
        ("ssh://Orin/", Address(host="Orin")),
        ("ssh://me@orin:2222", Address(host="orin", user="me", port=2222)),
        ("ssh://me@[::1]:22", Address(host="::1", user="me", port=22)),
        ("ssh://10.0.0.7", Address(host="10.0.0.7")),
        ("ssh://größe.local", Address(host="größe.local")),
    ],
)
def test_urls(url, address):
    assert parse_url(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "ssh://",
        "ssh://@orin",
        "ssh://-oProxyCommand=id",
        "ssh://-l@orin",
        "ssh://orin:0",
        "ssh://orin:65536",
        "ssh://orin:x",
        "ssh://orin/path",
        "ssh://orin?x=1",
        "ssh://o rin",
        "ssh://orin\n",
        "ssh://[::1",
        "ssh:orin",
    ],
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(UsageError, match="no ssh URL"):
        SshTransport(url)


def test_passwords_are_refused_and_not_repeated():
    with pytest.raises(UsageError, match="holds a password") as caught:
        SshTransport("ssh://me:secret@orin")
    assert "secret" not in str(caught.value)


def test_unknown_schemes_are_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="Did you mean 'ssh'"):
        open_transport("shh://orin")


def test_exact_commands(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGEKIT_SSH_CONFIG", raising=False)
    transport = SshTransport("ssh://me@orin:2222")
    transport._control = tmp_path
    options = [
        "-T",
        *("-o", "BatchMode=yes"),
        *("-o", "ConnectTimeout=10"),
        *("-o", "ServerAliveInterval=5"),
        *("-o", "ServerAliveCountMax=3"),
        *("-o", "ControlMaster=auto"),
        *("-o", f"ControlPath={tmp_path}/link"),
        *("-o", "ControlPersist=60"),
        *("-o", "ClearAllForwardings=yes"),
        *("-o", "RemoteCommand=none"),
        *("-p", "2222"),
        *("-l", "me"),
        "--",
        "orin",
    ]
    assert transport.command() == ["ssh", *options]
    monkeypatch.setenv("EDGEKIT_SSH_CONFIG", "/etc/my config")
    assert transport.command() == ["ssh", "-F", "/etc/my config", *options]
    remote = transport.remote_argv([far_side.FETCH, "/w", "it's"])
    assert remote[:-1] == transport.command()
    assert shlex.split(remote[-1]) == ["sh", "-c", far_side.FETCH, "edgekit", "/w", "it's"]


def test_scripts_pass_through_any_login_shell():
    scripts = [value for name, value in vars(far_side).items() if name.isupper() and name != "MARK"]
    assert len(scripts) == 7
    for script in scripts:
        assert not set("'\\") & set(script)
        if script is not far_side.CHECK:
            subprocess.run(["sh", "-n", "-c", script], check=True)


# --- the lock ---


@needs_sshd
def test_one_at_a_time(machine, reachable):
    other = SshTransport(reachable.url)
    with pytest.raises(TargetError, match=f"the machine is in use: .* pid {os.getpid()} since ") as caught:
        other.open()
    assert caught.value.exit_status == 5
    machine.close()
    assert not (reachable.work / "lock").exists()
    other.open()
    other.close()


@needs_sshd
def test_a_killed_owner_frees_the_lock(machine, reachable):
    machine._holder.kill()
    machine._holder.wait()
    wait_for(lambda: not (reachable.work / "lock").exists())
    other = SshTransport(reachable.url)
    other.open()
    other.close()
    with pytest.raises(TargetError, match="the link broke"):
        machine.run(["true"], timeout=20)


@needs_sshd
@pytest.mark.parametrize(
    "lock",
    [
        {},
        {"pid": "999999999"},
        {"pid": str(os.getpid()), "boot": "of another boot"},
        {"pid": "x", "boot": ""},
    ],
)
def test_a_stale_lock_is_taken_over(reachable, lock):
    (reachable.work / "lock").mkdir(parents=True)
    for name, text in lock.items():
        (reachable.work / "lock" / name).write_text(text)
    transport = SshTransport(reachable.url)
    transport.open()
    try:
        assert (reachable.work / "lock" / "owner").read_text().strip().startswith(os.environ.get("USER", ""))
        assert not list(reachable.work.glob("lock.*"))
    finally:
        transport.close()


@needs_sshd
def test_old_files_go(machine, reachable, tmp_path):
    (tmp_path / "source").write_bytes(b"x")
    machine.push(tmp_path / "source", "old/x")
    machine.push(tmp_path / "source", "used/x")
    machine.close()
    work = reachable.work / machine.folder.rpartition("/")[2]
    past = time.time() - 20 * 86400
    for name in ("old", "used", "."):
        os.utime(work / name, (past, past))
    os.utime(work / "used")
    machine.open()
    left = {path.name for path in work.iterdir()}
    assert "used" in left
    assert "old" not in left


# --- links that break ---


@pytest.fixture
def proxied(reachable):
    proxy = Proxy(int(reachable.url.rpartition(":")[2]))
    transport = SshTransport(f"ssh://127.0.0.1:{proxy.port}")
    transport.open()
    yield transport, proxy
    transport.close()
    proxy.close()


@needs_sshd
def test_a_cut_link_is_unreachable_and_ends_the_far_side(proxied, reachable):
    transport, proxy = proxied
    threading.Timer(1, proxy.cut).start()
    with pytest.raises(TargetError, match="cannot be reached") as caught:
        transport.run(["sleep", "987652"], timeout=100)
    assert caught.value.exit_status == 5
    assert "works: ssh -p" in caught.value.remedy
    wait_for(lambda: not alive("987652"))
    wait_for(lambda: not (reachable.work / "lock").exists())


@needs_sshd
@pytest.mark.slow
def test_a_silent_link_is_given_up(proxied):
    transport, proxy = proxied
    proxy.silent.set()
    with pytest.raises(TargetError, match=r"cannot be reached|stopped at its work"):
        transport.run(["true"], timeout=60)


@needs_sshd
def test_a_slow_link_is_waited_for(proxied, tmp_path):
    transport, proxy = proxied
    content = os.urandom(200_000)
    (tmp_path / "source").write_bytes(content)
    proxy.rate = 200_000
    path = transport.push(tmp_path / "source", "slow")
    transport.pull("slow", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    assert path.endswith("/slow")


@needs_sshd
def test_a_link_that_is_too_slow_is_given_up_and_what_arrived_stays(proxied, tmp_path, monkeypatch):
    transport, proxy = proxied
    monkeypatch.setattr("edgekit.transports.ssh.SLOWEST", 1e6)
    monkeypatch.setattr("edgekit.transports.ssh.ASK", 2)
    content = os.urandom(2_000_000)
    (tmp_path / "source").write_bytes(content)
    part = Path(transport.folder, f".part-{hashlib.sha256(content).hexdigest()[:32]}")
    proxy.rate = 200_000
    with pytest.raises(TargetError, match="stopped at its work"):
        transport.push(tmp_path / "source", "slower")
    proxy.rate = None
    wait_for(lambda: part.exists() and part.stat().st_size)
    assert not Path(transport.folder, "slower").exists()


@needs_sshd
def test_a_lock_of_our_own_from_a_silent_link_is_taken_over(proxied, reachable):
    """The far side does not know yet that the link is dead: its holder lives on, but it is ours."""
    transport, proxy = proxied
    held = (reachable.work / "lock" / "pid").read_text()
    proxy.silent.set()
    for one in list(proxy.sockets):
        if one.getsockname()[1] == proxy.port:  # our side notices, the server's does not
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
    transport._holder.wait(20)
    proxy.silent.clear()
    again = SshTransport(transport.url)
    with pytest.raises(TargetError, match="in use"):
        again.open()
    transport.close()
    transport.open()
    assert (reachable.work / "lock" / "pid").read_text() != held
    assert transport.run(["echo", "back"], timeout=20).stdout == "back\n"


@needs_sshd
def test_a_link_cut_during_a_push_goes_on_next_time(proxied, reachable, tmp_path):
    transport, proxy = proxied
    content = os.urandom(1 << 20) * 64
    (tmp_path / "source").write_bytes(content)
    part = Path(transport.folder, f".part-{hashlib.sha256(content).hexdigest()[:32]}")

    def cut():
        wait_for(lambda: part.exists() and part.stat().st_size > 1 << 20)
        proxy.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(TargetError):
        transport.push(tmp_path / "source", "big")
    cutter.join()
    assert not Path(transport.folder, "big").exists()
    transport.close()
    wait_for(lambda: not (reachable.work / "lock").exists())
    arrived = part.stat().st_size
    assert 0 < arrived < len(content)

    again = SshTransport(reachable.url)
    again.open()
    try:
        offsets = []
        remote = again._remote
        again._remote = lambda script, **kwargs: (offsets.append(script[-1]), remote(script, **kwargs))[1]
        path = again.push(tmp_path / "source", "big")
        assert offsets[-1] == str(arrived)
        with open(path, "rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == hashlib.sha256(content).hexdigest()
    finally:
        again.close()


@needs_sshd
def test_a_killed_client_process_leaves_nothing_running(reachable):
    code = (
        "import sys; from edgekit.transports.ssh import SshTransport\n"
        "t = SshTransport(sys.argv[1]); t.open(); print('open', flush=True); t.run(['sleep', '987653'], timeout=999)"
    )
    argv = [sys.executable, "-c", code, reachable.url]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment)
    assert process.stdout.readline() == b"open\n"
    wait_for(lambda: alive("987653"))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    wait_for(lambda: not alive("987653"))
    wait_for(lambda: not (reachable.work / "lock").exists())
    left = f"edgekit-ssh-{process.pid}-*"
    assert list(Path("/tmp").glob(left))
    other = SshTransport(reachable.url)
    other.open()
    other.close()
    assert not list(Path("/tmp").glob(left))


# --- machines that do not let us in ---


def refused(url):
    transport = SshTransport(url)
    with pytest.raises(TargetError) as caught:
        transport.open()
    assert caught.value.exit_status == 5
    assert transport._control is None
    return caught.value


@needs_sshd
def test_nobody_listens(reachable):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        error = refused(f"ssh://127.0.0.1:{probe.getsockname()[1]}")
    assert "refused" in error.text
    assert "Check that the machine is on" in error.remedy


@needs_sshd
def test_unknown_and_changed_host_keys_are_refused(reachable, monkeypatch, tmp_path):
    config = (reachable.folder / "client_config").read_text()
    for hosts in ("", "the-device " + (reachable.folder / "user_key.pub").read_text()):
        (tmp_path / "known_hosts").write_text(hosts)
        text = config.replace(f"{reachable.folder}/known_hosts", f"{tmp_path}/known_hosts")
        (tmp_path / "config").write_text(text)
        monkeypatch.setenv("EDGEKIT_SSH_CONFIG", str(tmp_path / "config"))
        error = refused(reachable.url)
        assert "Host key verification failed" in error.text
        assert "compare the key: ssh -p" in error.remedy
        assert (tmp_path / "known_hosts").read_text() == hosts


@needs_sshd
def test_wrong_key(reachable, monkeypatch, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    config = (reachable.folder / "client_config").read_text()
    (tmp_path / "config").write_text(config.replace(f"{reachable.folder}/user_key", f"{tmp_path}/key"))
    monkeypatch.setenv("EDGEKIT_SSH_CONFIG", str(tmp_path / "config"))
    error = refused(reachable.url)
    assert "Permission denied" in error.text
    assert "ssh-copy-id -p" in error.remedy


@needs_sshd
def test_no_python_or_no_numpy(reachable, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEKIT_REMOTE_PYTHON", "/no/such/python")
    error = refused(reachable.url)
    assert "'/no/such/python' is no Python 3.8" in error.text
    assert "pip install numpy onnxruntime" in error.remedy
    script = tmp_path / "python"
    script.write_text('#!/bin/sh\nexec python3 -S -E -s "$@"\n')  # without site-packages
    script.chmod(0o755)
    monkeypatch.setenv("EDGEKIT_REMOTE_PYTHON", str(script))
    error = refused(reachable.url)
    assert "has no numpy" in error.text
    assert "pip install numpy" in error.remedy


def test_no_client(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    error = refused("ssh://orin")
    assert "openssh-client" in error.remedy


def test_use_before_open_is_told(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(TargetError, match="not open"):
        SshTransport("ssh://orin").push(tmp_path / "x", "x")


@needs_sshd
def test_a_chatty_login_shell_does_not_matter(reachable, tmp_path):
    rc = reachable.folder / "home" / ".bashrc"
    if not pwd.getpwuid(os.getuid()).pw_shell.endswith("bash"):
        pytest.skip("the user's login shell is not bash")
    rc.write_text("echo welcome; echo 'edgekit lives here'\n")
    try:
        transport = SshTransport(reachable.url)
        transport.open()
        (tmp_path / "source").write_bytes(b"x")
        transport.push(tmp_path / "source", "chatty")
        transport.close()
    finally:
        rc.unlink()
