"""The adb transport: an Android device that Android's debug bridge reaches, by USB or network.

The device needs Python 3.8 or later with numpy and onnxruntime, run by the shell user: EDGEKIT_REMOTE_PYTHON when set,
else `/data/local/tmp/edgekit/python/bin/python3`. Qualcomm's libraries (libQnnHtp.so, its stub and the skeleton for the
DSP) lie in `/data/local/tmp/edgekit/lib`; the paths that the loader and the DSP look in are set for what runs.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import platform
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from edgekit.artifact import digest, sha256_file
from edgekit.errors import TargetError, UsageError
from edgekit.transport import Completed
from edgekit.transports.local import check_name
from edgekit.transports.process import run_process

ROOT = "/data/local/tmp/edgekit"
"""The one place where the shell user may keep programs."""
PYTHON = f"{ROOT}/python/bin/python3"
LIBRARIES = f"{ROOT}/lib"
DSP = f"{LIBRARIES};/vendor/lib/rfsa/adsp;/vendor/dsp/cdsp;/system/lib/rfsa/adsp"
"""Where the DSP looks for its skeleton library; entries are separated by semicolons."""

ASK = 60
"""Seconds that a short question to the device may take."""
SLOWEST = 200e3
"""Bytes per second under which a copy is given up."""
MARK = "edgekit: "

_SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_STATES = (
    ("unauthorized", "Unlock the device and allow USB debugging for this computer."),
    ("offline", "Plug it in again, or restart the bridge: adb kill-server"),
    ("no permissions", "Give your user access to USB devices (udev rules of the package android-sdk-platform-tools)."),
    ("", "Look what is there: adb devices -l"),
)

HOLD = """
umask 077
mkdir -p "$1/$2" || exit 1
if ! mkdir "$1/lock" 2>/dev/null; then
    echo "edgekit: held $(cat "$1/lock/owner" 2>/dev/null)"
    exit 0
fi
echo "$3" >"$1/lock/owner"
echo "edgekit: work $1/$2"
"""
"""$1 root, $2 work folder's name, $3 who we are: takes the lock, or says who has it."""

FREE = """
rm -rf "$1/lock"
"""
"""$1 root: releases the lock."""

CHECK = """
"$1" -c "import sys, numpy; print(\\"edgekit: python\\", *sys.version_info[:2])" </dev/null
"""
"""$1 interpreter: its version, when it has numpy."""

SUM = """
sum=-
[ -f "$1" ] && sum=$(sha256sum <"$1")
echo "edgekit: sum ${sum%% *}"
"""
"""$1 file: its sha256, `-` when it is not there."""

PLACE = """
case $1 in */*) mkdir -p "${1%/*}" ;; esac
mv -f "$2" "$1"
"""
"""$1 name, $2 what was pushed: puts it there at once."""

RUN = """
limit=$1
cd "$2" || exit 1
export LD_LIBRARY_PATH="$3" ADSP_LIBRARY_PATH="$4"
shift 4
exec timeout "$limit" "$@" </dev/null
"""
"""$1 seconds, $2 work folder, $3 and $4 library paths, $5... the command."""


