"""Prune the channels of a `torch` artifact. Runs in a child process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgekit import events
from edgekit.errors import UnsupportedError
from edgekit.networks.child import Tell
from edgekit.networks.coupled import Coupling, Slot
from edgekit.networks.coupling import couple, trace_program
from edgekit.networks.network import BATCH, Network
from edgekit.networks.plain import make_plain, parametrized
from edgekit.networks.prune_blame import culprits
from edgekit.networks.prune_choice import NothingError, Options, chosen, nothing_goes
from edgekit.networks.prune_config import from_config, rewritten
from edgekit.networks.prune_cost import Rates, count_macs
from edgekit.networks.prune_groups import Group, groups_of, skipped
from edgekit.networks.prune_layers import remove_layers
from edgekit.networks.prune_remove import Refused, Removal, remove
from edgekit.networks.rebuild import rebuild
from edgekit.networks.record import Change, changes_of, copy_file, read_record
from edgekit.networks.saving import save_network
from edgekit.numerics.importance import Floats, Places

if TYPE_CHECKING:
    import torch

_NAMED = 20


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
        arguments: `folder`, `out`, `options`, `rates`, `shapes`, `dtypes`, `threads`, `seed`, `feeds` (for the
            importance `taylor`), `again` (an earlier stage pruned it: nothing more to remove is no error then).
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
        done = prune_network(network, options, rates, lambda coupling: _sensitive(network, coupling, arguments, tell))
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


def _sensitive(network: Network, coupling: Coupling, arguments: dict[str, Any], tell: Tell) -> Mapping[Slot, Floats]:
    from edgekit.networks.prune_taylor import sensitivities

    return sensitivities(network, coupling, arguments, tell)


def prune_network(
    network: Network,
    options: Options,
    rates: Rates,
    sensitive: Callable[[Coupling], Mapping[Slot, Floats]] | None = None,
) -> Pruned:
    """Prune a network in place; nothing is changed when it fails.

    Args:
        network: gets smaller.
        options: how.
        rates: of the device.
        sensitive: gives what the loss loses without each channel, for the importance `taylor`.

    Raises:
        UnsupportedError: see `prune`. UsageError: more layers than there are.
    """
    done = Pruned(changes=[], gone=[], findings=[])
    if options.ratio > 0:
        _prune_channels(network, options, rates, sensitive, done)
    if options.layers:
        details = remove_layers(network, options.layers)
        done.layers = details["kept"]
        done.changes.append(Change(kind="layers", details=details))
    return done


def _prune_channels(
    network: Network,
    options: Options,
    rates: Rates,
    sensitive: Callable[[Coupling], Mapping[Slot, Floats]] | None,
    done: Pruned,
) -> None:
    if parametrized(network.module):
        make_plain(network.module, {})
        done.changes.append(Change(kind="plain"))
    coupling = couple(network, across_norms=options.across_norms)
    losses = sensitive(coupling) if sensitive and options.importance == "taylor" else {}
    done.findings += _kept_findings(coupling)
    banned, left_alone = set[str](), _left_alone(network, options)
    while True:
        known = groups_of(coupling, banned)
        groups = [group for group in known if not any(slot.tensor in left_alone for slot in group.places)]
        gone = chosen(network, coupling, groups, options, rates, losses)
        if not any(channels.size for _, channels in gone):
            raise nothing_goes(network, coupling, groups, options, sorted(banned))
        try:
            removal: Removal = remove(network, coupling, gone)
        except Refused as refused:
            more = culprits(network, coupling, gone, _measured(coupling, groups, refused.homes))
            if not more:
                raise UnsupportedError(refused.text, where=refused.where, remedy=_REMEDY) from None
            banned |= more
            done.findings.append(_refused_finding(refused, sorted(more)))
            continue
        done.gone, done.difference = gone, removal.difference
        done.changes.append(Change(kind="channels", details=removal.details))
        return


def _left_alone(network: Network, options: Options) -> set[str]:
    """Return the tensors that `skip` names, by all their names."""
    state = network.module.state_dict(keep_vars=True)
    chosen = {id(value) for name, value in state.items() if skipped(name, options.skip)}
    return {name for name, value in state.items() if id(value) in chosen}


_REMEDY = "Take the size from a tensor or from an attribute of the module, or skip it: skip = [...]."


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


def _kept_findings(coupling: Coupling) -> list[events.Finding]:
    return [
        events.Finding(
            severity="warning",
            node=text.rpartition(" in '")[2].rstrip("'") if " in '" in text else "",
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


def _figures(network: Network) -> dict[str, int]:
    """Return parameters (shared ones once) and multiply-accumulates of one sample of the example inputs."""
    parameters = sum(value.numel() for value in network.module.parameters())
    return {"parameters": parameters, "macs": count_macs(trace_program(network)) // network.sizes.get(BATCH, 1)}


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
    shared = [(value, found[name]) for name, value in wanted.items() if name in found]
    same = all(torch.equal(one.isnan(), two.isnan()) and torch.equal(*map(_filled, (one, two))) for one, two in shared)
    return config if same else None


def _filled(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor with zeros for NaN, which equals nothing."""
    return value.masked_fill(value.isnan(), 0)
