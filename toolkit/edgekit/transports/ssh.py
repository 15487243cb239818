"""The ssh transport: a machine that the OpenSSH client reaches.

The user's own ssh configuration decides how (`~/.ssh/config`, or the file that EDGEKIT_SSH_CONFIG names): host
aliases, keys, jump hosts, and whether unknown host keys are accepted. edgekit never loosens that. Everything goes
through one connection (ControlMaster), and what runs on the far side ends when that breaks.

The far side needs a POSIX shell, coreutils and Python 3.8 or later with numpy: EDGEKIT_REMOTE_PYTHON when set, else
`~/.edgekit/bin/python`, else `python3`.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from edgekit.artifact import digest, sha256_file
from edgekit.children import start_group
from edgekit.errors import LinkError, TargetError
from edgekit.transport import Completed
from edgekit.transports import far_side
from edgekit.transports.address import parse_url
from edgekit.transports.local import check_name, sweep
from edgekit.transports.process import Tail, end_group, run_process

CONNECT = 10
"""Seconds in which a machine must answer."""
ASK = 60
"""Seconds that a short question to the far side may take."""
SLOWEST = 50e3
"""Bytes per second under which a copy is given up."""
UNREACHABLE = 255
"""Exit status of ssh itself; the far side's commands never end with it."""

_PREFIX = "edgekit-ssh-"
_REMEDIES = (
    (
        r"host key",
        "edgekit trusts no host key on its own. Connect once by hand and compare the key: {login}",
    ),
    (
        r"permission denied|too many authentication",
        "Give the machine a key of yours, without a passphrase or in ssh-agent: ssh-copy-id {words}",
    ),
    (r"could not resolve", "Check the name of the machine, or give it one in ~/.ssh/config."),
    (r"", "Check that the machine is on and that this works: {login}"),
)


