"""Context binaries: Qualcomm's HTP compiler, run in a fresh process for each SoC, and what it told.

A process of its own, because the library keeps to the first SoC that it is asked for, prints to stdout, and gives the
same bytes only in a fresh process.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from edgekit.artifact import MAIN
from edgekit.children import environment, run_child
from edgekit.errors import TargetError, UnsupportedError
from edgekit_exporters.qnn.context_child import PROVIDER
from edgekit_exporters.qnn.options import check_options
from edgekit_exporters.qnn.told import Estimate, Refused, count_operators, read_estimate, read_refused

CONTEXT = "model_ctx.onnx"
BINARY = "model_ctx_qnn.bin"
COMPATIBILITY = f"ep_compatibility_info.{PROVIDER}"
"""Key of the graph's metadata under which the provider writes what the binary fits."""

_CHILD = Path(__file__).with_name("context_child.py")
_JOB, _ANSWER, _LOG, _CSV, _TRACE = "job.json", "answer.json", "log.txt", "profile.csv", "qnn_op_trace.json"
_SECONDS = 3600
_SOC_FIELD = 5


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one compilation.

    Attributes:
        folder: holds `CONTEXT` and `BINARY` when it went well.
        soc_model: Qualcomm's number of the SoC.
        compatibility: what the binary fits, in the provider's words: versions and, sixth, the SoC.
        refused: nodes that do not run on the HTP; with fallback they run on the CPU.
        estimate: Qualcomm's own prediction; None for SoCs that it has none for.
        graphs: number of graphs on the HTP; 1 when all is one piece.
        operators: of these graphs, as the HTP runs them.
    """

    folder: Path
    soc_model: int
    compatibility: str
    refused: tuple[Refused, ...]
    estimate: Estimate | None
    graphs: int
    operators: int


def is_installed() -> bool:
    """Say whether `onnxruntime_qnn` is there (the extra `qnn`); it is not imported."""
    return importlib.util.find_spec("onnxruntime_qnn") is not None


def compile_context(folder: Path, options: Mapping[str, str], *, fallback: bool = False) -> Context:
    """Compile `model.onnx` in a folder, which gets the results beside it.

    Args:
        folder: holds `model.onnx` (and its external data) and nothing else.
        options: options of the provider, `soc_model` among them.
        fallback: nodes may stay on the CPU; without it the first such node ends it.

    Raises:
        UnsupportedError: the HTP refuses nodes, or all of them; `refused_of` tells which.
        TargetError: the compiler crashed or took over an hour.
        UsageError: an option that the provider does not know.
    """
    asked = check_options(options, "qnn") | {
        "backend_type": "htp",
        "profiling_level": "detailed",
        "profiling_file_path": _CSV,
        "enable_framework_op_trace": "1",
    }
    job = {"model": MAIN, "context": CONTEXT, "answer": _ANSWER, "options": asked, "fallback": fallback}
    (folder / _JOB).write_text(json.dumps(job), encoding="utf-8")
    for name in (_ANSWER, _LOG, _CSV, _TRACE, CONTEXT, BINARY):
        (folder / name).unlink(missing_ok=True)
    _spawn(folder)
    error = json.loads((folder / _ANSWER).read_text(encoding="utf-8"))["error"]
    refused = read_refused(folder / _TRACE, folder / _LOG, error)
    soc = int(asked["soc_model"])
    if error:
        raise RefusedError(error, refused, soc)
    context = folder / CONTEXT
    if not context.is_file() or not _binaries(folder):
        raise RefusedError("no node runs on the HTP: the compiler gave no binary", refused, soc)
    told, graphs = _read_context(context)
    if told.split(":")[_SOC_FIELD : _SOC_FIELD + 1] != [str(soc)]:
        raise TargetError(
            f"the binary was asked for SoC {soc} and fits '{told}'",
            where="onnxruntime-qnn",
            remedy="Install the versions of the extra: pip install 'edgekit-toolkit[qnn]'",
        )
    return Context(
        folder=folder,
        soc_model=soc,
        compatibility=told,
        refused=refused,
        estimate=read_estimate(folder / _CSV),
        graphs=graphs,
        operators=count_operators(folder / _TRACE),
    )


class RefusedError(UnsupportedError):
    """The HTP does not take a graph; `refused` has the nodes as far as the compiler names them."""

    def __init__(self, text: str, refused: tuple[Refused, ...], soc: int) -> None:
        """Take what onnxruntime said and the nodes."""
        first = refused[0] if refused else None
        super().__init__(
            f"{first.reason} ({text})" if first else text,
            where=f"node '{first.node}' ({first.op}) on SoC {soc}" if first else f"SoC {soc}",
            remedy="Do this step outside the network, choose another recipe, or allow it with --allow-fallback.",
        )
        self.refused = refused
        self.said = text


def _binaries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.bin"))


def _spawn(folder: Path) -> None:
    """Run the child in `folder`; its output goes to a log there."""
    ended = run_child(
        ["-P", str(_CHILD), _JOB], folder=folder, log=folder / _LOG, seconds=_SECONDS, environment=environment()
    )
    if ended.status is None:
        remedy = "Use a faster machine, or a smaller model."
        raise TargetError(f"compiling took over {_SECONDS} s", where="onnxruntime-qnn", remedy=remedy)
    if ended.status or not (folder / _ANSWER).is_file():
        raise TargetError(
            f"Qualcomm's compiler died with {ended.how}: {ended.last_line}",
            where="onnxruntime-qnn",
            remedy="Look for free memory; if there is enough, choose another recipe.",
        )


def _read_context(path: Path) -> tuple[str, int]:
    """Return the compatibility string and the number of graphs on the HTP."""
    import onnx

    model = onnx.load(os.fspath(path), load_external_data=False)
    told = {entry.key: entry.value for entry in model.metadata_props}
    return told.get(COMPATIBILITY, ""), sum(node.op_type == "EPContext" for node in model.graph.node)
