"""A device on an address of its own: sshd in a network namespace, behind a cable that can be pulled."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgekit.errors import LinkError
from edgekit.transports.ssh import SshTransport
from sshd import SERVER, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.system("openssh-server", "iproute2")]
NEAR, FAR, PORT = "10.213.77.1", "10.213.77.2", 2222


def ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)


def answers():
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((FAR, PORT)) == 0


@pytest.fixture
def board(sshd, monkeypatch):
    """Yield the name of our end of the cable; the machine at the other is `ssh://10.213.77.2:2222`."""
    space, near, far = (f"ek{os.getpid()}{end}" for end in "snf")
    if os.getuid() != 0 or ip("netns", "add", space, check=False).returncode:
        pytest.skip("this machine allows no network namespaces")
    process = None
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        ip("addr", "add", f"{NEAR}/30", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", space, "addr", "add", f"{FAR}/30", "dev", far)
        ip("-n", space, "link", "set", far, "up")
        text = SERVER.format(folder=sshd.folder, port=PORT, python=Path(sys.executable).parent, path=os.environ["PATH"])
        config = sshd.folder / "namespace_config"
        config.write_text(text.replace("127.0.0.1", FAR))
        program = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
        argv = [
            "ip",
            "netns",
            "exec",
            space,
            program,
            "-D",
            "-f",
            str(config),
            "-E",
            str(sshd.folder / "namespace.log"),
        ]
        process = subprocess.Popen(argv)
        wait_for(answers)
        for name, value in sshd.environment.items():
            monkeypatch.setenv(name, value)
        yield near
    finally:
        if process is not None:
            process.terminate()
            process.wait(10)
        ip("netns", "del", space, check=False)
        ip("link", "del", near, check=False)


def test_a_cable_that_is_pulled_is_noticed_and_one_that_is_put_back_used(board):
    transport = SshTransport(f"ssh://{FAR}:{PORT}")
    transport.open()
    try:
        assert transport.run(["echo", "there"], timeout=20).stdout == "there\n"
        ip("link", "set", board, "down")
        begun = time.monotonic()
        with pytest.raises(LinkError, match="cannot be reached"):
            transport.run(["sleep", "600"], timeout=600)
        assert time.monotonic() - begun < 60, "given up long before the command's time"
        with pytest.raises(LinkError, match="cannot be reached"):
            SshTransport(f"ssh://{FAR}:{PORT}").open()
        ip("link", "set", board, "up")
        transport.close()
        wait_for(answers)
        transport.open()
        assert transport.run(["echo", "again"], timeout=20).stdout == "again\n"
    finally:
        transport.close()
