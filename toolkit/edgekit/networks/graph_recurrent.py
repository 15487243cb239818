"""ONNX recurrent operators in torch: LSTM, GRU and RNN, step by step, with their usual activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgekit.networks.graph_ops import Attributes, operator

if TYPE_CHECKING:
    import torch

_PLAIN = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

States = tuple[Any, ...]
Step = Callable[[Any, States, Any, Any, Any], States]


@operator("LSTM")
def _lstm(x: list[Any], a: Attributes) -> Any:
    return _run("LSTM", x, a, _lstm_step)


@operator("GRU")
def _gru(x: list[Any], a: Attributes) -> Any:
    reset_after = bool(a.get("linear_before_reset", 0))
    return _run("GRU", x, a, lambda *given: _gru_step(*given, reset_after=reset_after))


@operator("RNN")
def _rnn(x: list[Any], a: Attributes) -> Any:
    return _run("RNN", x, a, _rnn_step)


def _run(kind: str, x: list[Any], a: Attributes, step: Step) -> Any:
    """Run all directions: inputs X, W, R, B, sequence_lens, initial_h, initial_c, P; outputs Y, Y_h (and Y_c)."""
    import torch

    given = [*x, *[None] * (8 - len(x))]
    data, matrices, states, biases = given[:4]
    _check(kind, given, a)
    if a.get("layout", 0):
        data = data.transpose(0, 1)
    direction = _text(a.get("direction", "forward"))
    count, batch, hidden = len(matrices), data.shape[1], states.shape[-1]
    starts = (given[5], given[6] if kind == "LSTM" else None)
    outputs, last = [], []
    for number in range(count):
        turned = direction == "reverse" or number == 1
        bias = data.new_zeros(2 * _GATES[kind] * hidden) if biases is None else biases[number]
        held: States = tuple(
            data.new_zeros(batch, hidden) if value is None else _start(value, number, a)
            for value in starts[: 2 if kind == "LSTM" else 1]
        )
        found = []
        for at in reversed(range(len(data))) if turned else range(len(data)):
            held = step(data[at], held, matrices[number], states[number], bias)
            found.append(held[0])
        outputs.append(torch.stack(found[::-1] if turned else found))
        last.append(held)
    rows = torch.stack(outputs, 1)
    ends = [torch.stack(values) for values in zip(*last, strict=True)]
    if a.get("layout", 0):
        rows, ends = rows.permute(2, 0, 1, 3), [value.transpose(0, 1) for value in ends]
    return (rows, *ends)


def _check(kind: str, given: list[Any], a: Attributes) -> None:
    names = tuple(_text(name).lower() for name in a.get("activations", ()))
    plain = _PLAIN[kind]
    if names and any(names[at : at + len(plain)] != plain for at in range(0, len(names), len(plain))):
        raise NotImplementedError(f"{kind} with the activations {', '.join(names)}")
    lengths = given[4]
    if lengths is not None and bool((lengths != given[0].shape[1 if a.get("layout", 0) else 0]).any()):
        raise NotImplementedError(f"{kind} over sequences of several lengths")
    if "clip" in a or a.get("input_forget", 0) or given[7] is not None:
        raise NotImplementedError(f"{kind} with clip, input_forget or peepholes")


def _start(value: torch.Tensor, number: int, a: Attributes) -> Any:
    return value[:, number] if a.get("layout", 0) else value[number]


def _lstm_step(x: Any, held: States, w: Any, r: Any, bias: Any) -> States:
    import torch

    h, c = held
    half = len(bias) // 2
    i, o, f, n = (x @ w.transpose(0, 1) + h @ r.transpose(0, 1) + bias[:half] + bias[half:]).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(x: Any, held: States, w: Any, r: Any, bias: Any, *, reset_after: bool) -> States:
    import torch

    (h,) = held
    width = h.shape[-1]
    mine, theirs = bias[: 3 * width], bias[3 * width :]
    given = x @ w.transpose(0, 1) + mine
    gates = given[:, : 2 * width] + h @ r[: 2 * width].transpose(0, 1) + theirs[: 2 * width]
    z, reset = torch.sigmoid(gates).chunk(2, -1)
    rest = r[2 * width :].transpose(0, 1)
    more = reset * (h @ rest + theirs[2 * width :]) if reset_after else (reset * h) @ rest + theirs[2 * width :]
    new = torch.tanh(given[:, 2 * width :] + more)
    return ((1 - z) * new + z * h,)


def _rnn_step(x: Any, held: States, w: Any, r: Any, bias: Any) -> States:
    import torch

    half = len(bias) // 2
    return (torch.tanh(x @ w.transpose(0, 1) + held[0] @ r.transpose(0, 1) + bias[:half] + bias[half:]),)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
