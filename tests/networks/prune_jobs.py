"""Jobs for the child processes of tests of pruning: networks are pruned in one and rebuilt in another."""

import json
from pathlib import Path
from unittest import mock

import transformers
from change_jobs import digest
from safetensors.torch import load_file

from edgekit.networks import prune as pruning
from edgekit.networks.rebuild import rebuild

RATES = {"compute": 1e9, "depthwise": 1e8, "grouped": 5e8, "bandwidth": 1e8, "bytes": 4}
OPTIONS = {
    "ratio": 0.4, "of": "channels", "importance": "l1", "per": "channel", "scope": "global", "multiple": 1, "least": 1,
    "layers": 0, "across_norms": False, "uniform": True, "skip": (),
}  # fmt: skip


def sizes(network):
    return {name: list(value.shape) for name, value in network.module.state_dict().items()}


def prune(arguments, tell):
    """Prune artifacts; return for each what the module in memory gives, its sizes and the facts."""
    rows = []
    for job in arguments["jobs"]:
        given = {
            **job,
            "rates": RATES,
            "shapes": {},
            "dtypes": {},
            "threads": 1,
            "seed": 0,
            "feeds": "",
            "again": False,
        }
        given["options"] = {**OPTIONS, **job["options"]}
        network = rebuild(Path(job["folder"]))
        with mock.patch.object(pruning, "rebuild", return_value=network):
            facts = pruning.prune(given, tell)
        rows.append({"facts": facts, **digest(network), "sizes": sizes(network)})
    return rows


def again(arguments, _tell):
    """Rebuild artifacts: what they give, and their sizes."""
    networks = [rebuild(Path(folder)) for folder in arguments["folders"]]
    return [{**digest(network), "sizes": sizes(network)} for network in networks]


def from_config(arguments, _tell):
    """Build models of transformers from a directory's configuration and weights, as its user would."""
    rows = []
    for folder, name in zip(arguments["folders"], arguments["classes"], strict=True):
        settings = transformers.AutoConfig.from_pretrained(Path(folder) / "hf", local_files_only=True)
        model = getattr(transformers, name)._from_config(settings).eval()
        missing, unexpected = model.load_state_dict(load_file(Path(folder) / "weights.safetensors"), strict=False)
        config = json.loads((Path(folder) / "hf/config.json").read_text())
        rows.append({"config": config, "missing": missing, "unexpected": unexpected})
    return rows
