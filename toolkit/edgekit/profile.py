"""Device profiles: a device as data. TOML files, at most one `extends`, unknown keys are errors.

A file's name without `.toml` is the profile's name; names with a leading underscore are abstract: bases for others.
`extends = "BASE"` takes everything from one other profile; tables merge key by key, whatever else the file says
replaces the base's value. A figure is `{ value = 68.0, source = "..." }` and always replaced whole, so that a number
never keeps the source of another one. `probe = "host"` lays what this machine says of itself under the file's values.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from edgekit import host
from edgekit.errors import InputError, UsageError, did_you_mean

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

    def __post_init__(self) -> None:
        """Shares are at most 1, a spread is at least 1."""
        for name in ("fp32", "fp16", "int8", "bandwidth", "depthwise", "grouped"):
            share: Sourced = getattr(self, name)
            if share.value > 1:
                raise ValueError(f"`{name}` is a share of the peak: at most 1, not {share.value}")
        if self.spread.value < 1:
            raise ValueError(f"`spread` is a factor: at least 1, not {self.spread.value}")


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
        name: the profile's name: its file without `.toml`; never a key of the file.
        title: for people.
        family: `host`, `jetson`, `snapdragon`, `raspberry-pi`: devices of one family are of one kind.
        runtime: the exporter's name: `onnx`, `tensorrt`, `qnn`.
        recipe: the recipe used when none is asked.
        precisions: what the device runs on the engine that the runtime uses.
        target: default target URL; empty when a device must be named to measure.
        modules: module ids or SoC names by which a probe recognises the device.
        budget: default budgets, the same words as `edgekit.toml` (`max-drop = "1%"`, `latency-p95 = "20ms"`, ...).
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


@dataclass(frozen=True, kw_only=True)
class _Merged:
    """A chain of files laid over each other: the values, and for each dotted key the file that set it."""

    name: str
    path: Path
    values: dict[str, Any]
    origins: dict[str, str]


def profiles_folder() -> Path:
    """Return where the shipped profiles lie: beside the module in a wheel, two folders up in a checkout."""
    here = Path(__file__).resolve().parent
    return here / "profiles" if (here / "profiles").is_dir() else here.parent.parent / "profiles"


def list_profiles() -> list[Listed]:
    """Return the shipped profiles, sorted by name, abstract ones included; InputError for a file that cannot be read."""
    found = []
    for path in sorted(profiles_folder().glob("*.toml")):
        merged = _merge_chain(path)
        text = {key: str(merged.values.get(key, "")) for key in ("title", "family")}
        found.append(Listed(merged.name, text["title"], text["family"], merged.name.startswith("_")))
    return found


def load_profile(name: str) -> Profile:
    """Load a profile by name (or by the path of a `.toml` file), its bases first, with every key checked.

    Raises:
        UsageError: no such profile (with a suggestion), or an abstract one.
        InputError: an unknown or missing key, a wrong type, a circle of `extends`: names file and key.
    """
    merged = _merge_chain(_locate(name))
    if merged.name.startswith("_"):
        raise UsageError(
            f"'{merged.name}' is a base for other profiles, not a device",
            where=str(merged.path),
            remedy=did_you_mean(merged.name.strip("_"), _names(abstract=False)),
        )
    try:
        return msgspec.convert({"name": merged.name, **merged.values}, Profile)
    except msgspec.ValidationError as error:
        raise _explain(error, merged) from None


def origins(name: str) -> dict[str, str]:
    """Return for each dotted key of a profile (`memory.bandwidth_gbs`) the name of the file that sets it.

    What was probed is said to come from `this machine`; what no file sets (a default) is not there.

    Raises:
        UsageError: no such profile.
        InputError: a file that cannot be read, or an unknown key.
    """
    return _merge_chain(_locate(name)).origins


def _names(*, abstract: bool) -> list[str]:
    """Return the names of the shipped profiles, with or without the abstract ones."""
    names = [path.stem for path in sorted(profiles_folder().glob("*.toml"))]
    return [name for name in names if abstract or not name.startswith("_")]


def _locate(name: str) -> Path:
    """Return the file of a profile given by name or by path."""
    if name.endswith(".toml") or "/" in name or "\\" in name:
        path = Path(name)
        if not path.is_file():
            raise UsageError(
                "no such profile file",
                where=name,
                remedy="Give a name of `edgekit profiles list`, or a file.",
            )
        return path
    if name not in _names(abstract=True):
        raise UsageError(f"unknown profile '{name}'", remedy=did_you_mean(name, _names(abstract=False)))
    return profiles_folder() / f"{name}.toml"


def _merge_chain(path: Path) -> _Merged:
    """Read a file and its bases, and lay them over each other, the file last."""
    chain = [(path, _read(path))]
    while base := chain[-1][1].pop("extends", None):
        here = chain[-1][0]
        found = _base(here, base)
        if any(found.samefile(seen) for seen, _ in chain):
            circle = " extends ".join([*(seen.name for seen, _ in chain), found.name])
            raise InputError(f"`extends` goes in a circle: {circle}", where=f"{here}: extends")
        chain.append((found, _read(found)))
    merged = _Merged(name=path.stem, path=path, values={}, origins={})
    for file, values in reversed(chain):
        _check_keys(values, Profile, file, "")
        if values.get("probe") == "host":
            _overlay(merged, merged.values, host.probe(), "this machine", "")
        _overlay(merged, merged.values, values, file.name, "")
    return merged


def _read(path: Path) -> dict[str, Any]:
    """Parse one TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not valid TOML: {error}", where=str(path), remedy="Correct the file.") from None
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), remedy="Check the path."
        ) from None


