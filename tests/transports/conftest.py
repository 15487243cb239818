"""The sshd of tests/sshd.py, reachable through the environment."""

from __future__ import annotations

import pytest


@pytest.fixture
def reachable(sshd, monkeypatch):
    for name, value in sshd.environment.items():
        monkeypatch.setenv(name, value)
    return sshd
