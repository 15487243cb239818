"""Use case `profiles calibrate`: measure a machine for half a minute and write what it is into a profile of its own."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgekit import events
from edgekit.artifact import MAIN, Artifact, sha256_file
from edgekit.atomic import replacing
from edgekit.errors import TargetError, UsageError
from edgekit.exporter import Exporter, load_exporter
from edgekit.loading import load_graph
from edgekit.profile import Profile, load_profile, profiles_folder
from edgekit.store import Store
from edgekit.target import Bundle, Feed, Target
from edgekit.targets import default_target, open_target

if TYPE_CHECKING:
    from edgekit.graphs.calibration import Timed
    from edgekit.graphs.roofline import Constants
    from edgekit.graphs.workouts import Workout

RUNS = 100
"""Timed runs of each graph, at least."""

_SHOWN = ("board", "cpu", "gpu", "power_mode")
_VERSIONS = ("onnxruntime", "tensorrt")
"""What of a target's fingerprint stands in the written file."""

_LOOSE = 2.0
"""Factor of the interval above which a calibration is hardly one."""

_UNDISTURBED = 0.1
"""Quantile of the runs that counts: other work on the machine is none of its constants."""


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """What a calibration found.

    Attributes:
        path: the profile that was written.
        profile: what was calibrated.
        target: where.
        spread: factor of the 90 % interval.
        ratios: graph -> prediction over measurement; networks were left out of the fit that predicts them.
        measured: graph -> milliseconds of an undisturbed run.
    """

    path: Path
    profile: str
    target: str
    spread: float
    ratios: dict[str, float]
    measured: dict[str, float]


def calibrate(
    profile: str,
    *,
    target: str | None = None,
    models: Sequence[str] = (),
    out: str | None = None,
    store: Path | None = None,
    listen: events.Listener = events.ignore,
) -> Calibrated:
    """Measure known graphs on a target and write a profile that extends the given one with what they tell.

    Args:
        profile: the device's profile.
        target: where it is; default: the profile's.
        models: as `edgekit.build` takes them: measure these and scale all constants by one factor. None: measure small
            graphs that edgekit draws and fit each constant.
        out: the file to write; default: `NAME-calibrated.toml` in the working directory.
        store: the store's folder, for `models`.
        listen: where progress goes.

    Raises:
        UsageError: no target, or a place where the new profile would not find the one that it extends.
        TargetError: the target cannot be reached, or what it measures may not decide anything.
    """
    from edgekit.graphs.calibration import fit_machine, milliseconds, slowdown
    from edgekit.graphs.roofline import constants_of

    device = load_profile(profile)
    place = target or default_target(device)
    if not place:
        raise UsageError(f"'{profile}' has no target of its own", remedy="Name one: --target URL")
    path = _place(profile, device, out)
    exporter = load_exporter(device.runtime)
    with open_target(place, device, listen=listen) as machine, Store(store) as shelf:
        graphs = _models(models, shelf, device, listen) if models else _workouts(device, exporter)
        timed = [_time(graph, exporter, device, machine, listen) for graph in graphs]
        said = machine.fingerprint()
    start, today = constants_of(device), dt.datetime.now(dt.UTC).date().isoformat()
    told = [said[key] if key in _SHOWN else f"{key} {said[key]}" for key in (*_SHOWN, *_VERSIONS) if said.get(key)]
    on = f"on {place} ({', '.join(told)}), {today}"
    if models:
        slower = slowdown(timed, start)
        what = "; ".join(f"{item.name} took {item.ms:.4g} ms" for item in timed)
        source = f"measured {on}: {device.name} scaled by {1 / slower:.3g}, because {what}"
        tables = scaled_tables(device, slower)
        spread, why = device.roofline.spread.value, f"{device.roofline.spread.source}; scaled since, {source}"
        ratios = {item.name: slower * milliseconds(item.work, start) / item.ms for item in timed}
    else:
        found = fit_machine(timed, start)
        tables = fitted_tables(device, found.constants)
        spread, ratios = found.spread, found.ratios
        source = f"measured {on}: fitted to {len(timed)} small graphs"
        why = f"measured {on}: each of {found.networks} small networks predicted by a fit without it"
        _warn(spread, place, listen)
    with replacing(path) as file:
        file.write(overlay(profile, device, tables, source, (spread, why)).encode())
    measured = {item.name: item.ms for item in timed}
    return Calibrated(path=path, profile=profile, target=place, spread=spread, ratios=ratios, measured=measured)


