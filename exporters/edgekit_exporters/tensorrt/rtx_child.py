"""The child of `rtx.check_with_rtx`: `rtx_child.py MODEL RESULT parse|build SHAPES`. Imports nothing of edgekit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(argv: list[str]) -> int:
    """Parse (and build) a model; the exit status is 0 whenever an answer was written."""
    import tensorrt_rtx as trt

    model, result, how, shapes = argv[0], Path(argv[1]), argv[2], json.loads(argv[3])
    messages: list[str] = []

    class Log(trt.ILogger):  # type: ignore[misc]  # the library has no type information
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in {trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR}:
                messages.append(message)

    logger = Log()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    answer: dict[str, Any] = {"version": trt.__version__, "errors": []}
    if not parser.parse_from_file(model):
        for number in range(parser.num_errors):
            error = parser.get_error(number)
            answer["errors"].append({"node": error.node_name(), "op": error.node_operator(), "text": error.desc()})
        answer["errors"] = answer["errors"] or _said(messages, "the parser refused the model")
    elif how == "build":
        engine = _build(trt, builder, network, shapes)
        if engine is None:
            answer["errors"] = _said(messages, "the builder gave no engine")
        else:
            answer["engine_bytes"] = int(engine.nbytes)
    result.write_text(json.dumps(answer), encoding="utf-8")
    return 0


def _build(trt: Any, builder: Any, network: Any, shapes: dict[str, list[list[int]]]) -> Any:
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    if shapes:
        profile = builder.create_optimization_profile()
        for name, (low, usual, high) in shapes.items():
            profile.set_shape(name, tuple(low), tuple(usual), tuple(high))
        config.add_optimization_profile(profile)
    return builder.build_serialized_network(network, config)


def _said(messages: list[str], otherwise: str) -> list[dict[str, str]]:
    return [{"node": "", "op": "", "text": message} for message in messages or [otherwise]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
