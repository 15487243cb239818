"""Prune the channels of a `torch` artifact. Runs in a child process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from edgekit import events
from edgekit.errors import UnsupportedError
from edgekit.networks.child import Tell
from edgekit.networks.coupling import Coupling, couple, trace_program
from edgekit.networks.network import Network
from edgekit.networks.prune_config import from_config, rewritten
from edgekit.networks.prune_cost import Rates, channel_cost, count_macs, macs_after
from edgekit.networks.prune_groups import Group, Importance, groups_of, scores_of
from edgekit.networks.prune_layers import remove_layers
from edgekit.networks.prune_remove import Refused, Removal, remove
from edgekit.networks.rebuild import rebuild
from edgekit.networks.record import Change, changes_of, copy_file, read_record
from edgekit.networks.saving import save_network
from edgekit.numerics.importance import Candidates, Floats, Places, choose

_BISECTIONS = 24
_NAMED = 20


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `prune` is asked for; see the stage `prune-channels`."""

    ratio: float
    of: Literal["channels", "macs"]
    importance: Importance
    per: Literal["channel", "millisecond"]
    scope: Literal["global", "layer"]
    multiple: int
    least: int
    layers: int
    across_norms: bool
    uniform: bool
    skip: tuple[str, ...]


class NothingError(UnsupportedError):
    """NothingError may go."""


class Pruned(msgspec.Struct, kw_only=True):
    """What became of a network."""

    changes: list[Change]
    gone: list[tuple[Group, Places]]
    findings: list[events.Finding]
    difference: float | None = 0.0
    layers: list[int] | None = None


