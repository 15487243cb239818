"""Device profiles: a device as data. TOML files, at most one `extends`, unknown keys are errors.

A file's name without `.toml` is the profile's name; names with a leading underscore are abstract: bases for
others. A figure is `{ value = 68.0, source = "..." }`. `probe = "host"` lays what this machine says of itself
under the file's values.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from edgekit import host
from edgekit.errors import InputError, UsageError, did_you_mean
from edgekit.extends import Layers, lay_files, origin_of

Precision = Literal["fp32", "fp16", "w8a8", "w8a16", "w4a16"]


class Sourced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number greater than zero and where it comes from: a document, a measurement, or `estimated`."""

    value: float
    source: str

    def __post_init__(self) -> None:
        """Refuse what is no figure, or a figure without a source."""
        if not (math.isfinite(self.value) and self.value > 0):
            raise ValueError(f"a figure must be finite and greater than 0, not {self.value}")
        if not self.source.strip():
            raise ValueError("a figure must say its source: a document, a measurement or `estimated`")

    @property
    def estimated(self) -> bool:
        """Whether nobody has published or measured this number."""
        return self.source.startswith("estimated")


class Cpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processor.

    Attributes:
        arch: as Linux says it: `x86_64`, `aarch64`, ...
        cores: logical CPUs.
        features: instruction set extensions that matter here: any of `edgekit.host.FEATURES`.
    """

    arch: str
    cores: Sourced
    features: tuple[str, ...] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Total memory in MB (10^6 bytes), peak bandwidth in GB/s, and the size of the last cache in MB."""

    ram_mb: Sourced
    bandwidth_gbs: Sourced
    cache_mb: Sourced | None = None