Tables = dict[str, dict[str, float]]
"""Table of a profile -> key -> value."""


def fitted_tables(device: Profile, constants: Constants) -> Tables:
    """Return what a profile holds for fitted constants: the peaks are the highest rates that are reached."""
    top = max(1.0, constants.matmul)
    tera = [top * peak / 1e12 for peak in constants.peaks]
    relative = ("matmul", "depthwise", "grouped", "recurrent", "vector")
    launch = constants.launch * 1e6
    plain = device.roofline.launch_plain_us
    return {
        "memory": {"bandwidth_gbs": constants.bandwidth / 1e9},
        "compute": {
            "fp32_tops": tera[0],
            **({"fp16_tops": tera[1]} if device.compute.fp16_tops is not None else {}),
            **({"int8_tops": tera[2]} if device.compute.int8_tops is not None else {}),
        },
        "roofline": {
            "bandwidth": 1.0,
            **dict.fromkeys(("fp32", "fp16", "int8"), 1 / top),
            **{name: getattr(constants, name) / top for name in relative},
            **({"cache_gbs": constants.cache_bandwidth / 1e9} if constants.cache_bandwidth else {}),
            "launch_us": launch,
            **({"launch_plain_us": plain.value * launch / device.roofline.launch_us.value} if plain else {}),
        },
    }


def scaled_tables(device: Profile, slower: float) -> Tables:
    """Return what a profile holds for a device that is so many times slower in everything."""
    known, shares = device.compute, device.roofline
    rates = {"fp32_tops": known.fp32_tops, "fp16_tops": known.fp16_tops, "int8_tops": known.int8_tops}
    launches = {"launch_us": shares.launch_us, "launch_plain_us": shares.launch_plain_us}
    return {
        "memory": {"bandwidth_gbs": device.memory.bandwidth_gbs.value / slower},
        "compute": {name: rate.value / slower for name, rate in rates.items() if rate},
        "roofline": {
            **({"cache_gbs": shares.cache_gbs.value / slower} if shares.cache_gbs else {}),
            **{name: launch.value * slower for name, launch in launches.items() if launch},
        },
    }


def overlay(profile: str, device: Profile, tables: Tables, source: str, interval: tuple[float, str]) -> str:
    """Write a profile that extends `profile` with measured values.

    Args:
        profile: name or path of the profile that was calibrated.
        device: the same, loaded.
        tables: what was found.
        source: says how.
        interval: the factor of the 90 % interval, and where it comes from.
    """
    spread, why = interval
    lines = [
        f"# Written by `edgekit profiles calibrate {profile}`.",
        f"extends = {json.dumps(Path(profile).stem)}",
        f"title = {json.dumps(f'{device.title}, calibrated')}",
    ]
    for table, values in tables.items():
        lines += ["", f"[{table}]"]
        lines += [_line(name, value, source) for name, value in values.items()]
    lines.append(_line("spread", spread, why))
    unlike = device.roofline.spread_unlike
    if unlike is not None and unlike.value < spread:
        lines.append(_line("spread_unlike", spread, why))
    return "\n".join(lines) + "\n"


def _warn(spread: float, place: str, listen: events.Listener) -> None:
    """Tell when the fit predicts its own networks badly."""
    if spread <= _LOOSE:
        return
    finding = events.Finding(
        severity="warning",
        node="",
        rule="calibration-loose",
        text=f"the networks measured on {place} are predicted within a factor of {spread:.2g} only",
        remedy="Calibrate again when nothing else runs there, with its clocks locked.",
    )
    listen(events.Found(finding=finding))


def _line(name: str, value: float, source: str) -> str:
    return f"{name} = {{ value = {max(value, 1e-12):.6g}, source = {json.dumps(source)} }}"


