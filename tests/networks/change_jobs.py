"""Jobs for the child processes of test_changes: a model is changed in one and rebuilt in another."""

import hashlib
from pathlib import Path

from edgekit.networks.rebuild import rebuild
from edgekit.networks.record import Change
from edgekit.networks.saving import save_network


def digest(network):
    outputs = network.run(network.feed(network.sizes))
    found = hashlib.sha256()
    for name, value in sorted(outputs.items()):
        found.update(name.encode() + value.contiguous().numpy().tobytes())
    tied = {}
    for name, value in network.module.state_dict(keep_vars=True).items():
        tied.setdefault(value.data_ptr(), []).append(name)
    return {"digest": found.hexdigest(), "tied": sorted(names for names in tied.values() if len(names) > 1)}


def change(arguments, _tell):
    """Scale every parameter and save, as often as there are folders to write; return what each changed module gives."""
    import torch

    found, place = [], Path(arguments["folder"])
    for out in arguments["outs"]:
        network = rebuild(place, shapes=arguments["shapes"])
        with torch.no_grad():
            for parameter in network.module.parameters():
                parameter.mul_(1.5).add_(0.01)
        changes = tuple(Change(kind=kind, details={}) for kind in arguments.get("kinds", ()))
        save_network(network.module, place, Path(out), changes)
        found.append(digest(network))
        place = Path(out)
    return found


def again(arguments, _tell):
    return [digest(rebuild(Path(folder), shapes=arguments["shapes"])) for folder in arguments["folders"]]
