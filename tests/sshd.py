"""A real sshd on 127.0.0.1, as the current user, with keys and a configuration of its own. A pytest plugin.

Tests that use the fixture `sshd` carry `@pytest.mark.system("openssh-server")`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

SERVER = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
MaxStartups 100
SetEnv PATH={python}:{path} HOME={folder}/home
"""
CLIENT = """
Host *
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    HostKeyAlias the-device
"""


class Sshd(NamedTuple):
    """The URL of the server, and the environment variables under which edgekit's transport reaches it."""

    url: str
    environment: dict[str, str]

    @property
    def folder(self) -> Path:
        """Keys, configuration, log (`sshd.log`) and the home folder (`home`) that sessions see."""
        return Path(self.environment["EDGEKIT_SSH_CONFIG"]).parent

    @property
    def work(self) -> Path:
        """Where the transport keeps its lock and work folders."""
        return self.folder / "home" / ".cache" / "edgekit" / "device"


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def alive(marker):
    """Return the ids of the processes `sleep MARKER`."""
    done = subprocess.run(["pgrep", "-f", f"^sleep {marker}$"], capture_output=True, text=True, check=False)
    return done.stdout.split()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server in a folder with keys; return it and its port once it answers."""
    program = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
    if os.getuid() == 0:  # made by the package's service; the server as root insists on it
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = free_port()
    python = Path(sys.executable).parent
    text = SERVER.format(folder=folder, port=port, python=python, path=os.environ["PATH"])
    (folder / "sshd_config").write_text(text)
    argv = [program, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log")]
    process = subprocess.Popen(argv)
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, port
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    raise RuntimeError((folder / "sshd.log").read_text())


class Proxy:
    """A TCP proxy to the server that can cut, go silent, or be slow (`rate` bytes per second each way)."""

    def __init__(self, port):
        self.target, self.silent, self.sockets, self.rate, self.passed = port, threading.Event(), [], None, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self.sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=(one, other), daemon=True).start()

    def copy(self, one, other):
        with contextlib.suppress(OSError):
            while (data := one.recv(65536)) and not self.silent.is_set():
                other.sendall(data)
                self.passed += len(data)
                if self.rate:
                    time.sleep(len(data) / self.rate)

    def cut(self):
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self.listener.close()
        self.cut()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """Yield a running server: `url, environment = sshd`; set the environment with monkeypatch."""
    folder = tmp_path_factory.mktemp("sshd")
    (folder / "home").mkdir()
    for name in ("host_key", "user_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    (folder / "known_hosts").write_text("the-device " + (folder / "host_key.pub").read_text())
    (folder / "client_config").write_text(CLIENT.format(folder=folder))
    process, port = start(folder)
    yield Sshd(f"ssh://127.0.0.1:{port}", {"EDGEKIT_SSH_CONFIG": str(folder / "client_config")})
    process.terminate()
    process.wait(10)