def prune(arguments: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Write the pruned artifact and return its facts: `pruning` and `findings`.

    Args:
        arguments: `folder`, `out`, `options`, `rates`, `shapes`, `dtypes`, `threads`, `gradients` (a safetensors file
            or empty), `again` (an earlier stage pruned it: nothing more to remove is no error then).
        tell: gets progress and findings.

    Raises:
        UnsupportedError: the network cannot be traced, or nothing of it may go; says why by name.
    """
    import torch

    torch.set_num_threads(int(arguments["threads"]))
    options = msgspec.convert(arguments["options"], Options)
    rates = msgspec.convert(arguments["rates"], Rates)
    folder, out = Path(arguments["folder"]), Path(arguments["out"])
    network = rebuild(folder, shapes=arguments["shapes"], dtypes=arguments["dtypes"])
    before = _figures(network)
    tell(events.Progress(label="prune", done=0, total=2))
    try:
        done = prune_network(network, options, rates, _gradients(arguments["gradients"]))
    except NothingError as nothing:
        if not arguments["again"]:
            raise UnsupportedError(nothing.text, where=nothing.where, remedy=nothing.remedy) from None
        return _unchanged(folder, out, before, nothing)
    tell(events.Progress(label="prune", done=1, total=2))
    config = _config(network, folder, done) if network.pretrained and done.changes else None
    changes = (Change(kind="weights"),) if config else tuple(done.changes)
    save_network(network.module, folder, out, changes, config=config)
    after = _figures(network)
    tell(events.Progress(label="prune", done=2, total=2))
    for finding in done.findings:
        tell(events.Found(finding=finding))
    rows = [
        {"group": group.name, "before": group.size, "after": group.size - channels.shape[-1]}
        for group, channels in done.gone
        if channels.size
    ]
    told = {"before": before, "after": after, "groups": rows, "difference": done.difference, "layers": done.layers}
    written = "config" if config else "record"
    facts = {**told, "kept_in": written}
    return {"pruning": facts, "findings": [msgspec.to_builtins(finding) for finding in done.findings]}


def _unchanged(folder: Path, out: Path, figures: dict[str, int], nothing: NothingError) -> dict[str, Any]:
    """Give the artifact on as it is: rounds of pruning end there."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            copy_file(path, out / path.relative_to(folder))
    finding = events.Finding(severity="note", node=nothing.where, rule="prune-nothing", text=nothing.text)
    facts = {"before": figures, "after": figures, "groups": [], "difference": 0.0, "layers": None, "kept_in": "record"}
    return {"pruning": facts, "findings": [msgspec.to_builtins(finding)]}


def prune_network(
    network: Network, options: Options, rates: Rates, gradients: Mapping[str, Any] | None = None
) -> Pruned:
    """Prune a network in place; nothing is changed when it fails.

    Raises:
        UnsupportedError: see `prune`. UsageError: more layers than there are.
    """
    done = Pruned(changes=[], gone=[], findings=[])
    if options.ratio > 0:
        _prune_channels(network, options, rates, gradients or {}, done)
    if options.layers:
        details = remove_layers(network, options.layers)
        done.layers = details["kept"]
        done.changes.append(Change(kind="layers", details=details))
    return done


def _prune_channels(
    network: Network, options: Options, rates: Rates, gradients: Mapping[str, Any], done: Pruned
) -> None:
    coupling = couple(network, across_norms=options.across_norms)
    done.findings += _kept_findings(coupling)
    banned: set[str] = set()
    while True:
        groups = [
            group
            for group in groups_of(coupling, banned)
            if not any(fnmatch(slot.tensor, f"{pattern}*") for slot in group.places for pattern in options.skip)
        ]
        gone = _chosen(network, coupling, groups, options, rates, gradients)
        if not any(channels.size for _, channels in gone):
            raise _nothing(network, coupling, groups, options, sorted(banned))
        try:
            removal: Removal = remove(network, coupling, gone)
        except Refused as refused:
            more = _measured(coupling, groups, refused.homes)
            if not more:
                raise UnsupportedError(refused.text, where=refused.where, remedy=_REMEDY) from None
            banned |= more
            done.findings.append(_refused_finding(refused, sorted(more)))
            continue
        done.gone, done.difference = gone, removal.difference
        done.changes.append(Change(kind="channels", details=removal.details))
        return


_REMEDY = "Take the size from a tensor or from an attribute of the module, or skip it: skip = [...]."


def _chosen(
    network: Network,
    coupling: Coupling,
    groups: Sequence[Group],
    options: Options,
    rates: Rates,
    gradients: Mapping[str, Any],
) -> list[tuple[Group, Places]]:
    """Choose which channels go: over all groups at once, or the same share of every group."""
    state = network.module.state_dict()
    norms = _batch_norms(network)

    def scores(group: Group) -> Floats:
        found = scores_of(
            group, lambda name: state[name].numpy(), options.importance, gradients=gradients, batch_norms=norms
        )
        if options.per == "millisecond":
            found = found / max(channel_cost(group, coupling, rates), 1e-12)
        return found

    alike: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in groups:
        alike[(group.role, group.size) if options.uniform else (group.name, 0)].append(group)
    families = list(alike.values())
    kinds = [
        Candidates(
            scores=np.stack([scores(group) for group in family]) if len(family) > 1 else scores(family[0]),
            weight=sum(_weight(group, coupling, options) for group in family),
            step=family[0].step(options.multiple),
            least=options.least,
        )
        for family in families
    ]

    def take(share: float) -> list[tuple[Group, Places]]:
        if options.scope == "global":
            total = sum(kind.weight * np.shape(kind.scores)[-1] for kind in kinds)
            found = choose(kinds, share * total)
        else:
            found = [choose([kind], share * kind.weight * np.shape(kind.scores)[-1])[0] for kind in kinds]
        rows = [np.atleast_2d(channels) for channels in found]
        pairs = zip(families, rows, strict=True)
        return [(group, row) for family, many in pairs for group, row in zip(family, many, strict=True)]

    return take(options.ratio) if options.of == "channels" else _until(take, coupling, options.ratio)


def _until(take: Any, coupling: Coupling, ratio: float) -> list[tuple[Group, Places]]:
    """Find the share of channels after which the work has fallen by `ratio`."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if 1 - macs_after(coupling, take(middle)) < ratio:
            low = middle
        else:
            high = middle
    found: list[tuple[Group, Places]] = min(
        (take(low), take(high)), key=lambda gone: abs(1 - macs_after(coupling, gone) - ratio)
    )
    return found


def _weight(group: Group, coupling: Coupling, options: Options) -> float:
    return float(group.weight) if options.of == "channels" else max(channel_cost(group, coupling, None), 1.0)


def _batch_norms(network: Network) -> set[str]:
    import torch

    kinds = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the base of every BatchNorm
    return {f"{path}.weight" for path, part in network.module.named_modules() if isinstance(part, kinds)}


def _measured(coupling: Coupling, groups: Sequence[Group], homes: Sequence[str]) -> set[str]:
    """Return the groups whose channels the code of modules counts."""
    found = set()
    for size in coupling.sizes:
        if size.module not in homes:
            continue
        labels = set(coupling.labels.find(size.labels).tolist())
        for group in groups:
            slot, places = next(iter(group.places.items()))
            if labels & set(coupling.labels.find(coupling.axes[slot][places[:, 0]]).tolist()):
                found.add(group.name)
    return found


def _nothing(
    network: Network, coupling: Coupling, groups: Sequence[Group], options: Options, banned: Sequence[str]
) -> NothingError:
    """Say why nothing can go, by name."""
    if not groups:
        reasons = [
            f"'{slot.tensor}': {coupling.labels.reason(int(coupling.axes[slot][0]))}"
            for slot in sorted(coupling.makes)[:3]
        ]
        text = "no channel of the network may go: " + ("; ".join(reasons) or "it has no layer that is understood")
        if banned:
            text += f"; sizes in the code keep {', '.join(banned[:3])}"
        return NothingError(text, where=type(network.module).__name__, remedy="Leave the pruning stage out.")
    widest = max(groups, key=lambda group: group.size)
    return NothingError(
        f"ratio {options.ratio} would empty layers or break the multiple of {options.multiple}: the widest, "
        f"'{widest.name}', has {widest.size} channels, which go {widest.step(options.multiple)} at once",
        where="prune-channels: ratio",
        remedy="Set a smaller `multiple`.",
    )


def _kept_findings(coupling: Coupling) -> list[events.Finding]:
    return [
        events.Finding(
            severity="warning",
            node=text.rpartition(" in ")[2].strip("'"),
            rule="prune-unknown-operator",
            text=f"{text}: the {count} channels that reach it are kept",
        )
        for text, count in sorted(coupling.unknown.items())
    ]


def _refused_finding(refused: Refused, names: list[str]) -> events.Finding:
    return events.Finding(
        severity="warning",
        node=refused.where,
        rule="prune-size-in-code",
        text=f"{refused.text}: kept whole are {', '.join(names[:_NAMED])}",
        remedy=_REMEDY,
    )


def _gradients(path: str) -> dict[str, Any]:
    if not path:
        return {}
    from safetensors.numpy import load_file

    found: dict[str, Any] = load_file(path)
    return found


def _figures(network: Network) -> dict[str, int]:
    """Return parameters (shared ones once) and multiply-accumulates for the example inputs."""
    parameters = sum(value.numel() for value in network.module.parameters())
    return {"parameters": parameters, "macs": count_macs(trace_program(network))}


def _config(network: Network, folder: Path, done: Pruned) -> dict[str, Any] | None:
    """Return the configuration that says the new structure, when there is one and it rebuilds the model bit-equal."""
    import torch

    if any(change.kind != "weights" for change in changes_of(read_record(folder))):
        return None  # what the record says already is not in the configuration
    pairs = {(group.size, group.size - channels.shape[-1]) for group, channels in done.gone if channels.size}
    ratios = sorted(pair for pair in pairs if pair[0] != pair[1])
    config = rewritten(network.module, folder, ratios, done.layers)
    if config is None:
        done.findings.append(
            events.Finding(
                severity="note",
                node="config.json",
                rule="prune-config",
                text="config.json cannot say the new structure: the model is rebuilt from the record beside it",
            )
        )
        return None
    built = from_config(network.module, config, device="cpu").eval()
    built.load_state_dict(network.module.state_dict())
    feed = network.feed(network.sizes)
    wanted = network.run(feed)
    with torch.no_grad():
        found = built(**feed, return_dict=True)
    same = all(bool(torch.equal(value, found[name])) for name, value in wanted.items() if name in found)
    return config if same else None
