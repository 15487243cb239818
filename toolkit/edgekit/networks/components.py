"""The graphs that a model is exported as: one for most, several for what generates text with a cache.

A decoder takes the keys and values of the tokens before (`past_key_values.N.key`, empty at the start) and returns
them with the new ones (`present.N.key`). An encoder-decoder is two graphs: `encoder.onnx` also projects what the
decoder attends to (`cross.N.key`), once, and `decoder.onnx` takes that in every step. No weight of the layers is in
both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgekit.artifact import MAIN
from edgekit.errors import UnsupportedError
from edgekit.networks.network import BATCH, Axes, Network

if TYPE_CHECKING:
    import torch

ENCODER = "encoder.onnx"
DECODER = "decoder.onnx"

_SIZES = {BATCH: 2, "sequence": 5, "past_sequence": 4}
_CHECKS = ({BATCH: 1, "sequence": 3, "past_sequence": 0}, {BATCH: 3, "sequence": 1, "past_sequence": 6})
_LARGEST = (3, 5, 6)
_SINGLE = "Give another architecture of it (e.g. one for classification or feature extraction)."

Pairs = list[tuple["torch.Tensor", "torch.Tensor"]]


def components(network: Network) -> dict[str, Callable[[], Network]]:
    """Return graph file name -> what makes its network.

    Raises:
        UnsupportedError: a generating model of a kind that has no such graphs yet; says what is missing.
    """
    model: Any = network.module
    if not network.pretrained or not getattr(model, "can_generate", lambda: False)():
        return {MAIN: lambda: network}
    if getattr(model.config, "is_encoder_decoder", False):
        return {ENCODER: lambda: encoder(network), DECODER: lambda: decoder(network)}
    if network.task == "text-generation":
        return {MAIN: lambda: causal(network)}
    raise UnsupportedError(
        f"a model for {network.task or 'generation'} is several graphs of a kind that is not exported yet:"
        " its language model reads embeddings that other parts make",
        where=type(model).__name__,
        remedy=_SINGLE,
    )


def causal(network: Network) -> Network:
    """Return a decoder with its cache as one graph: ids, mask and past in; logits and present out."""
    model: Any = network.module
    layers = _self_layers(model, _first_pass(model))
    words = int(model.config.get_text_config().vocab_size)
    examples, axes = _token_inputs("input_ids", words)
    positions = "position_ids" in inspect.signature(model.forward).parameters
    batch, sequence, past = _LARGEST
    examples["attention_mask"], axes["attention_mask"] = (
        _mask(batch, past + sequence),
        {0: BATCH, 1: "total_sequence"},
    )
    examples["attention_mask"][1, 0] = 0  # padded on the left, as decoders are
    if positions:
        examples["position_ids"], axes["position_ids"] = _counting(batch, sequence), {0: BATCH, 1: "sequence"}
    _add_pairs("past_key_values", layers, past, "past_sequence", examples, axes)

    def call(feed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        cache = _cache(_pairs("past_key_values", feed))
        kept = {name: value for name, value in feed.items() if not name.startswith("past_key_values.")}
        found = model(**kept, **{_keyword(model): cache}, use_cache=True, return_dict=True)
        return {"logits": found.logits, **_named("present", _layers(cache))}

    return replace(
        network,
        examples=examples,
        axes=axes,
        sizes=_total(_SIZES),
        checks=tuple(_total(check) for check in _CHECKS),
        call=call,
        pretrained=False,
    )


def encoder(network: Network) -> Network:
    """Return the encoder, with the keys and values that the decoder's cross attention reads."""
    model: Any = network.module
    part = model.get_encoder()
    wanted = inspect.signature(part.forward).parameters
    examples = {name: value for name, value in network.examples.items() if name in wanted}

    def call(feed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        hidden = part(**feed, return_dict=True).last_hidden_state
        return {"last_hidden_state": hidden, **_named("cross", _cross_layers(model, hidden, feed))}

    return replace(
        network,
        examples=examples,
        axes={name: table for name, table in network.axes.items() if name in examples},
        call=call,
        pretrained=False,
    )


def decoder(network: Network) -> Network:
    """Return the decoder of an encoder-decoder: ids, its own past and the encoder's keys and values in."""
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    model: Any = network.module
    with torch.no_grad():
        small = {name: value[:1] for name, value in encoder(network).examples.items()}
        hidden = model.get_encoder()(**small, return_dict=True).last_hidden_state
        cross = _cross_layers(model, hidden, small)
        own = _self_layers(model, _first_pass(model, hidden, small))
    length, fixed = (hidden.shape[1], "sequence" not in network.labels()) if hidden.dim() > 2 else (1, True)  # noqa: PLR2004
    source = "" if fixed else "encoder_sequence"
    words = int(model.config.get_text_config(decoder=True).vocab_size)
    examples, axes = _token_inputs("decoder_input_ids", words)
    batch, _, past = _LARGEST
    length = length if fixed else 8
    if "attention_mask" in small:
        examples["attention_mask"] = _mask(batch, length)
        examples["attention_mask"][1, 2:] = 0
        axes["attention_mask"] = {0: BATCH, 1: source} if source else {0: BATCH}
    _add_pairs("past_key_values", own, past, "past_sequence", examples, axes)
    _add_pairs("cross", cross, length, source, examples, axes)
    width = int(hidden.shape[-1])

    def call(feed: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        from transformers import EncoderDecoderCache

        key = feed["cross.0.key"]
        cache = EncoderDecoderCache(_cache(_pairs("past_key_values", feed)), _cache(_pairs("cross", feed)))
        states = BaseModelOutput(last_hidden_state=key.new_zeros(key.shape[0], key.shape[2], width))
        kept = {name: feed[name] for name in ("decoder_input_ids", "attention_mask") if name in feed}
        options = {_keyword(model): cache, "encoder_outputs": states, "use_cache": True, "return_dict": True}
        found = model(**kept, **options)
        return {"logits": found.logits, **_named("present", _layers(cache.self_attention_cache))}

    extra = {"encoder_sequence": (6, 3, 8)} if source else {}
    sizes, *checks = (
        _total({**base, **{name: values[index] for name, values in extra.items()}})
        for index, base in enumerate((_SIZES, *_CHECKS))
    )
    return replace(
        network, examples=examples, axes=axes, sizes=sizes, checks=tuple(checks), call=call, pretrained=False
    )


def _first_pass(model: Any, hidden: Any = None, feed: dict[str, torch.Tensor] | None = None) -> Any:
    """Run one step without a past and return the cache, plain keys and values in every layer.

    Raises:
        UnsupportedError: the model cannot work with such a cache.
    """
    import torch
    from transformers import DynamicCache, EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput

    cache: Any = DynamicCache()
    given: dict[str, Any] = {"input_ids": torch.ones((1, 2), dtype=torch.int64)}
    if hidden is not None:
        cache = EncoderDecoderCache(cache, DynamicCache())
        start = getattr(model.config, "decoder_start_token_id", None) or 0
        given = {"decoder_input_ids": torch.full((hidden.shape[0], 1), start, dtype=torch.int64)}
        given["encoder_outputs"] = BaseModelOutput(last_hidden_state=hidden)
        if feed and "attention_mask" in feed and "attention_mask" in inspect.signature(model.forward).parameters:
            given["attention_mask"] = feed["attention_mask"]
    try:
        model(**given, **{_keyword(model): cache}, use_cache=True, return_dict=True)
    except (IndexError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise _no_cache(model, f" ({type(error).__name__}: {error})") from error
    return cache


def _no_cache(model: Any, reason: str) -> UnsupportedError:
    text = f"it keeps something else than keys and values of its past tokens{reason[:300]}"
    return UnsupportedError(text, where=type(model).__name__, remedy=_SINGLE)


def _cross_layers(model: Any, hidden: torch.Tensor, feed: dict[str, torch.Tensor]) -> Pairs:
    return _layers(_first_pass(model, hidden, feed).cross_attention_cache)


def _self_layers(model: Any, cache: Any) -> Pairs:
    found = _layers(getattr(cache, "self_attention_cache", cache))
    if not found:
        raise _no_cache(model, "")
    return found


def _layers(cache: Any) -> Pairs:
    pairs = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    if any(key is None or value is None or key.dim() != 4 for key, value in pairs):  # noqa: PLR2004 - batch, head, token, width
        return []
    return [(key, value) for key, value in pairs if key is not None and value is not None]


def _cache(pairs: Pairs) -> Any:
    from transformers import DynamicCache

    return DynamicCache(pairs)


def _keyword(model: Any) -> str:
    names = inspect.signature(model.forward).parameters
    return next(name for name in ("cache", "past_key_values") if name in names)


def _named(prefix: str, pairs: Pairs) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{index}.{side}": value for index, pair in enumerate(pairs)
            for side, value in zip(("key", "value"), pair, strict=True)}  # fmt: skip


def _pairs(prefix: str, feed: dict[str, torch.Tensor]) -> Pairs:
    count = sum(name.startswith(f"{prefix}.") for name in feed) // 2
    return [(feed[f"{prefix}.{index}.key"], feed[f"{prefix}.{index}.value"]) for index in range(count)]


def _add_pairs(
    prefix: str, like: Pairs, length: int, label: str, examples: dict[str, torch.Tensor], axes: Axes
) -> None:
    import torch

    for name, value in _named(prefix, like).items():
        shape = (_LARGEST[0], value.shape[1], length, value.shape[3])
        examples[name] = torch.randn(shape, generator=torch.Generator().manual_seed(len(examples)))
        axes[name] = {0: BATCH, 2: label} if label else {0: BATCH}


def _token_inputs(name: str, words: int) -> tuple[dict[str, torch.Tensor], Axes]:
    import torch

    ids = torch.randint(0, words, _LARGEST[:2], generator=torch.Generator().manual_seed(0))
    return {name: ids}, {name: {0: BATCH, 1: "sequence"}}


def _total(sizes: dict[str, int]) -> dict[str, int]:
    return {**sizes, "total_sequence": sizes["sequence"] + sizes["past_sequence"]}


def _mask(*shape: int) -> torch.Tensor:
    import torch

    return torch.ones(shape, dtype=torch.int64)


def _counting(batch: int, length: int) -> torch.Tensor:
    import torch

    return torch.arange(length).repeat(batch, 1)
