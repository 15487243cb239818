"""The child process: `python -m edgekit.graphs.probe FOLDER` does the task in FOLDER/request.json.

It runs under the limits of the request and writes FOLDER/result.json: `{"result": ...}` or `{"error": ...}`.
Everything that parses, converts or runs a model that nobody has vetted yet happens here.
"""

from __future__ import annotations

import errno
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from edgekit.errors import EdgekitError, InputError
from edgekit.graphs.child import GIB, confine

TASKS = {
    "intake": "edgekit.graphs.intake:intake",
    "dynamic": "edgekit.graphs.dynamic:probe_axes",
    "shapes": "edgekit.graphs.sessions:record_shapes",
    "compare": "edgekit.graphs.sessions:compare_files",
    "slim": "edgekit.graphs.slim:slim_file",
}
"""Task name -> `module:function`; each takes the request's arguments by name and returns JSON values."""


def main(argv: list[str]) -> int:
    """Do one task; the exit status is 0 whenever a result, also an error, was written."""
    private = Path(argv[0])
    order = json.loads((private / "request.json").read_text(encoding="ascii"))
    confine(order["limits"])
    answer: dict[str, Any]
    try:
        module, _, function = TASKS[order["task"]].partition(":")
        answer = {"result": getattr(importlib.import_module(module), function)(**order["request"])}
    except EdgekitError as error:
        answer = _failure(error)
    except MemoryError:
        answer = _failure(
            InputError(
                f"work on the model needs more than {order['limits']['memory'] / GIB:.1f} GiB of memory",
                remedy="The model is damaged, or too large for this machine.",
            )
        )
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        answer = _failure(
            InputError(
                f"work on the model wrote a file of more than {order['limits']['file']} bytes",
                remedy="The model is damaged, or larger than the limits allow.",
            )
        )
    (private / "result.json").write_text(json.dumps(answer), encoding="ascii")
    return 0


def _failure(error: EdgekitError) -> dict[str, Any]:
    return {"error": {"kind": error.kind, "text": error.text, "where": error.where, "remedy": error.remedy}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