def _base(path: Path, base: Any) -> Path:
    """Return the file that `path` extends: beside it, else among the shipped ones; never `path` itself."""
    where = f"{path}: extends"
    if not isinstance(base, str):
        raise InputError(
            "`extends` is the name of one profile", where=where, remedy='For example: extends = "host"'
        )
    if Path(base).name != base:
        raise InputError(
            f"`extends` is a name, not a path: '{base}'", where=where, remedy="Put the base beside the file."
        )
    for folder in (path.parent, profiles_folder()):
        candidate = folder / f"{base}.toml"
        if candidate.is_file() and not candidate.samefile(path):
            return candidate
    raise InputError(
        f"no profile '{base}' to extend", where=where, remedy=did_you_mean(base, _names(abstract=True))
    )


def _check_keys(values: dict[str, Any], struct: type[msgspec.Struct], path: Path, prefix: str) -> None:
    """Refuse keys that the struct does not have; InputError names file, key and the nearest known key."""
    known = get_type_hints(struct)
    allowed = [key for key in known if struct is not Profile or key not in {"name", "abstract"}]
    for key, value in values.items():
        if key not in allowed:
            raise InputError(
                f"unknown key '{key}'",
                where=f"{path}: {prefix}{key}",
                remedy=did_you_mean(key, [*allowed, "extends"]),
            )
        inner = _struct_of(known[key])
        if inner is None:
            continue
        if not isinstance(value, dict):
            example = "a table" if inner is not Sourced else '{ value = 68.0, source = "..." }'
            raise InputError(f"must be {example}, not {value!r}", where=f"{path}: {prefix}{key}")
        _check_keys(value, inner, path, f"{prefix}{key}.")


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct in an annotation such as `Cpu` or `Sourced | None`, or None."""
    choices = get_args(annotation) if get_origin(annotation) is not None else (annotation,)
    for choice in choices:
        if isinstance(choice, type) and issubclass(choice, msgspec.Struct):
            return choice
    return None


def _overlay(merged: _Merged, under: dict[str, Any], over: dict[str, Any], source: str, prefix: str) -> None:
    """Lay `over` on `under` in place, tables key by key, figures whole, and note where each value is from."""
    for key, value in over.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, dict) and not {"value", "source"} & value.keys():
            below = under.get(key)
            if not isinstance(below, dict) or {"value", "source"} & below.keys():
                below = under[key] = {}
            _overlay(merged, below, value, source, f"{dotted}.")
        else:
            under[key] = value
            merged.origins[dotted] = source


def _explain(error: msgspec.ValidationError, merged: _Merged) -> InputError:
    """Turn msgspec's message (`... - at `$.memory.ram_mb.value``) into file, key and text."""
    text, _, place = str(error).partition(" - at `$")
    key = place.rstrip("`").lstrip(".")
    missing = re.search(r"missing required field `(\w+)`", text)
    if missing:
        key = f"{key}.{missing[1]}" if key else missing[1]
        text = "missing key"
    file = _origin_of(key, merged.origins) or merged.path.name
    remedy = "Set it in the file or in the profile that it extends." if missing else "Correct the value."
    return InputError(text[:1].lower() + text[1:], where=f"{file}: {key}", remedy=remedy)


def _origin_of(key: str, known: dict[str, str]) -> str:
    """Return the file of a key, of the figure that holds it, or of anything below it; empty when nothing is known."""
    plain = key.split("[")[0]
    test: Callable[[str], bool] = lambda name: plain == name or plain.startswith(f"{name}.")
    return next((file for name, file in known.items() if test(name)), "")