class SshTransport:
    """Runs commands on another machine.

    Attributes:
        url: `ssh://[user@]host[:port]`.
        python: the far side's interpreter, once open.
        title: what people call the machine.
        said: gets each line that a running command writes to standard error; None: nobody listens.
    """

    def __init__(self, url: str) -> None:
        """Take a URL; UsageError when it is none."""
        self.address = parse_url(url)
        self.url = url.rstrip("/")
        self.title = f"ssh {self.address.host}"
        self.far = True
        self.python = ""
        self.folder = ""
        self.said: Callable[[str], None] | None = None
        self._control: Path | None = None
        self._holder: subprocess.Popen[bytes] | None = None
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        self._owner = (
            f"{getpass.getuser()}@{platform.node()} pid {os.getpid()} since {started} ({secrets.token_hex(4)})"
        )

    def open(self) -> None:
        """Connect, take the machine's lock, find its Python."""
        if shutil.which("ssh") is None:
            raise TargetError("there is no ssh client", where="ssh", remedy="Install it: apt install openssh-client")
        # in /tmp: the path of a socket must be short, and TMPDIR may be long
        sweep(Path("/tmp"), _PREFIX)  # noqa: S108 - only what edgekit made there
        self._control = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))
        try:
            self._take_lock()
            self.python = self._find_python()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock and the connection."""
        holder, self._holder = self._holder, None
        if holder is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                if holder.stdin is not None:
                    holder.stdin.close()  # the far side's holder sees it and removes the lock
                holder.wait(CONNECT)
            end_group(holder)
        if self._control is not None:
            with contextlib.suppress(OSError):
                run_process([*self.command()[:-2], "-O", "exit", "--", self.address.host], timeout=CONNECT)
            shutil.rmtree(self._control, ignore_errors=True)
            self._control = None

    def push(self, source: Path, name: str) -> str:
        """Copy a file to `name` in the work folder, going on where a broken copy ended; return its path."""
        check_name(name)
        wanted, size = sha256_file(source), source.stat().st_size
        part = f".part-{wanted[:32]}"  # named by content: what is there is a beginning of it
        found, offset = self._ask(far_side.LOOK, self.folder, name, part)[:2]
        if found != wanted:
            with open(source, "rb") as file:
                file.seek(int(offset) if int(offset) <= size else 0)
                start = file.tell()
                script = [far_side.STORE, self.folder, name, part, wanted, str(size), str(start)]
                done = self._remote(script, timeout=ASK + (size - start) / SLOWEST, source=file)
            if done.status:
                raise TargetError(
                    f"cannot store '{name}' on the machine: {_last_line(done.stderr) or f'status {done.status}'}",
                    where=self.url,
                    remedy=f"Check the free space under {self.folder} there, then try again.",
                )
        return f"{self.folder}/{name}"

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Run a command in the work folder; it is killed when the link breaks or `timeout` is over."""
        limit = str(int(timeout) + 2)  # seconds after which the far side ends it on its own
        return self._remote([far_side.RUN, limit, self.folder, *argv], timeout=timeout, said=self.said)

    def pull(self, name: str, destination: Path) -> None:
        """Copy `name` from the work folder to a file."""
        wanted, size = self._ask(far_side.LOOK, self.folder, check_name(name), name)[:2]
        if wanted == "-":
            raise TargetError(f"there is no '{name}' on the machine", where=f"{self.url}{self.folder}")
        part = destination.with_name(f".{os.getpid()}.part")
        try:
            with open(part, "wb") as file:
                done = self._remote([far_side.FETCH, self.folder, name], timeout=ASK + int(size) / SLOWEST, sink=file)
            with open(part, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if done.status or found != wanted:
                raise TargetError(
                    f"'{name}' did not arrive whole: {_last_line(done.stderr) or 'other bytes than there'}",
                    where=self.url,
                    remedy="Try again; a login shell that prints something (.bashrc) also garbles what is copied.",
                )
            part.replace(destination)
        finally:
            part.unlink(missing_ok=True)

    def command(self) -> list[str]:
        """Return the ssh command up to and with the host; what follows runs there."""
        config = os.environ.get("EDGEKIT_SSH_CONFIG")
        return [
            "ssh",
            *(["-F", config] if config else []),
            "-T",
            *("-o", "BatchMode=yes"),
            *("-o", f"ConnectTimeout={CONNECT}"),
            *("-o", "ServerAliveInterval=5"),
            *("-o", "ServerAliveCountMax=3"),
            *("-o", "ControlMaster=auto"),
            *("-o", f"ControlPath={self._control}/link"),
            *("-o", "ControlPersist=60"),
            *("-o", "ClearAllForwardings=yes"),
            *("-o", "RemoteCommand=none"),
            *self.address.options(),
            "--",
            self.address.host,
        ]

    def remote_argv(self, script: Sequence[str]) -> list[str]:
        """Return the command that runs a script of ours with arguments there.

        ssh joins what it is given and hands it to the login shell: every word is quoted for it, and reaches the
        script as an argument, never as part of it.
        """
        text, *arguments = script
        return [*self.command(), shlex.join(["sh", "-c", text, "edgekit", *arguments])]

    def _remote(
        self,
        script: Sequence[str],
        *,
        timeout: float,
        source: BinaryIO | None = None,
        sink: BinaryIO | None = None,
        said: Callable[[str], None] | None = None,
    ) -> Completed:
        if self._holder is None or self._holder.poll() is not None:
            raise self._broken("the link broke" if self._holder else "the transport is not open")
        try:
            argv, hold = self.remote_argv(script), source is None
            done = run_process(argv, timeout=timeout, source=source, sink=sink, hold=hold, said=said)
        except TimeoutError as error:
            raise TargetError(
                f"the machine was stopped at its work: {error}",
                where=self.url,
                remedy="Give it more time or less work.",
            ) from None
        if done.status == UNREACHABLE:
            raise self._broken(_last_line(done.stderr) or "the link broke")
        return done

    def _ask(self, *script: str) -> list[str]:
        """Run a script and return the words that it answers."""
        done = self._remote(script, timeout=ASK)
        answer = _answer(done.stdout)
        if done.status or answer is None:
            raise TargetError(
                f"the machine does not answer: {_last_line(done.stderr) or f'status {done.status}'}",
                where=self.url,
                remedy=f"It needs a POSIX shell, coreutils (sha256sum) and room under {self.folder or '~/.cache'}.",
            )
        return answer.split(" ")

    def _take_lock(self) -> None:
        """Start the process over there that holds the lock while this connection lives."""
        identity = digest([getpass.getuser(), platform.node()])[:12]
        self._holder = start_group(
            self.remote_argv([far_side.HOLD, identity, self._owner]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        streams = Tail(self._holder.stdout), Tail(self._holder.stderr)
        deadline = time.monotonic() + CONNECT + ASK
        while (answer := _answer(streams[0].text())) is None and self._holder.poll() is None:
            if time.monotonic() > deadline:
                raise self._broken("it does not answer")
            time.sleep(0.01)
        if answer is None:
            streams[0].wait(1), streams[1].wait(1)
            answer = _answer(streams[0].text()) or ""
        what, _, rest = answer.partition(" ")
        if what == "held":
            raise TargetError(
                f"the machine is in use: {rest}",
                where=self.url,
                remedy="Wait until that is done. If it hangs there, end the process that holds the lock.",
            )
        if what != "work":
            raise self._broken(_last_line(streams[1].text()) or "the login shell does not run commands")
        self.folder = rest

    def _find_python(self) -> str:
        named = os.environ.get("EDGEKIT_REMOTE_PYTHON")
        done = self._remote([far_side.PYTHONS, far_side.CHECK, *([named] if named else [])], timeout=ASK)
        found = [json.loads(line) for line in _answers(done.stdout)]
        install = "python3 -m venv --system-site-packages ~/.edgekit && ~/.edgekit/bin/pip install numpy onnxruntime"
        remedy = f"Run on the machine: {install} (or name an interpreter with EDGEKIT_REMOTE_PYTHON)."
        if not found:
            text = f"'{named}' is no Python 3.8 or later there" if named else "there is no Python 3.8 or later"
            raise TargetError(text, where=self.url, remedy=remedy)
        best = max(found, key=lambda one: ("numpy" in one["has"], len(one["has"])))
        if "numpy" not in best["has"]:
            raise TargetError(f"{best['path']} has no numpy", where=self.url, remedy=remedy)
        return str(best["path"])

    def _broken(self, text: str) -> LinkError:
        words = shlex.join([*self.address.options(), self.address.host])
        remedy = next(remedy for pattern, remedy in _REMEDIES if re.search(pattern, text, re.IGNORECASE))
        remedy = remedy.format(login=f"ssh {words}", words=words)
        return LinkError(f"the machine cannot be reached: {text}", where=self.url, remedy=remedy)


def _answers(stdout: str) -> list[str]:
    """Return what the far side's scripts answered, without what a login shell printed around it."""
    return [line.removeprefix(far_side.MARK) for line in stdout.splitlines() if line.startswith(far_side.MARK)]


def _answer(stdout: str) -> str | None:
    whole = stdout[: stdout.rfind("\n") + 1]
    return next(iter(_answers(whole)), None)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""
