"""Take in a Hugging Face directory: checks and copies, without torch.

Everything is judged from `config.json`, the JSON files beside it and the headers of the safetensors files.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec

from edgekit import events
from edgekit.errors import InputError, UnsupportedError
from edgekit.networks.record import copy_file, read_json, write_record
from edgekit.networks.weights import Entry, read_header

FOLDER = "hf"
KEPT = (
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
    "video_preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt", "*.model", "chat_template.*", "modules.json",
    "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json", "LICENSE*", "LICENCE*",
)  # fmt: skip
"""What is copied beside the weights; nothing executable."""

_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_SAVE = "Save it as safetensors: load it where you trust it, then `model.save_pretrained(folder)`."
_MAX_LICENCE = 1 << 18
_BIGGEST = 1 << 31

_TASKS = (
    (r"ForSequenceClassification$", "text-classification"),
    (r"ForTokenClassification$", "token-classification"),
    (r"ForQuestionAnswering(Simple)?$", "question-answering"),
    (r"ForMultipleChoice$", "multiple-choice"),
    (r"ForMaskedLM$", "fill-mask"),
    (r"ForImageClassification", "image-classification"),
    (r"ForVideoClassification$", "video-classification"),
    (r"For(Semantic|Instance|Universal|Image)?Segmentation$", "image-segmentation"),
    (r"ForZeroShotObjectDetection$", "zero-shot-object-detection"),
    (r"ForObjectDetection$", "object-detection"),
    (r"ForDepthEstimation$", "depth-estimation"),
    (r"ForImageSuperResolution$", "image-to-image"),
    (r"ForMaskedImageModeling$", "masked-im"),
    (r"ForAudioFrameClassification$", "audio-frame-classification"),
    (r"ForAudioClassification$", "audio-classification"),
    (r"ForXVector$", "audio-xvector"),
    (r"(ForCTC|ForSpeechToText|ForSpeechSeq2Seq)$", "automatic-speech-recognition"),
    (r"ForTextToSpeech$", "text-to-audio"),
    (r"(ForCausalLM|LMHeadModel)$", "text-generation"),
)
_AUDIO = ("num_mel_bins", "num_feat_extract_layers", "feat_extract_norm", "feature_projection_input_dim")


def intake_directory(source: Path, out: Path, listen: events.Listener = events.ignore) -> dict[str, Any]:
    """Copy a Hugging Face model directory into `out` and return the artifact's facts.

    Args:
        source: holds `config.json` and safetensors weights, whole or in shards.
        out: an empty folder; gets `record.json` and `hf/...`.
        listen: is told of findings.

    Raises:
        InputError: a file is missing, broken or only there as a pickle.
        UnsupportedError: it needs code of its own, or its weights are already quantized.
    """
    config = read_config(source)
    files, header = weight_files(source)
    findings = _judge_dtypes(header)
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_file() and any(fnmatch(name, kept) for kept in KEPT):
            copy_file(path, out / FOLDER / name)
    for name, path in files.items():
        copy_file(path, out / FOLDER / name)
    architecture = config["architectures"][0] if config.get("architectures") else ""
    if not architecture:
        findings.append(
            events.Finding(
                severity="warning",
                node="config.json",
                rule="no-architecture",
                text="config.json names no architecture: the base model of its type is used, without a task head",
                remedy="Add `architectures` to config.json if the model has a head.",
            )
        )
    write_record(out, {"from": "huggingface", "architecture": architecture})
    for finding in findings:
        listen(events.Found(finding=finding))
    return {
        "kind": "torch",
        "task": task_of(architecture, config),
        "labels": labels_of(config),
        "preprocessing": preprocessing_of(source),
        "license": license_of(source),
        "source": {"from": "huggingface", "architecture": architecture, "model_type": config["model_type"]},
        "findings": [msgspec.to_builtins(finding) for finding in findings],
    }


def read_config(source: Path) -> dict[str, Any]:
    """Read and judge `config.json`; see `intake_directory` for the errors."""
    if not (source / "config.json").is_file():
        if (source / "adapter_config.json").is_file():
            raise UnsupportedError(
                "an adapter without its base model",
                where="adapter_config.json",
                remedy="Merge it into the base model (`merge_and_unload()`) and save the result.",
            )
        if (source / "model_index.json").is_file():
            raise UnsupportedError(
                "a diffusers pipeline is several models",
                where="model_index.json",
                remedy="Build one of its component folders.",
            )
        raise InputError("no config.json", where=source.name, remedy="Give the folder that `save_pretrained` wrote.")
    config = read_json(source / "config.json")
    if config.get("auto_map"):
        raise UnsupportedError(
            "the model needs code from its own repository (`auto_map`), which edgekit never runs",
            where="config.json: auto_map",
            remedy="Give it as python:module:factory with code that you have read.",
        )
    if config.get("quantization_config"):
        raise UnsupportedError(
            "the weights are already quantized",
            where="config.json: quantization_config",
            remedy="Give the float model: edgekit quantizes it for the device.",
        )
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(
            "`architectures` must be a list of class names",
            where="config.json: architectures",
            remedy="Restore the file as `save_pretrained` wrote it.",
        )
    if not isinstance(config.get("model_type"), str):
        raise InputError(
            "`model_type` is missing",
            where="config.json: model_type",
            remedy="Add the type that transformers knows the model by, e.g. `bert`.",
        )
    return config


def weight_files(source: Path) -> tuple[dict[str, Path], dict[str, Entry]]:
    """Return the weight files (name in the artifact -> path) and all their tensors, every header checked."""
    if (source / _INDEX).is_file():
        return _shards(source)
    found = sorted(path for path in source.glob("*.safetensors") if path.is_file())
    whole = source / "model.safetensors"
    if whole not in found and len(found) > 1:
        raise InputError(
            f"{len(found)} safetensors files and no {_INDEX}",
            where=source.name,
            remedy=f"Add the index. {_SAVE}",
        )
    if found:
        chosen = whole if whole in found else found[0]
        return {"model.safetensors": chosen}, read_header(chosen)
    pickles = [path.name for pattern in _PICKLES for path in source.glob(pattern)]
    if pickles:
        raise InputError(
            "the weights are a pickle, which can run code when it is read",
            where=min(pickles),
            remedy=_SAVE,
        )
    raise InputError("no *.safetensors", where=source.name, remedy=_SAVE)


def _shards(source: Path) -> tuple[dict[str, Path], dict[str, Entry]]:
    placed = read_json(source / _INDEX).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise InputError("`weight_map` is missing", where=_INDEX, remedy=_SAVE)
    files: dict[str, Path] = {_INDEX: source / _INDEX}
    tensors: dict[str, Entry] = {}
    for name in sorted({str(value) for value in placed.values()}):
        if "/" in name or "\\" in name or name.startswith(".") or not name.endswith(".safetensors"):
            raise InputError(f"unsafe shard name {name!r}", where=_INDEX, remedy=_SAVE)
        if not (source / name).is_file():
            raise InputError("a shard that the index names is missing", where=name, remedy="Fetch it again.")
        files[name] = source / name
        tensors.update(read_header(source / name))
    absent = sorted(name for name in placed if name not in tensors)
    if absent:
        raise InputError(
            f"{len(absent)} tensors of the index are in no shard",
            where=absent[0],
            remedy="Fetch the shards again.",
        )
    return files, tensors


def _judge_dtypes(header: dict[str, Entry]) -> list[events.Finding]:
    wide = [name for name, entry in header.items() if entry.dtype == "F64"]
    if not wide:
        return []
    text = f"{len(wide)} float64 tensors are computed in float32"
    return [events.Finding(severity="warning", node=wide[0], rule="float64-weights", text=text)]


def task_of(architecture: str, config: dict[str, Any]) -> str:
    """Name the task of an architecture in the words of optimum's tables; `feature-extraction` for a bare model."""
    audio = any(key in config for key in _AUDIO)
    for pattern, task in _TASKS:
        if re.search(pattern, architecture):
            if task == "text-classification" and audio:
                return "audio-classification"
            if task == "question-answering" and "image_size" in config:
                return "visual-question-answering"
            return task
    if architecture.endswith("ForConditionalGeneration"):
        if audio:
            return "automatic-speech-recognition"
        return "image-text-to-text" if "vision_config" in config else "text2text-generation"
    return "image-to-text" if architecture == "VisionEncoderDecoderModel" else "feature-extraction"