class Compute(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak dense throughput of the engine that runs the model, in 10^12 operations per second (1 MAC = 2).

    `units` is how many parts of it work on tiles of their own (a GPU's multiprocessors).
    """

    fp32_tops: Sourced
    fp16_tops: Sourced | None = None
    int8_tops: Sourced | None = None
    units: Sourced | None = None


class Roofline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fitted constants of the latency model: shares of the peaks that are reached, microseconds per kernel.

    Attributes:
        fp32: reached share of `compute.fp32_tops`; `fp16` and `int8` of theirs.
        matmul: the share of the peaks that matrix products reach; default: what convolutions do.
        depthwise: the share that depthwise convolutions reach, of whatever type's peak; `grouped` for grouped ones.
        recurrent: the share that recurrent layers reach; default: `depthwise`.
        vector: the share of the fp32 peak that operations other than multiply-accumulates reach; default: `fp32`.
        bandwidth: reached share of `memory.bandwidth_gbs`.
        cache_gbs: GB/s reached by what fits into `memory.cache_mb`; without it caches are not looked at.
        launch_us: per kernel, all of a run started at once where the runtime can (a CUDA graph).
        launch_plain_us: per kernel, started one by one; default: the same.
        small_tile: tiles of less than 128 x 128 reach (area / 128 x 128) to this power of a share; needs `units`.
        spread: the factor of the 90 % interval: latency / spread .. latency x spread.
        spread_unlike: the same for time spent in kinds of kernels that the constants were not fitted on.
        fitted_on: kind of kernel, `launch_graph` or `launch_plain` -> the largest share of the time it has in a model
            of the fit; what is not named counts as unknown to it.
    """

    fp32: Sourced
    fp16: Sourced
    int8: Sourced
    bandwidth: Sourced
    depthwise: Sourced
    grouped: Sourced
    launch_us: Sourced
    spread: Sourced
    matmul: Sourced | None = None
    recurrent: Sourced | None = None
    vector: Sourced | None = None
    cache_gbs: Sourced | None = None
    launch_plain_us: Sourced | None = None
    small_tile: Sourced | None = None
    spread_unlike: Sourced | None = None
    fitted_on: dict[str, float] = {}

    def __post_init__(self) -> None:
        """Shares are at most 1, a spread is at least 1."""
        for name in ("fp32", "fp16", "int8", "bandwidth", "depthwise", "grouped", "matmul", "recurrent", "vector"):
            share: Sourced | None = getattr(self, name)
            if share is not None and share.value > 1:
                raise ValueError(f"`{name}` is a share of the peak: at most 1, not {share.value}")
        for factor in (self.spread, self.spread_unlike):
            if factor is not None and factor.value < 1:
                raise ValueError(f"`spread` is a factor: at least 1, not {factor.value}")


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What graphs the runtime reads."""

    max_opset: int = 21
    max_ir: int = 10
    max_rank: int = 8
    dynamic_shapes: bool = True
    int64: bool = True


class Preferences(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What layers the engine runs at its best.

    Attributes:
        multiple: numbers of channels that fill its vectors or tensor cores are multiples of it.
        sparsity: patterns of zeros in weights that it computes faster: `2:4`.
    """

    multiple: int = 8
    sparsity: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no multiple or no pattern."""
        if not 1 <= self.multiple <= 1024:  # noqa: PLR2004 - wider than any engine's vectors
            raise ValueError(f"`multiple` is 1 to 1024, not {self.multiple}")
        for pattern in self.sparsity:
            if not re.fullmatch(r"[1-9]\d?:[1-9]\d?", pattern):
                raise ValueError(f"a pattern of sparsity is `2:4`, not `{pattern}`")


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device.

    Attributes:
        name: the profile's name: its file without `.toml`; never a key of the file.
        title: for people.
        family: `host`, `jetson`, `snapdragon`, `raspberry-pi`: devices of one family are of one kind.
        runtime: the exporter's name: `onnx`, `tensorrt`, `qnn`.
        recipe: the recipe used when none is asked.
        precisions: what the device runs on the engine that the runtime uses.
        target: default target URL; empty when a device must be named to measure.
        modules: module ids or SoC names by which a probe recognises the device.
        budget: default budgets in the words of `edgekit.toml` (`max-drop = "1%"`, `latency-p95 = "20ms"`).
        settings: what only the exporter reads (`tensorrt`, `htp` ... tables), as JSON values.
        probe: `host` when figures come from the machine that loads the profile.
        abstract: a base for others; cannot be built for. From the name, never a key of the file.
    """

    name: str
    title: str
    family: str
    runtime: str
    recipe: str
    precisions: tuple[Precision, ...]
    cpu: Cpu
    memory: Memory
    compute: Compute
    roofline: Roofline
    graph: Graph = Graph()
    layers: Preferences = Preferences()
    target: str = ""
    modules: tuple[str, ...] = ()
    budget: dict[str, str] = {}
    settings: dict[str, Any] = {}
    probe: Literal["", "host"] = ""
    abstract: bool = False


class Listed(NamedTuple):
    """A profile as `edgekit profiles list` shows it."""

    name: str
    title: str
    family: str
    abstract: bool


class Explained(NamedTuple):
    """One value of a profile: where it comes from (empty for what is no figure), and the file that sets it."""

    key: str
    value: Any
    source: str
    file: str


def profiles_folder() -> Path:
    """Return where the shipped profiles lie: beside the module in a wheel, two folders up in a checkout."""
    here = Path(__file__).resolve().parent
    return here / "profiles" if (here / "profiles").is_dir() else here.parent.parent / "profiles"


def list_profiles() -> list[Listed]:
    """Return the shipped profiles, sorted by name, abstract ones included.

    Raises:
        InputError: a file that cannot be read, or an unknown key.
    """
    found = []
    for name in _names(abstract=True):
        values = _layers(profiles_folder() / f"{name}.toml").values
        title, family = str(values.get("title", "")), str(values.get("family", ""))
        found.append(Listed(name, title, family, name.startswith("_")))
    return found


def load_profile(name: str) -> Profile:
    """Load a profile by name (or by the path of a `.toml` file), its bases first, with every key checked.

    Raises:
        UsageError: no such profile (with a suggestion), or an abstract one.
        InputError: an unknown or missing key, a wrong type, a circle of `extends`: names file and key.
    """
    path = _locate(name)
    layers = _layers(path)
    if path.stem.startswith("_"):
        raise UsageError(
            f"'{path.stem}' is a base for other profiles, not a device",
            where=str(path),
            remedy=did_you_mean(path.stem.strip("_"), _names(abstract=False)),
        )
    try:
        return msgspec.convert({"name": path.stem, **layers.values}, Profile)
    except msgspec.ValidationError as error:
        raise _explain(error, path, layers) from None


def origins(name: str) -> dict[str, str]:
    """Return for each dotted key of a profile (`memory.bandwidth_gbs`) the name of the file that sets it.

    What was probed comes from `this machine`; what no file sets (a default) is not there.

    Raises:
        UsageError: no such profile.
        InputError: a file that cannot be read, or an unknown key.
    """
    return _layers(_locate(name)).origins


def explain_profile(name: str) -> list[Explained]:
    """Return every value of a profile with its source and the file that sets it, as `edgekit profiles show` does."""
    files = origins(name)
    rows: list[Explained] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and set(value) == {"value", "source"}:
            file = files.get(prefix) or files.get(f"{prefix}.value", "default")
            rows.append(Explained(prefix, value["value"], value["source"], file))
        elif isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        elif value not in (None, {}):
            rows.append(Explained(prefix, value, "", files.get(prefix, "default")))

    walk("", msgspec.to_builtins(load_profile(name)))
    return rows


def _names(*, abstract: bool) -> list[str]:
    """Return the names of the shipped profiles, with or without the abstract ones."""
    names = sorted(path.stem for path in profiles_folder().glob("*.toml"))
    return [name for name in names if abstract or not name.startswith("_")]


def _locate(name: str) -> Path:
    """Return the file of a profile given by name or by path."""
    if name.endswith(".toml") or "/" in name or "\\" in name:
        if not Path(name).is_file():
            raise UsageError("no such profile file", where=name, remedy="Known names: edgekit profiles list")
        return Path(name)
    if name not in _names(abstract=True):
        raise UsageError(f"unknown profile '{name}'", remedy=did_you_mean(name, _names(abstract=False)))
    return profiles_folder() / f"{name}.toml"


def _layers(path: Path) -> Layers:
    """Read a profile's file and its bases."""
    return lay_files(
        path,
        struct=Profile,
        derived=frozenset({"name", "abstract"}),
        shipped=profiles_folder(),
        probes={"host": host.probe},
    )


def _explain(error: msgspec.ValidationError, path: Path, layers: Layers) -> InputError:
    """Turn msgspec's message (`... - at `$.memory.ram_mb.value``) into file, key and text."""
    text, _, place = str(error).partition(" - at `$")
    key = place.rstrip("`").lstrip(".")
    missing = re.search(r"missing required field `(\w+)`", text)
    if missing:
        key = f"{key}.{missing[1]}" if key else missing[1]
        text = "missing key"
    remedy = "Set it in the file or in the profile that it extends." if missing else "Correct the value."
    where = f"{origin_of(key, layers) or path.name}: {key}"
    return InputError(text[:1].lower() + text[1:], where=where, remedy=remedy)
