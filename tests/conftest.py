"""What all tests share: the marker for system packages, and fixtures of machines."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

pytest_plugins = ["sshd", "command", "emulator", "aihub_service"]

PROGRAMS = {
    "busybox": "busybox",
    "iproute2": "ip",
    "openssh-server": "sshd",
    "qemu-user-static": "qemu-aarch64-static",
}
"""Package of tests/system-packages.txt -> a program that it brings."""
SYSTEM_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def pytest_configure():
    """Children get interrupts, although a shell starts what it puts in the background with interrupts ignored.

    Trainings do not take all cores: the workers of pytest share them.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item):
    for mark in item.iter_markers("system"):
        for package in mark.args:
            if shutil.which(PROGRAMS[package], path=SYSTEM_PATH) is None:
                refuse = pytest.fail if os.environ.get("EDGEKIT_REQUIRE_SYSTEM") == "1" else pytest.skip
                refuse(f"needs Debian package {package}")
