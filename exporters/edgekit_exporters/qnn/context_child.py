"""The child of `context.compile_context`: `context_child.py JOB.json`. Imports nothing of edgekit.

It runs in a folder of its own with a fixed file name for the model: the names of the compiled graphs, and so the bytes
of the binary, follow from it. Its output is a log: Qualcomm's library prints as it likes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PROVIDER = "QNNExecutionProvider"


def main(argv: list[str]) -> int:
    """Compile one model for one SoC; the exit status is 0 whenever an answer was written."""
    job: dict[str, Any] = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    answer: dict[str, Any] = {"error": ""}
    try:
        _compile(job)
    except Exception as error:  # noqa: BLE001 - whatever onnxruntime raises is the answer
        answer["error"] = f"{type(error).__name__}: {error}"
    part = Path(job["answer"] + ".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    part.replace(job["answer"])
    return 0


def _compile(job: dict[str, Any]) -> None:
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    if not devices:
        raise RuntimeError(f"{PROVIDER} found no device")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 0  # only the log tells why a node is refused
    options.intra_op_num_threads = 1
    entries = {
        "session.disable_cpu_ep_fallback": "0" if job["fallback"] else "1",
        "ep.context_enable": "1",
        "ep.context_file_path": job["context"],
        "ep.context_embed_mode": "0",
    }
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    options.add_provider_for_devices(devices[:1], job["options"])
    session = onnxruntime.InferenceSession(job["model"], options, enable_fallback=0)
    if PROVIDER not in session.get_providers():
        raise RuntimeError(f"{PROVIDER} left the session")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
