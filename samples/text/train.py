"""Fine-tune MiniLM for valence: the last of its six layers, the pooler and a classifier of two classes.

    python -m samples.text.train        fits head.npz, the linear probe that metric.py judges the plain encoder with

Seeded, on one thread; the settings were chosen once and not by the evaluation snippets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification

from samples.text import vader
from samples.text.vader import Snippet

HERE = Path(__file__).resolve().parent
MAX_LENGTH = 64
BATCH, EPOCHS, RATE, WARMUP = 32, 2, 3e-4, 50
CARD = """---
license: apache-2.0
pipeline_tag: text-classification
---
MiniLM-L6 (all-MiniLM-L6-v2, Apache-2.0), fine-tuned on movie review snippets of VADER (MIT) by samples/text/fetch.py.
"""

Encoded = list[list[int]]


def encode(folder: Path, snippets: Sequence[Snippet]) -> Encoded:
    """Return token ids, at most 64 a snippet."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    return [found.ids for found in tokenizer.encode_batch([snippet.text for snippet in snippets])]


def batches(encoded: Encoded, order: np.ndarray[Any, Any]) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
    """Yield rows and inputs of batches of similar length, padded to the longest."""
    for start in range(0, len(order), 20 * BATCH):
        window = sorted((int(row) for row in order[start : start + 20 * BATCH]), key=lambda row: len(encoded[row]))
        for first in range(0, len(window), BATCH):
            rows = window[first : first + BATCH]
            ids = torch.zeros(len(rows), max(len(encoded[row]) for row in rows), dtype=torch.long)
            for line, row in enumerate(rows):
                ids[line, : len(encoded[row])] = torch.tensor(encoded[row])
            yield rows, {"input_ids": ids, "attention_mask": (ids > 0).long()}


def load_classifier(folder: Path) -> Any:
    """Return the encoder with a fresh classifier; only what is trained asks for gradients."""
    network = AutoModelForSequenceClassification.from_pretrained(
        folder,
        id2label=dict(enumerate(vader.LABELS)),
        label2id={name: index for index, name in enumerate(vader.LABELS)},
    )
    network.requires_grad_(requires_grad=False)
    for part in (network.bert.encoder.layer[-1], network.bert.pooler, network.classifier):
        part.requires_grad_(requires_grad=True)
    return network


def train(folder: Path, training: Sequence[Snippet], evaluation: Sequence[Snippet], out: Path) -> float:
    """Fine-tune, write a Hugging Face directory without tokenizer to `out`, and return the accuracy."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    start = time.process_time()
    network = load_classifier(folder)
    encoded, labels = encode(folder, training), torch.tensor([snippet.label for snippet in training])
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=RATE, weight_decay=0.01)
    steps = EPOCHS * -(-len(training) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _ramp(steps))
    generator = np.random.default_rng(0)
    network.train()
    for epoch in range(EPOCHS):
        losses = []
        for rows, inputs in batches(encoded, generator.permutation(len(encoded))):
            loss = functional.cross_entropy(network(**inputs).logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        spent = time.process_time() - start
        print(f"epoch {epoch + 1}/{EPOCHS}  loss {np.mean(losses):.4f}  {spent:.0f} CPU s", flush=True)
    network.eval()
    network.save_pretrained(out)
    (out / "README.md").write_text(CARD, encoding="utf-8")
    return _accuracy(network, encode(folder, evaluation), evaluation)


def _ramp(steps: int) -> Callable[[int], float]:
    """Return the learning rate's factor by step: up over the warm-up, then down to zero."""
    return lambda step: min(1.0, (step + 1) / WARMUP) * max(0.0, 1 - step / steps)


def _accuracy(network: Any, encoded: Encoded, snippets: Sequence[Snippet]) -> float:
    """Return the share of snippets that is classified right."""
    right = 0
    with torch.inference_mode():
        for rows, inputs in batches(encoded, np.arange(len(encoded))):
            found = network(**inputs).logits.argmax(1).tolist()
            right += sum(snippets[row].label == label for row, label in zip(rows, found, strict=True))
    return right / len(snippets)


def fit_head(folder: Path, training: Sequence[Snippet], evaluation: Sequence[Snippet], out: Path) -> float:
    """Fit logistic regression on the first token's last hidden state, write `weight` and `bias`, return accuracy."""
    encoder = AutoModel.from_pretrained(folder).eval()
    states = [_first_states(encoder, encode(folder, snippets)) for snippets in (training, evaluation)]
    labels = [torch.tensor([snippet.label for snippet in snippets]).double() for snippets in (training, evaluation)]
    weight = torch.zeros(states[0].shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(states[0] @ weight + bias, labels[0])
        loss = loss + 1e-4 * weight.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    weight, bias = weight.detach(), bias.detach()
    np.savez(out, weight=weight.numpy().astype(np.float32), bias=bias.numpy().astype(np.float32))
    return float((((states[1] @ weight + bias) > 0) == (labels[1] > 0)).double().mean())


def _first_states(encoder: Any, encoded: Encoded) -> torch.Tensor:
    """Return the first token's last hidden state of each text, float64 `[n, 384]`."""
    found = torch.zeros(len(encoded), encoder.config.hidden_size, dtype=torch.float64)
    with torch.inference_mode():
        for rows, inputs in batches(encoded, np.arange(len(encoded))):
            found[rows] = encoder(**inputs).last_hidden_state[:, 0].double()
    return found


def main() -> None:
    torch.set_num_threads(1)
    calibration, training, evaluation = vader.load()
    accuracy = fit_head(HERE / "minilm", [*calibration, *training], evaluation, HERE / "head.npz")
    print(f"{HERE / 'head.npz'}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
