"""Builds every model of `tests/wild.py` for some devices and recipes, and checks what comes out.

    PYTHONPATH=toolkit:tests python benchmarks/wild/builds.py FOLDER [--only MODEL,...] [--jobs host-int8,...]

Appends one JSON line per build to FOLDER/results.jsonl and prints a table: exit status, the distance of the packaged
model from the original as it came (onnxruntime runs both here, over all samples: not what edgekit reports), coverage,
seconds, peak memory, number of findings. Then `verify`, `run`, `inspect` and `predict` are tried on it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from wild import MODELS, feeds, fetch, write_data

JOBS = {
    "host-fp32": ["--profile", "host", "--recipe", "fp32"],
    "host-fp16": ["--profile", "host", "--recipe", "fp16"],
    "host-int8": ["--profile", "host", "--recipe", "int8"],
    "jetson-int8": ["--profile", "jetson", "--recipe", "int8"],
    "snapdragon-int8": ["--profile", "snapdragon", "--recipe", "int8"],
}
_ROOT = Path(__file__).parents[2]


def edgekit(arguments: list[str], home: Path) -> tuple[int, dict[str, Any], float, float, str]:
    """Run a command with `--json`: exit status, its object, seconds, peak MB of the largest process, and stderr."""
    paths = os.pathsep.join(str(_ROOT / part) for part in ("toolkit", "exporters"))
    env = os.environ | {"EDGEKIT_HOME": str(home), "PYTHONPATH": paths}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "edgekit", *arguments, "--json"], stdout=out, stderr=err, env=env
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        out.seek(0)
        err.seek(0)
        text, errors = out.read().decode(), err.read().decode()
    code = os.waitstatus_to_exitcode(status)
    try:
        told = json.loads(text)
    except ValueError:
        told = {"no JSON": text[-500:]}
    return code, told, seconds, usage.ru_maxrss / 1024, errors


def sqnr(name: str, original: Path, candidate: Path, *, fixed: bool) -> dict[str, float]:
    """Return the signal over noise in dB per float output, and the share of equal values per other output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    sessions = [onnxruntime.InferenceSession(str(path), options) for path in (original, candidate)]
    kinds = {item.name: item.type for item in sessions[1].get_inputs()}
    totals: dict[str, list[float]] = {}
    for feed in feeds(name, fixed=fixed):
        mine = {k: v.astype(np.float16) if kinds.get(k) == "tensor(float16)" else v for k, v in feed.items()}
        # a runtime may take narrower indices than the model that came in
        mine = {k: v.astype(np.int32) if kinds.get(k) == "tensor(int32)" else v for k, v in mine.items() if k in kinds}
        results = zip(sessions[0].run(None, feed), sessions[1].run(None, mine), strict=True)
        for output, (left, right) in zip(sessions[0].get_outputs(), results, strict=True):
            total = totals.setdefault(output.name, [0.0, 0.0])
            if left.shape != right.shape:
                total[1] = np.inf
            elif left.dtype.kind == "f":
                total[0] += float(np.square(left, dtype=np.float64).sum())
                total[1] += float(np.square(left.astype(np.float64) - right.astype(np.float64)).sum())
            else:
                total[0] += left.size
                total[1] += float((left != right).sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        return {key: round(float(10 * np.log10(np.divide(s, n))), 1) for key, (s, n) in totals.items()}


def look(package: str, name: str, original: Path, data: Path, home: Path, *, fixed: bool) -> dict[str, Any]:
    """Try what else the command line does with a package."""
    seen: dict[str, Any] = {}
    for words in (
        ["verify", package],
        ["run", package, str(next(iter(sorted(data.iterdir()))))],
        ["inspect", package],
        ["predict", package, "--profile", "jetson"],
    ):
        code, told, seconds, _, errors = edgekit(words, home)
        seen[words[0]] = {"exit": code, "seconds": round(seconds, 1), "error": told.get("error") or errors[-300:]}
    from edgekit.package import extract_package

    with tempfile.TemporaryDirectory() as folder:
        try:
            seen["sqnr"] = sqnr(name, original, extract_package(Path(package), Path(folder) / "p").model, fixed=fixed)
        except Exception as error:  # noqa: BLE001 - any failure is a result here
            seen["sqnr"] = repr(error)[:300]
    return seen


def one(name: str, job: str, folder: Path, *, shapes: bool) -> dict[str, Any]:
    """Build one model one way; return the line of the table."""
    original, data = fetch(name, folder), write_data(name, folder, fixed=shapes)
    home, out = folder / "home", folder / "out" / f"{name}-{job}"
    extra = [word for shape in MODELS[name].shapes for word in ("--shape", shape)] if shapes else []
    words = ["build", str(original), *JOBS[job], "--data", str(data), "--out", str(out), *extra]
    code, told, seconds, memory, errors = edgekit(words, home)
    line: dict[str, Any] = {
        "model": name,
        "job": job + ("+shape" if shapes else ""),
        "exit": code,
        "seconds": round(seconds, 1),
        "MB": round(memory),
        "error": told.get("error"),
        "stderr": errors[-1500:],
        "checks": told.get("checks"),
        "coverage": told.get("coverage"),
        "findings": told.get("findings"),
        "stages": [(stage["name"], round(stage["seconds"], 1)) for stage in told.get("stages", ())],
        "package": told.get("package"),
    } | ({} if "exit" in told else told)
    if told.get("package"):
        line["look"] = look(told["package"], name, original, data, home, fixed=shapes)
    return line


def shown(line: dict[str, Any]) -> str:
    """Return one row."""
    seen = line.get("look", {})
    found = seen.get("sqnr", {})
    dbs = " ".join(f"{value}" for value in found.values()) if isinstance(found, dict) else found
    share = (line.get("coverage") or {}).get("weights")
    bad = " ".join(f"{k}:{v['exit']}" for k, v in seen.items() if isinstance(v, dict) and v.get("exit"))
    error = (line.get("error") or {}).get("text", "")[:150]
    return (
        f"{line['model']:18} {line['job']:22} {line['exit']:3} {dbs:24} {share!s:8.8} {line['seconds']:6.1f} s"
        f" {line['MB']:6} MB {len(line.get('findings') or ()):3} findings {bad} {error}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--shapes", action="store_true", help="give --shape even where it is not needed")
    options = parser.parse_args()
    for name in options.only.split(","):
        for job in options.jobs.split(","):
            line = one(name, job, options.folder, shapes=options.shapes)
            with (options.folder / "results.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(shown(line), flush=True)


if __name__ == "__main__":
    main()
