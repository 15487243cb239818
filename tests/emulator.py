"""The emulated aarch64 machine, set up once and kept in the repository's cache folder. A pytest plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / ".sample-cache"


@pytest.fixture(scope="session")
def emulator():
    """Return its Python; the environment names the folder it lies in. Skipped, saying so, where apt cannot fetch it."""
    from edgekit.errors import TargetError
    from edgekit.transports.aarch64_root import aarch64_python

    with pytest.MonkeyPatch.context() as patch:
        if "EDGEKIT_EMULATOR" not in os.environ:
            patch.setenv("EDGEKIT_EMULATOR", str(FOLDER))
        try:
            python = aarch64_python()
        except TargetError as error:
            refuse = pytest.fail if os.environ.get("EDGEKIT_REQUIRE_SYSTEM") == "1" else pytest.skip
            refuse(f"needs the emulated machine: {error}")
        yield python
