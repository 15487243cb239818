"""Write the structure of a pruned model of transformers into its configuration, where the configuration can say it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekit.networks.huggingface import FOLDER
from edgekit.networks.record import read_json

if TYPE_CHECKING:
    import torch

HEADS = (
    "num_attention_heads", "num_key_value_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads",
    "decoder_attention_heads",
)  # fmt: skip
NEURONS = (
    "intermediate_size", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim", "d_ff", "mlp_dim",
    "dim_feedforward",
)  # fmt: skip
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers")
_MOST = 200

Ratio = tuple[int, int]
"""How many there were, how many there are."""


def rewritten(
    module: torch.nn.Module, folder: Path, ratios: Sequence[Ratio], layers: Sequence[int] | None
) -> dict[str, Any] | None:
    """Return the `config.json` that builds a pruned model as it is; None when none of its keys can say it.

    Args:
        module: the pruned model of transformers.
        folder: the artifact that it was rebuilt from.
        ratios: sizes of groups of channels that changed, before and after.
        layers: the layers that are kept, when some went.

    The candidates are proven: a model built from the configuration must have the shapes of every tensor, and give the
    same outputs bit by bit; the latter is for the caller to check with `from_config`.
    """
    config = read_json(folder / FOLDER / "config.json")
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    for candidate in itertools.islice(_candidates(config, ratios, layers), _MOST):
        try:
            built = from_config(module, candidate, device="meta")
        except Exception:  # noqa: BLE001, S112 - a configuration that its class refuses is no candidate
            continue
        if {name: tuple(value.shape) for name, value in built.state_dict().items()} == wanted:
            return candidate
    return None


def from_config(module: torch.nn.Module, config: dict[str, Any], *, device: str) -> Any:
    """Build a model of the same class as `module` from a `config.json`."""
    import torch
    import transformers

    made: Any = type(module)
    options = copy.deepcopy({key: value for key, value in config.items() if key != "model_type"})
    settings = transformers.AutoConfig.for_model(config["model_type"], **options)
    with torch.device(device):
        return made._from_config(settings, dtype=torch.float32, attn_implementation="eager")  # noqa: SLF001


def _candidates(
    config: dict[str, Any], ratios: Sequence[Ratio], layers: Sequence[int] | None
) -> Iterator[dict[str, Any]]:
    """Yield configurations: each key that counts heads, neurons or layers as it was, or scaled by one of the ratios."""
    tables = [()] + [(key,) for key, value in config.items() if isinstance(value, dict) and key.endswith("_config")]
    choices: list[list[tuple[tuple[str, ...], Any]]] = []
    for prefix in tables:
        table = config[prefix[0]] if prefix else config
        for key in (*HEADS, *NEURONS):
            values = _scaled(table, key, ratios)
            if values:
                choices.append([((*prefix, key), value) for value in values])
    for combination in itertools.product(*choices):
        made = copy.deepcopy(config)
        for path, value in combination:
            place = made
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
        for prefix in tables:
            _settle(config[prefix[0]] if prefix else config, made[prefix[0]] if prefix else made, layers)
        yield made


def _scaled(table: dict[str, Any], key: str, ratios: Sequence[Ratio]) -> list[int]:
    """Return what a key may become: what the ratios make of it, and what it is."""
    value = table.get(key)
    if type(value) is not int:
        return []
    found = [value * new // old for old, new in ratios if value * new % old == 0 and value * new // old > 0]
    return list(dict.fromkeys([*found, value]))


def _settle(old: dict[str, Any], new: dict[str, Any], layers: Sequence[int] | None) -> None:
    """State the width of a head, which else follows from the number of heads, and cut what is listed layer by layer."""
    heads = next((key for key in HEADS if type(old.get(key)) is int), "")
    width = next((old[key] for key in ("hidden_size", "n_embd", "d_model") if type(old.get(key)) is int), 0)
    if heads and new[heads] != old[heads] and not new.get("head_dim") and width and width % old[heads] == 0:
        new["head_dim"] = width // old[heads]
    if layers is None:
        return
    for key in LAYERS:
        if key in old:
            count = old[key]
            new[key] = len(layers)
            for name, value in new.items():
                if isinstance(value, list) and len(value) == count and name.endswith(("_types", "_layers")):
                    new[name] = [value[index] for index in layers]