def _place(profile: str, device: Profile, out: str | None) -> Path:
    """Return the file to write; where its `extends` finds what it extends, and not over that."""
    path = Path(out or f"{device.name}-calibrated.toml")
    if path.suffix != ".toml":
        raise UsageError("a profile's file ends in .toml", where=f"--out {path}")
    if path.stem == device.name:
        raise UsageError("a profile cannot extend itself", where=f"--out {path}", remedy="Choose another name.")
    home = Path(profile).resolve().parent if Path(profile).suffix == ".toml" else profiles_folder()
    if home not in {path.resolve().parent, profiles_folder()}:
        raise UsageError(
            f"it extends '{device.name}', which lies in {home}",
            where=f"--out {path}",
            remedy=f"Write it there: --out {home / path.name}",
        )
    return path


@dataclass(frozen=True, kw_only=True)
class _Graph:
    name: str
    network: bool
    artifact: Artifact
    folder: Path
    feed: Feed


def _workouts(device: Profile, exporter: Exporter) -> Iterator[_Graph]:
    """Yield the graphs that edgekit draws, each in a folder that is gone with the next."""
    import numpy as np

    from edgekit.graphs.facts import signature_of
    from edgekit.graphs.workouts import workouts

    dialect = exporter.dialect(device)
    activation: Literal["", "int8", "uint8"] = ""
    if "w8a8" in device.precisions:
        activation = "int8" if dialect.activation == "int8" else "uint8"
    drawn: list[Workout] = workouts(activation, symmetric=dialect.symmetric_activations)
    for workout in drawn:
        with tempfile.TemporaryDirectory(prefix="edgekit-workout-") as scratch:
            folder = Path(scratch)
            (folder / MAIN).write_bytes(workout.model.SerializeToString())
            artifact = Artifact(
                kind="onnx",
                files={MAIN: sha256_file(folder / MAIN)},
                facts={"graphs": {MAIN: signature_of(workout.model)}},
            )
            feed: Feed = {"x": np.random.default_rng(0).standard_normal(workout.shape, np.float32)}
            yield _Graph(name=workout.name, network=workout.network, artifact=artifact, folder=folder, feed=feed)


def _models(models: Sequence[str], shelf: Store, device: Profile, listen: events.Listener) -> Iterator[_Graph]:
    from edgekit.graphs.edit import load_model
    from edgekit.graphs.seeded import SeededSamples
    from edgekit.graphs.sessions import open_session

    for name in models:
        artifact = load_graph(name, shelf, device, listen=listen)
        folder = shelf.folder(artifact.id)
        path = folder / MAIN
        samples = SeededSamples(open_session(path), load_model(path), folder, artifact.specs("inputs"), seed=0)
        yield _Graph(name=Path(name).stem, network=True, artifact=artifact, folder=folder, feed=samples.sample(0))


def _time(graph: _Graph, exporter: Exporter, device: Profile, machine: Target, listen: events.Listener) -> Timed:
    """Compile one graph, measure it, and count its work."""
    from edgekit.graphs.calibration import Timed
    from edgekit.graphs.cost import cost_of
    from edgekit.graphs.fusion import fuse, rules_of
    from edgekit.graphs.rules import usual_shapes
    from edgekit.graphs.work import work_of

    listen(events.Progress(label=f"calibrate: {graph.name}", done=0, total=0))
    with tempfile.TemporaryDirectory(prefix="edgekit-calibrate-") as out:
        facts: dict[str, Any] = exporter.compile(graph.artifact, graph.folder, device, Path(out))
        figures = machine.measure(Bundle(folder=Path(out), facts=facts), graph.feed, runs=RUNS, threads=1)
    latency = next((figure for figure in figures if figure.name == "latency-p50"), None)
    if latency is None or latency.value is None or latency.provenance != "measured":
        raise TargetError(
            f"no latency of '{graph.name}' was measured: {latency.note if latency else 'the target tells none'}",
            where=machine.url,
            remedy="Calibrate on the device itself, with nothing else running on it.",
        )
    groups = fuse(cost_of(graph.folder / MAIN, usual_shapes(graph.artifact)), rules_of(device.runtime))
    return Timed(name=graph.name, network=graph.network, work=work_of(groups), ms=_undisturbed(machine, latency.value))


def _undisturbed(machine: Target, median: float) -> float:
    """Return what a run takes when nothing disturbs it, where the target tells every run; else the median."""
    import numpy as np

    series = getattr(machine, "details", {}).get("series_ms")
    return float(np.quantile(series, _UNDISTURBED)) if series else median
