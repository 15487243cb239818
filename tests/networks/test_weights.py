import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekit.errors import InputError
from edgekit.networks.weights import Entry, load_state, read_header, save_state
from torch_models import safetensors_bytes

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(0, np.int64), "c": np.ones(4, np.float16)}
GOOD = safetensors_bytes(ARRAYS, __metadata__={"format": "pt"})


def written(tmp_path, data):
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    return path


def test_the_header_is_read_without_torch(tmp_path):
    assert read_header(written(tmp_path, GOOD)) == {
        "a": Entry("F32", (2, 3)),
        "b": Entry("I64", (0,)),
        "c": Entry("F16", (4,)),
    }


@given(cut=st.integers(0, len(GOOD) - 1))
def test_a_file_cut_short_anywhere_is_refused(tmp_path_factory, cut):
    with pytest.raises(InputError):
        read_header(written(tmp_path_factory.mktemp("cut"), GOOD[:cut]))


def test_a_byte_too_many_is_refused(tmp_path):
    with pytest.raises(InputError, match="describes"):
        read_header(written(tmp_path, GOOD + b"x"))


def changed(**entry):
    text = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}
    raw = json.dumps(text).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(8)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "O8"},
        {"shape": [3]},
        {"shape": [-2]},
        {"shape": [True, 2]},
        {"shape": [2.0]},
        {"shape": "2"},
        {"data_offsets": [4, 12]},
        {"data_offsets": [0, 4]},
        {"data_offsets": [8, 0]},
        {"data_offsets": [0]},
        {"data_offsets": [0, 1 << 70]},
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, entry):
    assert read_header(written(tmp_path, changed()))
    with pytest.raises(InputError) as caught:
        read_header(written(tmp_path, changed(**entry)))
    assert caught.value.where == "model.safetensors"
    assert caught.value.remedy


@pytest.mark.parametrize("raw", [b"[]", b'{"a": 3}', b"\xff\xfe", b"[" * 100_000, b'{"a": {}}'])
def test_a_header_that_is_no_table_is_refused(tmp_path, raw):
    with pytest.raises(InputError):
        read_header(written(tmp_path, struct.pack("<Q", len(raw)) + raw))


def tied_net():
    import torch

    torch.manual_seed(1)
    net = torch.nn.ModuleDict({"out": torch.nn.Linear(4, 4, bias=False), "inner": torch.nn.Linear(4, 4)})
    net["out"].weight = net["inner"].weight
    net.register_buffer("view", net["inner"].bias.data[:2])
    net.register_buffer("turned", torch.randn(3, 2).t())
    net.register_buffer("nan", torch.tensor([float("nan"), -0.0, 1e-45]))
    net.register_buffer("empty", torch.zeros(0))
    net.register_buffer("empty_too", torch.zeros(0))
    return net


def test_state_comes_back_bit_exactly_with_its_ties(tmp_path):
    import torch

    net, fresh = tied_net(), tied_net()
    aliases = save_state(net, tmp_path / "w")
    assert aliases == {"out.weight": "inner.weight"}
    assert "out.weight" not in read_header(tmp_path / "w")
    with torch.no_grad():
        for value in fresh.state_dict().values():
            value.fill_(7)
    load_state(fresh, tmp_path / "w", aliases, "here")
    for name, value in net.state_dict().items():
        assert value.numpy().tobytes() == fresh.state_dict()[name].numpy().tobytes(), name
    assert fresh["out"].weight is fresh["inner"].weight


def test_a_file_with_either_name_of_a_tie_is_enough(tmp_path):
    import torch
    from safetensors.torch import save_file

    net = tied_net()
    state = {name: value.clone().contiguous() for name, value in net.state_dict().items()}
    for gone in ("out.weight", "inner.weight"):
        save_file({name: value for name, value in state.items() if name != gone}, tmp_path / gone)
        fresh = tied_net()
        with torch.no_grad():
            fresh["inner"].weight.zero_()
        load_state(fresh, tmp_path / gone, {}, "here")
        assert torch.equal(fresh["inner"].weight, net["inner"].weight)


def test_weights_that_do_not_fit_are_named(tmp_path):
    import torch
    from safetensors.torch import save_file

    net = torch.nn.Linear(3, 2)
    right = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
    for change, said in (
        ({"bias": None}, "missing bias"),
        ({"extra": torch.zeros(1)}, "not in the model extra"),
        ({"weight": torch.zeros(3, 2)}, "shape"),
        ({"weight": torch.zeros(2, 3, dtype=torch.float64)}, "values would change"),
    ):
        state = {name: value for name, value in {**right, **change}.items() if value is not None}
        save_file(state, tmp_path / "w")
        with pytest.raises(InputError, match=said):
            load_state(net, tmp_path / "w", {}, "here")
    save_file({name: value.half() + 0.5 for name, value in right.items()}, tmp_path / "w")
    load_state(net, tmp_path / "w", {}, "here")
    assert net.weight.dtype == torch.float32
    assert net.weight.eq(0.5).all()


def test_state_that_needs_pickle_is_refused(tmp_path):
    import torch

    class Extra(torch.nn.Linear):
        def get_extra_state(self):
            return {"anything": object()}

    for net, name in ((Extra(2, 2), "_extra_state"), (torch.nn.LazyLinear(3), "bias"), (lazy_meta(), "bias")):
        with pytest.raises(InputError) as caught:
            save_state(net, tmp_path / "w")
        assert caught.value.where == name


def lazy_meta():
    import torch

    return torch.nn.Linear(2, 2, device="meta")
