"""An aarch64 machine under emulation: QEMU in user mode and a folder of Debian's arm64 packages.

No root, no chroot, no binfmt. What it computes is what an Arm processor computes; how long it takes says nothing.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from edgekit.artifact import digest
from edgekit.errors import TargetError
from edgekit.store import default_root
from edgekit.transports.local import sweep

NAME = "emulated-aarch64"
"""Its URL, and what the runner's probe calls it."""

QEMU = "qemu-aarch64-static"
_QEMU_PACKAGE = "qemu-user-static"
_PACKAGES = ("libstdc++6",)
_WHEELS = ("numpy", "onnxruntime")
_PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")
_REVISION = 1
_SECONDS = 600
_NEW = ".new-"

_PYTHON = """#!/bin/sh
# Python of the emulated machine. Children that it starts come through here again: argv[0] is this file.
root=$(dirname -- "$(readlink -f -- "$0")")
export PYTHONHOME="$root/usr" PYTHONPATH="$root/wheels" PYTHONDONTWRITEBYTECODE=1 QEMU_CPU=cortex-a76
export EDGEKIT_EMULATOR_NAME={name}
exec "$root/{qemu}" -0 "$root/python" -L "$root" "$root/usr/bin/{python}" "$@"
"""
_CPU = """processor\t: {}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0b
CPU revision\t: 1

"""
"""A Cortex-A76, as its kernel describes it: onnxruntime reads the host's own description otherwise, and crashes."""


def aarch64_python() -> Path:
    """Return the emulated machine's interpreter (Python with numpy and onnxruntime), set up when it is not there yet.

    It lies in `$EDGEKIT_EMULATOR`, else in the store's folder, per version of onnxruntime and numpy: they are those of
    this process, so that outputs can be compared bit by bit.

    Raises:
        TargetError: this is no Debian, or its packages cannot be fetched; with what the tools said.
    """
    versions = {name: importlib.metadata.version(name) for name in _WHEELS}
    base = Path(os.environ.get("EDGEKIT_EMULATOR") or default_root() / "emulators")
    key = digest({"revision": _REVISION, **versions})[:12]
    root = base / f"{NAME}-{key}"
    python = root / "python"
    if python.exists():
        return python
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise TargetError(
                f"{tool} is not here: an emulated machine is made from Debian's packages",
                where=NAME,
                remedy="Run it on Debian or Ubuntu, or name a real device: --target ssh://user@host",
            )
    base.mkdir(parents=True, exist_ok=True)
    sweep(base, _NEW)  # what killed processes left half
    made = Path(tempfile.mkdtemp(prefix=f"{_NEW}{os.getpid()}-", dir=base))
    try:
        _fill(made, versions)
        try:
            made.rename(root)
        except OSError:  # another process was faster
            if not python.exists():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return python


def _fill(root: Path, versions: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(prefix="edgekit-arm64-") as name:
        scratch = Path(name)
        python = _unpack_packages(root, scratch)
        _copy_qemu(root, scratch)
        _unpack_wheels(root / "wheels", scratch / "wheels", versions, python)
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text("".join(map(_CPU.format, range(os.cpu_count() or 1))))
    (root / "versions.json").write_text(json.dumps({**versions, "python": python}))
    script = root / "python"
    script.write_text(_PYTHON.format(name=NAME, qemu=QEMU, python=python))
    script.chmod(0o755)
    told = _ask([str(script), "-c", "import onnxruntime; print(onnxruntime.__version__)"])
    if versions["onnxruntime"] not in told:
        raise _failed(f"the emulated Python does not work: {told[-300:]}")


def apt_options(folder: Path) -> list[str]:
    """Return options with which apt works on arm64 in a folder of its own, from this machine's sources, as any user."""
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "1",
        "Dir::Cache": str(folder),
        "Dir::State": str(folder),
        "Dir::State::lists": str(folder / "lists"),
        "Dir::State::status": "/dev/null",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _unpack_packages(root: Path, scratch: Path) -> str:
    """Unpack Debian's Python for arm64 with all that it depends on; return its name (`python3.11`)."""
    for name in ("lists/partial", "archives/partial"):
        (scratch / name).mkdir(parents=True)
    options = apt_options(scratch)
    _ask(["apt-get", *options, "-qq", "update"], may_fail=True)  # sources without arm64 make it complain
    told = _ask(["apt-cache", *options, "depends", "python3-minimal"])
    match = re.search(r"(python3\.\d+)-minimal", told)
    if match is None:
        raise _failed(f"apt knows no Python for arm64: {told.strip()[-300:] or 'no answer'}")
    python = match.group(1)
    wanted = [f"{python}-minimal", f"lib{python}-stdlib", *_PACKAGES]
    _ask(["apt-get", *options, "-qq", "-y", "--no-install-recommends", "--download-only", "install", *wanted])
    for archive in sorted((scratch / "archives").glob("*.deb")):
        _ask(["dpkg-deb", "-x", str(archive), str(root)])
    return python


def _copy_qemu(root: Path, scratch: Path) -> None:
    """Put QEMU into the folder: this machine's when it is installed, else that of its package."""
    found = shutil.which(QEMU)
    if found is None:
        folder = scratch / "qemu"
        folder.mkdir()
        _ask(["apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", _QEMU_PACKAGE], folder=folder)
        _ask(["dpkg-deb", "-x", str(next(folder.glob("*.deb"))), str(folder)])
        found = str(folder / "usr/bin" / QEMU)
    shutil.copyfile(found, root / QEMU)
    (root / QEMU).chmod(0o755)


def _unpack_wheels(root: Path, scratch: Path, versions: dict[str, str], python: str) -> None:
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", *platforms]
    argv += ["--python-version", python.removeprefix("python"), "-d", str(scratch)]
    _ask([*argv, *(f"{name}=={version}" for name, version in versions.items())])
    for wheel in sorted(scratch.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root)


def _ask(argv: Sequence[str], *, folder: Path | None = None, may_fail: bool = False) -> str:
    """Run a tool and return what it printed; TargetError with its last lines when it fails."""
    try:
        done = subprocess.run(
            list(argv),
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"{argv[0]} took more than {_SECONDS} s") from None
    told = done.stdout.decode("utf-8", "replace")
    if done.returncode and not may_fail:
        lines = [line for line in told.splitlines() if line.strip()][-3:]
        raise _failed(f"{Path(argv[0]).name} failed with status {done.returncode}: {' | '.join(lines)[-500:]}")
    return told


def _failed(text: str) -> TargetError:
    remedy = "It needs Debian's package archive and a Python package index; look at what the tool said."
    return TargetError(f"the emulated machine cannot be set up: {text}", where=NAME, remedy=remedy)
