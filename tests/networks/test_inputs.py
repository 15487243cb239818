import pytest

from edgekit.errors import InputError, UnsupportedError
from edgekit.networks.inputs import from_shapes, with_inputs
from edgekit.networks.network import evaluating, flatten

torch = pytest.importorskip("torch")


class Pair(torch.nn.Module):
    def __init__(self, example=None, **attributes):
        super().__init__()
        self.line = torch.nn.Linear(3, 2)
        self.norm = torch.nn.BatchNorm1d(2)
        for name, value in {"example_inputs": example, **attributes}.items():
            setattr(self, name, value)

    def forward(self, x, scale):
        return self.norm(self.line(x)) * scale


def test_shapes_make_inputs_with_a_dynamic_batch():
    examples, axes, sizes = from_shapes({"x": [1, 3, "height=8"], "n": [4]}, {"n": "int64"})
    assert {name: (tuple(value.shape), value.dtype) for name, value in examples.items()} == {
        "x": ((3, 3, 8), torch.float32),
        "n": ((3,), torch.int64),
    }
    assert axes == {"x": {0: "batch", 2: "height"}, "n": {0: "batch"}}
    assert sizes == {"batch": 2, "height": 8}


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        ({"x": [1, 0]}, {}),
        ({"x": [1, -1]}, {}),
        ({"x": [1, "a b=3"]}, {}),
        ({"x": [1, "height"]}, {}),
        ({"x": [1, "height=0"]}, {}),
        ({"x": [1, True]}, {}),
        ({"x": [1, 2]}, {"x": "float31"}),
        ({"x": [1, 2]}, {"x": "nn"}),
        ({"x": [1, 2]}, {"y": "int64"}),
    ],
)
def test_shapes_that_are_none_are_refused(shapes, dtypes):
    with pytest.raises(InputError):
        from_shapes(shapes, dtypes)


@pytest.mark.parametrize(
    "example",
    [
        (torch.ones(1, 3), torch.ones(1, 1)),
        {"x": torch.ones(1, 3), "scale": torch.ones(1, 1)},
        lambda: [torch.ones(1, 3), torch.ones(1, 1)],
    ],
)
def test_the_module_may_bring_its_inputs(example):
    network = with_inputs(Pair(example), {}, {})
    assert list(network.examples) == ["x", "scale"]
    assert network.axes == {"x": {0: "batch"}, "scale": {0: "batch"}}
    assert network.sizes == {"batch": 2}
    assert network.checks == ({"batch": 1}, {"batch": 3})
    assert network.run(network.feed({"batch": 5}))["output"].shape == (5, 2)


def test_axes_without_the_batch_stay_fixed():
    network = with_inputs(Pair((torch.ones(4, 3), torch.ones(2))), {}, {})
    assert network.axes == {"x": {0: "batch"}}


def test_without_inputs_it_says_how_to_give_them():
    for example in (None, "text", ("text",), {"x": 3}):
        with pytest.raises(InputError) as caught:
            with_inputs(Pair(example), {}, {})
        assert "--shape x=" in caught.value.remedy


def test_positional_inputs_are_called_by_position():
    class Many(torch.nn.Module):
        def forward(self, *values):
            return sum(values)

    module = Many()
    module.example_inputs = (torch.ones(2), torch.ones(2))
    network = with_inputs(module, {}, {})
    assert list(network.examples) == ["input_0", "input_1"]
    assert network.run(network.feed(network.sizes))["output"].tolist() == [2, 2]


def test_floats_of_16_bits_are_widened_exactly():
    module = Pair((torch.ones(1, 3).half(), torch.ones(1, 1).half())).half()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    network = with_inputs(module, {}, {})
    assert [finding.rule for finding in network.findings] == ["widened-weights"]
    for name, value in network.module.state_dict().items():
        assert torch.equal(value.to(before[name].dtype), before[name])
    assert network.examples["x"].dtype == torch.float32


def test_evaluation_mode_is_set_and_every_part_gets_its_own_back():
    module = Pair().train()
    module.norm.eval()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    with evaluating(module):
        assert not any(part.training for part in module.modules())
        module(torch.randn(4, 3), torch.ones(1))
    assert (module.training, module.line.training, module.norm.training) == (True, True, False)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    with pytest.raises(ValueError, match="x"), evaluating(module):
        raise ValueError("x")
    assert module.training


def test_fixing_an_axis_keeps_the_others():
    module = Pair((torch.ones(1, 3), torch.ones(1, 1)), dynamic_axes={"x": {1: "width"}})
    network = with_inputs(module, {}, {})
    part = network.fixed({"width"})
    assert part.labels() == {"width"}
    assert part.sizes == {"width": 3}
    assert part.feed(part.sizes)["x"].shape == (1, 3)
    assert network.fixed(set()).checks == ({},)


def test_outputs_are_named():
    one = torch.ones(1)
    assert list(flatten(one, set())) == ["output"]
    assert list(flatten((one, [one, one]), set())) == ["output_0", "output_1.0", "output_1.1"]
    assert list(flatten({"a": one, "b": None, "c": {"d": one}}, set())) == ["a", "c.d"]
    assert list(flatten({"x": one}, {"x"})) == ["output_x"]
    pair = __import__("collections").namedtuple("Pair", "first second")
    assert list(flatten(pair(one, one), set())) == ["first", "second"]
    for wrong in (3, "text", {"a": 2.5}, object()):
        with pytest.raises(UnsupportedError):
            flatten(wrong, set())