class AdbTransport:
    """Runs commands on an Android device.

    Attributes:
        url: `adb://SERIAL`.
        python: the device's interpreter, once open.
        title: what people call the device.
    """

    def __init__(self, url: str) -> None:
        """Take `adb://SERIAL`; UsageError when it is none."""
        self.serial = url.partition("://")[2].rstrip("/")
        if not url.startswith("adb://") or not _SERIAL.fullmatch(self.serial):
            remedy = "Write it like adb://SERIAL, with a serial of `adb devices`."
            raise UsageError(f"'{url}' is no adb URL", remedy=remedy)
        self.url = f"adb://{self.serial}"
        self.title = f"adb {self.serial}"
        self.python = ""
        self.folder = ""

    def open(self) -> None:
        """Look for the device, take its lock, find its Python."""
        if shutil.which("adb") is None:
            raise TargetError(
                "there is no adb", where="adb", remedy="Install Android's platform tools: apt install adb"
            )
        self._check_state()
        owner = f"{getpass.getuser()}@{platform.node()} pid {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        identity = digest([getpass.getuser(), platform.node()])[:12]
        what, _, rest = self._ask(HOLD, ROOT, identity, owner).partition(" ")
        if what != "work":
            raise TargetError(
                f"the device is in use: held by {rest}",
                where=self.url,
                remedy=f"Wait until that is done. If nobody works there: adb -s {self.serial} shell rm -r {ROOT}/lock",
            )
        self.folder = rest
        try:
            self.python = self._find_python()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock."""
        if self.folder:
            with contextlib.suppress(TargetError):
                self._shell(FREE, ROOT, timeout=ASK)
            self.folder = ""

    def push(self, source: Path, name: str) -> str:
        """Copy a file to `name` in the work folder; skipped when it is there; return its path."""
        target = f"{self._work()}/{check_name(name)}"
        wanted = sha256_file(source)
        if self._sum(target) != wanted:
            part = f"{self.folder}/.part-{wanted[:32]}"
            done = self._adb(["push", str(source), part], timeout=ASK + source.stat().st_size / SLOWEST)
            if done.status or self._sum(part) != wanted:
                raise TargetError(
                    f"cannot store '{name}' on the device: {_last_line(done.stderr) or 'other bytes arrived'}",
                    where=self.url,
                    remedy=f"Check the free space there: adb -s {self.serial} shell df /data/local/tmp",
                )
            placed = self._shell(PLACE, target, part, timeout=ASK)
            if placed.status:
                raise TargetError(f"cannot place '{name}': {_last_line(placed.stderr)}", where=self.url)
        return target

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Run a command in the work folder; the device ends it when `timeout` is over."""
        return self._shell(RUN, str(int(timeout)), self._work(), LIBRARIES, DSP, *argv, timeout=timeout + ASK)

    def pull(self, name: str, destination: Path) -> None:
        """Copy `name` from the work folder to a file."""
        source = f"{self._work()}/{check_name(name)}"
        wanted = self._sum(source)
        if wanted == "-":
            raise TargetError(f"there is no '{name}' on the device", where=self.url)
        part = destination.with_name(f".{os.getpid()}.part")
        try:
            done = self._adb(["pull", source, str(part)], timeout=ASK * 60)
            found = ""
            if not done.status:
                with open(part, "rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != wanted:
                text = f"'{name}' did not arrive whole: {_last_line(done.stderr)}".rstrip(": ")
                raise TargetError(text, where=self.url, remedy="Try again, with another cable if it is one.")
            part.replace(destination)
        finally:
            part.unlink(missing_ok=True)

    def argv(self, words: Sequence[str]) -> list[str]:
        """Return the adb command for this device."""
        return ["adb", "-s", self.serial, *words]

    def shell_argv(self, script: str, *arguments: str) -> list[str]:
        """Return the command that runs a script of ours with arguments there.

        adb joins what it is given and hands it to the device's shell: every word is quoted for it, and reaches the
        script as an argument, never as part of it.
        """
        return self.argv(["shell", "-T", "-n", shlex.join(["sh", "-c", script, "edgekit", *arguments])])

    def _work(self) -> str:
        if not self.folder:
            raise TargetError("the transport is not open", where=self.url)
        return self.folder

    def _shell(self, script: str, *arguments: str, timeout: float) -> Completed:
        return self._start(self.shell_argv(script, *arguments), timeout)

    def _adb(self, words: Sequence[str], *, timeout: float) -> Completed:
        return self._start(self.argv(words), timeout)

    def _start(self, argv: Sequence[str], timeout: float) -> Completed:
        try:
            done = run_process(argv, timeout=timeout)
        except TimeoutError as error:
            remedy = "Give it more time or less work."
            raise TargetError(f"the device was stopped at its work: {error}", where=self.url, remedy=remedy) from None
        if done.status and re.search(r"^(error|adb): .*(device|offline|unauthorized)", done.stderr, re.MULTILINE):
            raise self._gone(_last_line(done.stderr))
        return done

    def _ask(self, script: str, *arguments: str) -> str:
        """Run a script and return what it answers behind `MARK`."""
        done = self._shell(script, *arguments, timeout=ASK)
        lines = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
        if done.status or not lines:
            text = f"the device does not answer: {_last_line(done.stderr) or f'status {done.status}'}"
            raise TargetError(text, where=self.url, remedy=f"The shell user must be able to write {ROOT}.")
        return lines[0].strip()

    def _sum(self, path: str) -> str:
        return self._ask(SUM, path).removeprefix("sum ")

    def _check_state(self) -> None:
        done = self._adb(["get-state"], timeout=ASK)
        if done.stdout.strip() != "device":
            raise self._gone(_last_line(done.stderr) or f"it is '{done.stdout.strip()}'")

    def _find_python(self) -> str:
        path = os.environ.get("EDGEKIT_REMOTE_PYTHON") or PYTHON
        done = self._shell(CHECK, path, timeout=ASK)
        if done.status or MARK not in done.stdout:
            raise TargetError(
                f"{path} is no Python with numpy there: {_last_line(done.stderr) or f'status {done.status}'}",
                where=self.url,
                remedy=f"Push one to {ROOT}/python (docs/transports.md), or name it with EDGEKIT_REMOTE_PYTHON.",
            )
        return path

    def _gone(self, text: str) -> TargetError:
        remedy = next(remedy for word, remedy in _STATES if word in text.lower())
        return TargetError(f"the device cannot be reached: {text}", where=self.url, remedy=remedy)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
