"""Train the vision sample on all 60,000 Fashion-MNIST images: about 12 minutes on one CPU thread.

    python -m samples.vision.train [--epochs 14] [--out samples/vision/model.safetensors]

The settings were fixed before the test images were looked at; the weights are an exponential moving average over the
last steps. Seeded and single-threaded: the same machine and torch version give the same weights again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional

from samples.vision import fashion_mnist
from samples.vision.network import FashionNet, build

HERE = Path(__file__).resolve().parent
BATCH = 128
MIRRORED = 0.5


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shift `[n, 1, 28, 28]` images by up to 2 pixels and mirror every other one at random."""
    padded = functional.pad(images, (2, 2, 2, 2), value=float(images.min()))
    top, left = (int(v) for v in torch.randint(0, 5, (2,), generator=generator))
    moved = padded[:, :, top : top + 28, left : left + 28]
    mirror = torch.rand(len(images), generator=generator) < MIRRORED
    return torch.where(mirror[:, None, None, None], moved.flip(3), moved)


def optimizer_for(network: FashionNet) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum; weight decay on convolution and linear weights only."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    free = [p for p in network.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 5e-4}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)


def train(epochs: int) -> FashionNet:
    """Return the trained network (the moving average), ready to export."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True)
    generator = torch.Generator().manual_seed(0)
    images, classes = fashion_mnist.load("train")
    x, y = torch.from_numpy(fashion_mnist.normalize(images)), torch.from_numpy(classes)
    network = build().to(memory_format=torch.channels_last)
    optimizer = optimizer_for(network)
    steps = epochs * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps, pct_start=0.2)
    average = torch.optim.swa_utils.AveragedModel(
        network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.998), use_buffers=True
    )
    start = time.process_time()
    for epoch in range(epochs):
        network.train()
        losses = []
        order = torch.randperm(len(x), generator=generator)[: len(x) // BATCH * BATCH].view(-1, BATCH)
        for rows in order:
            batch = augment(x[rows], generator).contiguous(memory_format=torch.channels_last)
            loss = functional.cross_entropy(network(batch), y[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            average.update_parameters(network)
            losses.append(float(loss.detach()))
        spent = time.process_time() - start
        print(f"epoch {epoch + 1}/{epochs}  loss {np.mean(losses):.4f}  {spent:.0f} CPU s", flush=True)
    trained: FashionNet = average.module
    for name, counter in trained.named_buffers():
        if name.endswith("num_batches_tracked"):
            counter.zero_()  # steps of training mean nothing to a moving average
    return trained.to(memory_format=torch.contiguous_format).eval()


def accuracy(network: FashionNet) -> float:
    """Return the share of the 10,000 test images that is classified right."""
    images, classes = fashion_mnist.load("t10k")
    with torch.inference_mode():
        chunks = torch.from_numpy(fashion_mnist.normalize(images)).split(500)
        found = torch.cat([network(chunk).argmax(1) for chunk in chunks])
    return float((found == torch.from_numpy(classes)).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--out", type=Path, default=HERE / "model.safetensors")
    options = parser.parse_args()
    network = train(options.epochs)
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, options.out)
    print(f"test accuracy {accuracy(network):.4f}  {options.out}")


if __name__ == "__main__":
    main()