def labels_of(config: dict[str, Any]) -> list[str]:
    """Return class names in the order of the outputs; empty when the model has none of its own.

    Raises:
        InputError: the ids are not 0..n-1.
    """
    table = config.get("id2label")
    if not isinstance(table, dict) or not table:
        return []
    try:
        named = {int(key): str(value) for key, value in table.items()}
    except ValueError:
        named = {}
    if sorted(named) != list(range(len(table))):
        raise InputError(
            "`id2label` must number the classes 0, 1, 2, ... without gaps",
            where="config.json: id2label",
            remedy="Correct the table: key i names output i.",
        )
    names = [named[index] for index in range(len(named))]
    placeholders = all(name == f"LABEL_{index}" for index, name in enumerate(names))
    return [] if placeholders else names


def preprocessing_of(source: Path) -> dict[str, Any]:
    """Return the raw parameters of the image or audio processor and of the tokenizer."""
    found: dict[str, Any] = {"from": "huggingface"}
    for key, name in (
        ("preprocessor", "preprocessor_config.json"),
        ("processor", "processor_config.json"),
        ("sentence", "sentence_bert_config.json"),
        ("pooling", "1_Pooling/config.json"),
    ):
        if (source / name).is_file():
            found[key] = _plain(read_json(source / name))
    if (source / "tokenizer_config.json").is_file():
        found["tokenizer"] = _plain(read_json(source / "tokenizer_config.json"))
        for key in (
            "chat_template",
            "name_or_path",
            "special_tokens_map_file",
        ):  # long, or of the author's machine
            found["tokenizer"].pop(key, None)
    for name in ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model"):
        if (source / name).is_file():
            found["tokenizer_file"] = f"{FOLDER}/{name}"
            break
    return found if len(found) > 1 else {}


def _plain(value: Any) -> Any:
    """Drop what is no finite JSON number of 32 bits: tokenizers write 10**30 for `no limit`."""
    if isinstance(value, dict):
        kept = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _BIGGEST:
        return None
    return value


def license_of(source: Path) -> dict[str, str]:
    """Return the license's `name` (from the model card) and `text` (the file that lies there), where known."""
    found: dict[str, str] = {}
    card = source / "README.md"
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as file:
            head = file.read(1 << 16)
        front = re.match(r"---\s*\n(.*?)\n---", head, re.DOTALL)
        name = re.search(r"^license:\s*['\"]?([\w.+-]+)", front.group(1), re.MULTILINE) if front else None
        if name:
            found["name"] = name.group(1)
    for path in sorted([*source.glob("LICENSE*"), *source.glob("LICENCE*")]):
        if path.is_file() and path.stat().st_size <= _MAX_LICENCE:
            found["text"] = path.read_text(encoding="utf-8", errors="replace")
            break
    return found
