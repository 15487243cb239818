"""Children leave nothing behind, print into a log, and say how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from edgekit import children
from edgekit.children import Ended, environment, how_ended, run_child
from sshd import alive, wait_for


def run(code, tmp_path, seconds=60, **more):
    log = tmp_path / "log"
    return run_child(["-c", code], folder=tmp_path, log=log, seconds=seconds, environment=environment(**more))


def test_what_it_prints_goes_to_the_log_and_nothing_to_ours(tmp_path, capfd):
    code = "import os, sys; print(os.getcwd()); sys.stderr.write('words\\n'); os.write(1, b'from C\\n'); sys.exit(3)"
    ended = run(code, tmp_path)
    assert (ended.status, ended.how) == (3, "exit status 3")
    assert str(tmp_path) in ended.log
    assert "from C" in ended.log
    assert ended.last_line == str(tmp_path), "Python's own output comes last: it was buffered"
    assert capfd.readouterr() == ("", "")


def test_it_finds_what_is_found_here_and_inherits_little(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "of ours")
    code = "import edgekit, numpy, os; print(os.environ.get('SECRET'), os.environ['MORE'], edgekit.__file__)"
    words = run(code, tmp_path, MORE="told").last_line.split()
    assert words[:2] == ["None", "told"]
    assert words[2] == sys.modules["edgekit"].__file__


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os.abort()", "signal SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL"),
        ("raise SystemExit(7)", "exit status 7"),
    ],
)
def test_ends_are_named(tmp_path, code, how):
    assert run(code, tmp_path).how == how


def test_what_takes_too_long_ends_with_all_that_it_started(tmp_path):
    marker = str(600 + os.getpid() % 1000 / 1000)
    code = f"import subprocess; subprocess.Popen(['sleep', '{marker}']).wait()"
    ended = run(code, tmp_path, seconds=3)
    assert (ended.status, ended.how) == (None, "too much time")
    wait_for(lambda: not alive(marker))


def test_an_interrupt_here_ends_it(tmp_path, monkeypatch):
    started = []
    real = children.subprocess.Popen

    class Interrupted(real):
        def wait(self, timeout=None):
            started.append(self)
            if len(started) == 1:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(children.subprocess, "Popen", Interrupted)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run("import time; time.sleep(600)", tmp_path)
    assert started[0].poll() is not None
    assert time.monotonic() - begun < 300


def test_last_words_about_memory_are_recognized():
    for words in ("MemoryError", "terminate called ... 'std::bad_alloc'", "libfoo.so: failed to map segment"):
        assert Ended(status=1, log=f"a\n{words}\n").is_out_of_memory
    assert not Ended(status=1, log="MemoryError\nand then it was caught").is_out_of_memory
    assert Ended(status=0, log="").last_line == "no message"
    assert how_ended(None) == "too much time"


def test_a_long_log_is_kept_at_its_end(tmp_path):
    ended = run("print('x' * 200_000); print('the end')", tmp_path)
    assert len(ended.log) <= children.LOG_TAIL
    assert ended.last_line == "the end"


def test_another_thread_can_end_it(tmp_path):
    asked = []

    def stop():
        asked.append(time.monotonic())
        return len(asked) > 2

    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    log = tmp_path / "log"
    ended = run_child(["-c", code], folder=tmp_path, log=log, seconds=300, environment=environment(), stop=stop)
    assert ended.status is None
    assert len(asked) >= 3
    code = "print('done')"
    ended = run_child(
        ["-c", code], folder=tmp_path, log=log, seconds=300, environment=environment(), stop=lambda: False
    )
    assert (ended.status, ended.last_line) == (0, "done")


def test_an_interrupt_while_a_child_starts_does_not_leave_it_behind(monkeypatch):
    """What it would break off is the wait for the child's id: without that nobody could end it."""
    started = []
    real = subprocess.Popen

    def slow(*arguments, **options):
        started.append(real(*arguments, **options))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    monkeypatch.setattr(children.subprocess, "Popen", slow)
    with pytest.raises(KeyboardInterrupt):
        children.start_group(["sleep", "77"])
    assert started[0].returncode == -signal.SIGKILL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
