"""One package for several SoCs: a profile's `settings.htp.also` names more, each of which gets a binary of its own.

Qualcomm's compiler can put several SoCs into one binary, but nothing here can run such a binary: the simulator does not
load it. So each SoC has its file, and what loads them picks by the chip's own name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from edgekit.errors import UsageError, did_you_mean
from edgekit.profile import Profile
from edgekit_exporters.qnn.context import BINARY, CONTEXT, Context

_KEYS = ("soc_model", "soc", "arch", "vtcm_mb", "fp16", "optimization", "integer_twin")


def profiles_of(profile: Profile) -> tuple[Profile, ...]:
    """Return the profile and, for every other SoC that it names, what it would be for that one.

    Raises:
        UsageError: an entry of `settings.htp.also` that is none: names the key.
    """
    table = profile.settings.get("htp", {})
    rows = table.get("also", [])
    where = f"profile '{profile.name}', settings.htp.also"
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError("is a list of tables, one for each SoC", where=where, remedy=_remedy())
    seen, found = {table.get("soc_model")}, [profile]
    for row in rows:
        _check(row, where)
        if row["soc_model"] in seen:
            raise UsageError(f"SoC {row['soc_model']} is named twice", where=where, remedy="Name each SoC once.")
        seen.add(row["soc_model"])
        one = {**row, "estimate": "none"}
        names = tuple(one.pop("soc"))
        name = f"{profile.name}, SoC {row['soc_model']}"
        found.append(
            msgspec.structs.replace(profile, name=name, modules=names, settings={**profile.settings, "htp": one})
        )
    return tuple(found)


def place(context: Context, out: Path) -> tuple[str, str]:
    """Copy another SoC's context and binary into a bundle, under names of their own; return the names."""
    import onnx

    suffix = f"_soc{context.soc_model}"
    named = CONTEXT.replace(".onnx", f"{suffix}.onnx"), BINARY.replace(".bin", f"{suffix}.bin")
    model = onnx.load(str(context.folder / CONTEXT), load_external_data=False)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context" and attribute.s == BINARY.encode():
                attribute.s = named[1].encode()
    (out / named[0]).write_bytes(model.SerializeToString(deterministic=True))
    (out / named[1]).write_bytes((context.folder / BINARY).read_bytes())
    return named


def _check(row: dict[str, Any], where: str) -> None:
    for key in row:
        if key not in _KEYS:
            raise UsageError(f"'{key}' is no key of it", where=where, remedy=did_you_mean(key, list(_KEYS)))
    names = row.get("soc")
    if not isinstance(row.get("soc_model"), int) or not isinstance(names, list) or not names:
        raise UsageError("an entry says neither SoC nor its names", where=where, remedy=_remedy())


def _remedy() -> str:
    return 'For example: also = [{ soc_model = 43, soc = ["SM8550"], arch = 73, vtcm_mb = 8 }]'
