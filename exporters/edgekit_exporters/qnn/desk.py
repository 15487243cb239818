"""Compilations of this process: a graph is compiled once for a SoC, whoever asks (lint, compile, estimate)."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from edgekit.artifact import MAIN, Artifact, digest
from edgekit.graphs.edit import load_model, save_model
from edgekit.graphs.freeze import freeze
from edgekit.graphs.rules import open_inputs
from edgekit.profile import Profile
from edgekit_exporters.qnn.context import Context, RefusedError, compile_context
from edgekit_exporters.qnn.pools import global_pools
from edgekit_exporters.qnn.sanitize import order_gates, plain_gathers

_KEPT = 16
"""Compilations that are kept at a time: a recipe's alternatives, each for a few SoCs."""


@dataclass(frozen=True, kw_only=True)
class _Made:
    """One compilation, or why there is none; the folder goes away with it."""

    home: tempfile.TemporaryDirectory[str]
    context: Context | None
    refused: RefusedError | None


@dataclass(kw_only=True)
class Desk:
    """Compiles, and remembers the last few results."""

    _made: OrderedDict[str, _Made] = field(default_factory=OrderedDict)

    def context(
        self, artifact: Artifact, folder: Path, profile: Profile, *, soc: int | None = None, fallback: bool = False
    ) -> Context:
        """Return the context binary of a graph; its folder holds the compiled files for as long as it is remembered.

        Args:
            artifact: kind `onnx`.
            folder: where it lies.
            profile: the device; its table `htp` names SoC and memory.
            soc: another SoC than the profile's, whose own memory size is then taken.
            fallback: nodes may stay on the CPU.

        Raises: as `compile_context`.
        """
        options = options_of(profile, soc)
        key = digest([artifact.files, profile.graph.max_ir, options, fallback])
        if key in self._made:
            self._made.move_to_end(key)
        else:
            self._made[key] = _make(artifact, folder, profile, options, fallback=fallback)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)[1].home.cleanup()
        made = self._made[key]
        if made.refused is not None:
            raise made.refused
        assert made.context is not None
        return made.context


def soc_of(profile: Profile) -> int | None:
    """Return Qualcomm's number of a profile's SoC; None when the profile does not say."""
    found = profile.settings.get("htp", {}).get("soc_model")
    return None if found is None else int(found)


def options_of(profile: Profile, soc: int | None = None) -> dict[str, str]:
    """Return the provider's options for a profile."""
    table = profile.settings.get("htp", {})
    options = {
        "soc_model": str(soc_of(profile) if soc is None else soc),
        "htp_graph_finalization_optimization_mode": str(table.get("optimization", 3)),
        "enable_htp_fp16_precision": "1",
        "offload_graph_io_quantization": "0",
    }
    return options | ({"vtcm_mb": str(table["vtcm_mb"])} if soc is None and "vtcm_mb" in table else {})


def write_fixed(artifact: Artifact, folder: Path, profile: Profile, path: Path) -> dict[str, list[str]]:
    """Write the graph as the HTP's compiler takes it: batch 1, no known wrong fusions; return what was rewritten."""
    model = load_model(folder / MAIN)
    first = {spec.shape[0]: 1 for spec in open_inputs(artifact).values() if isinstance(spec.shape[0], str)}
    if first:
        freeze(model, first, folder)
    done = {"gates": order_gates(model), "gathers": plain_gathers(model), "pools": global_pools(model)}
    model.ir_version = min(model.ir_version, profile.graph.max_ir)
    save_model(model, path, source=folder)
    return {name: nodes for name, nodes in done.items() if nodes}


def _make(artifact: Artifact, folder: Path, profile: Profile, options: dict[str, str], *, fallback: bool) -> _Made:
    home = tempfile.TemporaryDirectory(prefix="edgekit-htp-")
    place = Path(home.name)
    write_fixed(artifact, folder, profile, place / MAIN)
    try:
        return _Made(home=home, context=compile_context(place, options, fallback=fallback), refused=None)
    except RefusedError as error:
        return _Made(home=home, context=None, refused=error)
