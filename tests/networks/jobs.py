"""Jobs for the child process of test_child: imported there by name."""

import os
import signal
import sys
import time

from edgekit import events
from edgekit.errors import UnsupportedError


def echo(arguments, _tell):
    sys.stdout.write("noise that must not mix with the protocol\n")
    os.write(1, b"noise from below Python\n")
    return {
        "got": arguments,
        "hash": hash("x"),
        "threads": os.environ["OMP_NUM_THREADS"],
        "torch": "torch" in sys.modules,
    }


def tells(_arguments, tell):
    tell(events.Progress(label="half", done=1, total=2))
    tell(events.Found(finding=events.Finding(severity="note", node="n", rule="r", text="t")))


def refuses(_arguments, _tell):
    raise UnsupportedError("no", where="here", remedy="do that")


def bug(_arguments, _tell):
    raise ZeroDivisionError("oops")


def dies(arguments, _tell):
    sys.stderr.write("last words\n")
    sys.stderr.flush()
    os.kill(os.getpid(), getattr(signal, arguments["signal"]))


def exits(_arguments, _tell):
    os._exit(3)


def needs(arguments, _tell):
    raise ModuleNotFoundError(f"No module named '{arguments['name']}'", name=arguments["name"])


def sleeps(arguments, _tell):
    with open(arguments["file"], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
