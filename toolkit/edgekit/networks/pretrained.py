"""Models of transformers, from the files of a Hugging Face directory. Runs in a child process."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgekit import events
from edgekit.errors import InputError, UnsupportedError
from edgekit.networks.changes import apply_changes
from edgekit.networks.examples import pretrained_inputs
from edgekit.networks.huggingface import FOLDER, task_of
from edgekit.networks.inputs import Shapes
from edgekit.networks.network import Network, checks_for
from edgekit.networks.record import WEIGHTS, changes_of, read_json
from edgekit.networks.weights import load_state, read_header

_PARTS = (
    "past_key_values", "mems", "cache", "hidden_states", "attentions", "decoder_hidden_states",
    "encoder_hidden_states", "decoder_attentions", "cross_attentions", "encoder_attentions",
)  # fmt: skip
"""Outputs that are left out: caches, and what the layers inside saw."""

_QUIET = ("output_attentions", "output_hidden_states", "use_cache", "return_loss")


def rebuild_pretrained(folder: Path, record: dict[str, Any], shapes: Shapes, dtypes: Mapping[str, str]) -> Network:
    """Load the model of an artifact in float32 with eager attention, and make its example inputs.

    Raises:
        UnsupportedError: transformers has no such architecture, or nothing says what to feed.
        InputError: the weights do not fit the architecture.
    """
    place, architecture = folder / FOLDER, str(record["architecture"])
    model, findings = _load_changed(folder, record) if changes_of(record) else load_pretrained(place, architecture)
    config = read_json(place / "config.json")
    task = known_task(type(model).__name__, task_of(architecture, config))
    inputs = pretrained_inputs(model, place, task, shapes, dtypes)

    def call(feed: dict[str, Any]) -> dict[str, Any]:
        found = model(**feed, return_dict=True)
        return {name: value for name, value in found.items() if name not in _PARTS}

    return Network(
        module=model,
        examples=inputs.examples,
        axes=inputs.axes,
        sizes=inputs.sizes,
        checks=checks_for(inputs.sizes, inputs.examples, inputs.axes),
        call=call,
        pretrained=True,
        task=task,
        findings=(*findings, *inputs.findings),
    )


def load_pretrained(place: Path, architecture: str) -> tuple[Any, list[events.Finding]]:
    """Return the model of a local directory, every weight from its files, and what was found on the way.

    Weights of 16 bits become float32, which is exact. No code of the directory runs.

    Raises:
        UnsupportedError: transformers does not know the model. InputError: weights are missing or do not fit.
    """
    import torch

    made = _model_class(architecture)
    options: dict[str, Any] = {
        "dtype": torch.float32,
        "local_files_only": True,
        "use_safetensors": True,
        "trust_remote_code": False,
        "output_loading_info": True,
        "attn_implementation": "eager",  # some models choose their layers by it, once and for all
    }
    config = _config(place)
    model, info = _load(made, place, config, options)
    missing = sorted(info["missing_keys"])
    if missing and all("pooler" in name for name in missing) and "add_pooling_layer" in _parameters(made.__init__):
        model, info = _load(made, place, config, {**options, "add_pooling_layer": False})
        missing = sorted(info["missing_keys"])
    if missing or info["mismatched_keys"]:
        named = missing or [str(item) for item in info["mismatched_keys"]]
        raise InputError(
            f"{len(named)} weights of {type(model).__name__} are missing or of another shape: they would be random",
            where=str(named[0]),
            remedy="Save the whole trained model, or correct `architectures` in config.json.",
        )
    return model, _unused(sorted(info["unexpected_keys"]))


def _load_changed(folder: Path, record: dict[str, Any]) -> tuple[Any, list[events.Finding]]:
    """Return the model that a stage changed: built from its configuration, then from its changes and its state."""
    import torch

    named = [*read_header(folder / WEIGHTS), *record["aliases"]]
    torch.manual_seed(0)  # of no effect on what is loaded
    model = _from_config(str(record["architecture"]), _config(folder / FOLDER), named)
    model = apply_changes(model, changes_of(record))
    load_state(model, folder / WEIGHTS, record["aliases"], str(record["architecture"]))
    return model, []


def model_from_config(architecture: str, config: Mapping[str, Any], like: Any) -> Any:
    """Return a network with random weights from the content of a `config.json`, with a pooler where `like` has one.

    Raises whatever transformers raises for numbers that do not go together.
    """
    import transformers

    made = transformers.AutoConfig.for_model(**{key: value for key, value in config.items() if key != "auto_map"})
    for name in _QUIET:
        if hasattr(made, name):
            setattr(made, name, False)
    return _from_config(architecture, made, list(like.state_dict()))


def _from_config(architecture: str, config: Any, names: Sequence[str]) -> Any:
    """Build a model class in float32 with eager attention; without a pooler where no tensor is named after one."""
    import torch

    made = _model_class(architecture)
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    if "add_pooling_layer" in _parameters(made.__init__) and not any("pooler" in name for name in names):
        options["add_pooling_layer"] = False
    return made._from_config(config, **options).eval()  # noqa: SLF001 - the public way guesses a class


def _config(place: Path) -> Any:
    """Return the configuration of a directory, without outputs that only cost time."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, TypeError) as error:
        raise UnsupportedError(
            f"transformers {transformers.__version__} does not know this model: {str(error)[:300]}",
            where="config.json: model_type",
            remedy="Install the version of transformers that config.json names.",
        ) from error
    for name in _QUIET:
        if hasattr(config, name):
            setattr(config, name, False)
    return config


def known_task(name: str, guess: str) -> str:
    """Name the task of a model class by optimum's tables; `guess` wins where the tables list the class under it.

    The tables list a class under several tasks (BART's is first under `fill-mask`), some in tuples.
    """
    from optimum.exporters.tasks import TasksManager

    tables: dict[str, dict[str, Any]] = TasksManager._TRANSFORMERS_TASKS_TO_MODEL_MAPPINGS  # noqa: SLF001
    tasks = [
        task
        for task, classes in tables.items()
        if any(name in (listed if isinstance(listed, (tuple, list)) else (listed,)) for listed in classes.values())
    ]
    return guess if guess in tasks or not tasks else tasks[0]


def _model_class(architecture: str) -> Any:
    import transformers

    made = getattr(transformers, architecture or "AutoModel", None)
    known = isinstance(made, type) and (not architecture or issubclass(made, transformers.PreTrainedModel))
    if not known:
        raise UnsupportedError(
            f"transformers {transformers.__version__} has no model class '{architecture}'",
            where="config.json: architectures",
            remedy="Install the version of transformers that config.json names, or give python:module:factory.",
        )
    return made


def _load(made: Any, place: Path, config: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    try:
        model, info = made.from_pretrained(place, config=config, **options)
    except (RuntimeError, ValueError, KeyError, OSError, TypeError, AttributeError) as error:
        raise InputError(
            f"the weights cannot be loaded: {str(error)[:500]}",
            where="config.json",
            remedy="Check that config.json and the weights belong together.",
        ) from error
    return model, info


def _unused(names: list[str]) -> list[events.Finding]:
    if not names:
        return []
    return [
        events.Finding(
            severity="note",
            node=names[0],
            rule="unused-weights",
            text=f"{len(names)} tensors of the files belong to no part of this architecture and are left out",
        )
    ]


def _parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)
