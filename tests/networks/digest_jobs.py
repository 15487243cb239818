"""A job for the child process: what a rebuilt module computes, as a hash."""

import hashlib
from pathlib import Path

from edgekit.networks.rebuild import rebuild


def outputs(arguments, _tell):
    network = rebuild(Path(arguments["folder"]))
    found = network.run(network.feed(network.sizes))
    digest = hashlib.sha256()
    for name, value in found.items():
        digest.update(name.encode() + value.numpy().tobytes())
    tied = network.module.out.weight is network.module.table.weight if hasattr(network.module, "table") else None
    return {"digest": digest.hexdigest(), "training": network.module.training, "tied": tied}
