"""Device profiles: a device as data. TOML files, at most one `extends`, unknown keys are errors."""

from __future__ import annotations

from typing import Any

import msgspec


class Sourced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number and where it comes from: a document, a measurement, or `estimated`."""

    value: float
    source: str


class Cpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processor: `arch` as `platform.machine()` says it, instruction set features such as `avx512_vnni`, `dotprod`."""

    arch: str
    cores: Sourced
    features: tuple[str, ...] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Total memory in MB (10^6 bytes) and peak bandwidth in GB/s."""

    ram_mb: Sourced
    bandwidth_gbs: Sourced


class Compute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak dense throughput of the engine that runs the model, in 10^12 operations per second (1 MAC = 2)."""

    fp32_tops: Sourced
    fp16_tops: Sourced | None = None
    int8_tops: Sourced | None = None


class Roofline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fitted constants of the latency model: share of the peaks that is reached, and microseconds per operator.

    `spread` is the factor of the 90 % interval: latency / spread .. latency x spread.
    """

    fp32: Sourced
    fp16: Sourced
    int8: Sourced
    bandwidth: Sourced
    depthwise: Sourced
    grouped: Sourced
    launch_us: Sourced
    spread: Sourced


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What graphs the runtime reads."""

    max_opset: int = 21
    max_ir: int = 10
    max_rank: int = 8
    dynamic_shapes: bool = True
    int64: bool = True


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device.

    Attributes:
        name: the profile's name: its file without `.toml`.
        title: for people.
        family: `host`, `jetson`, `snapdragon`, `raspberry-pi`: devices of one family are of one kind.
        runtime: the exporter's name: `onnx`, `tensorrt`, `qnn`.
        recipe: the recipe used when none is asked.
        precisions: what the device runs: any of `fp32`, `fp16`, `w8a8`, `w8a16`, `w4a16`.
        target: default target URL; empty when a device must be named to measure.
        modules: module ids or SoC names by which a probe recognises the device.
        budget: default budgets, the same words as `edgekit.toml` (`max-drop = "1%"`, `latency-p95 = "20ms"`, ...).
        settings: what only the exporter reads (`tensorrt`, `htp` ... tables), as JSON values.
        abstract: a base for others; cannot be built for.
    """

    name: str
    title: str
    family: str
    runtime: str
    recipe: str
    precisions: tuple[str, ...]
    cpu: Cpu
    memory: Memory
    compute: Compute
    roofline: Roofline
    graph: Graph = Graph()
    target: str = ""
    modules: tuple[str, ...] = ()
    budget: dict[str, str] = {}
    settings: dict[str, Any] = {}
    abstract: bool = False


def load_profile(name: str) -> Profile:
    """Load a profile by name (or by the path of a `.toml` file), its base first, with every key checked.

    Raises:
        UsageError: no such profile (with a suggestion), or an abstract one.
        InputError: an unknown or missing key, a wrong type, a chain of `extends`: names file and key.
    """
    raise NotImplementedError(name)
