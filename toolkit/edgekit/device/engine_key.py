"""Which TensorRT takes which flags, and what an engine is cached by. Standard library, Python 3.8.

An engine fits one TensorRT, one GPU and one set of options only: all of them are its key.
"""

import contextlib
import hashlib
import json
import os
import re
from typing import Any, Dict, List, Tuple

if __package__:
    from . import builds
else:
    import builds  # type: ignore[import-not-found,no-redef]

PLAIN = builds.Build()


def major(version: str) -> int:
    """Return the major version; ValueError when it is none."""
    return int(version.split(".", 1)[0])


STRONG, ALWAYS_STRONG = 9, 11
"""The major versions from which strong typing can be asked for, and from which there is nothing else."""
OLDEST = (8, 5)
"""The first version with the calls by tensor name that are used here (JetPack 5.1)."""
SKIP_INFERENCE = (8, 6)
DLA = ("DLA", "GPU_FALLBACK")
NO_MEMORY = re.compile("out ?of ?memory|memoryallocation|insufficient memory|failed to allocate", re.IGNORECASE)
"""What TensorRT says when memory runs out."""


def check_version(version: str, build: builds.Build = PLAIN) -> None:
    """Raise RuntimeError when a TensorRT is too old, or cannot do what is asked, with what to do."""
    if builds.numbers(version)[:2] < OLDEST:
        raise RuntimeError(
            "TensorRT {} is older than {}.{}: update JetPack to 5.1 or later".format(version, OLDEST[0], OLDEST[1])
        )
    builds.check(version, build)


def typing_flags(version: str, build: builds.Build = PLAIN) -> Tuple[List[str], List[str]]:
    """Return (network creation flags, builder flags) by name for an ONNX file.

    Its precisions are explicit (Q/DQ, Cast). 8.x knows no strong typing: explicit batch must be said, and INT8 and
    FP16 kernels must be allowed for Q/DQ and half tensors. 9 and 10 take the types from the graph when they are told
    to. 11 always does, without the old flags. With a calibration the network is weakly typed instead.
    """
    batch = ["EXPLICIT_BATCH"] if major(version) < STRONG else []
    more = ["SPARSE_WEIGHTS"] if build.sparse else []
    if build.calibrated:
        return batch, ["INT8", "FP16", "PREFER_PRECISION_CONSTRAINTS", *more]
    if major(version) < STRONG:
        return batch, ["INT8", "FP16", *more]
    return (["STRONGLY_TYPED"] if major(version) < ALWAYS_STRONG else []), more


def trtexec_typing(version: str, build: builds.Build = PLAIN, cache: str = "") -> List[str]:
    """Return the same choice in trtexec's words; `cache`: the file with the calibration."""
    more = ["--sparsity=enable"] if build.sparse else []
    if build.calibration is not None:
        words = ["--int8", "--fp16", "--calib=" + cache]
        half = ",".join("{}:fp16".format(name) for name in build.calibration.half)
        return words + (["--precisionConstraints=prefer", "--layerPrecisions=" + half] if half else []) + more
    if major(version) < STRONG:
        return ["--int8", "--fp16", *more]
    return (["--stronglyTyped"] if major(version) < ALWAYS_STRONG else []) + more


def build_only(version: str) -> str:
    """Return trtexec's flag for building without a run: it has another name up to 8.5."""
    return "--buildOnly" if builds.numbers(version)[:2] < SKIP_INFERENCE else "--skipInference"


def engine_parts(version: str, api: str, gpu: str, build: builds.Build = PLAIN) -> Dict[str, Any]:
    """Return everything but the graph that an engine depends on.

    The power mode is none of it: an engine runs in all of them, and what is measured names it. No timing cache is
    used, so that there is none to name.

    Args:
        version: TensorRT's exact version.
        api: what builds it, `python` or `trtexec`.
        gpu: GPU with its compute capability, module, L4T, packages and CUDA, see `engines.gpu_key`.
        build: how it is built.
    """
    network, builder = typing_flags(version, build)
    flags = [*network, *builder] + (list(DLA) if build.dla_core is not None else [])
    return {
        "tensorrt": version,
        "api": api,
        "gpu": gpu,
        "flags": flags,
        "timing_cache": None,
        "revision": 3,
        **build.key(),
    }


def engine_path(model: str, parts: Dict[str, Any]) -> str:
    """Return where the engine of a model is cached: beside it, keyed by its bytes and by `parts`.

    Its bytes are those of the graph and of every file below its folder that the graph names (external data), so that
    nothing else that lies there matters. `parts`: the exact TensorRT version, the GPU, and everything else that an
    engine is not portable across.
    """
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    folder = os.path.dirname(os.path.abspath(model))
    with open(model, "rb") as file:
        graph = file.read()
    key.update(graph)
    paths = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    for path in sorted(paths):
        name = os.path.relpath(path, folder).encode("utf-8", "surrogateescape")
        if name not in graph or os.path.samefile(path, model):
            continue
        key.update(b"\0" + name + b"\0")
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                key.update(block)
    return "{}.{}.engine".format(model, key.hexdigest()[:24])


def remove(path: str) -> None:
    """Remove a file, if it is there and can be."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def write_about(engine: str, parts: Dict[str, Any], seconds: float) -> None:
    """Write beside an engine what it was built of, and for how long; a folder that cannot be written has none."""
    try:
        with open(engine + ".json", "w", encoding="utf-8") as file:
            json.dump(dict(parts, build_seconds=round(seconds, 3)), file, indent=1, sort_keys=True)
    except OSError:
        pass
