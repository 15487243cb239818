import json

import pytest

from edgekit.errors import EdgekitError, InputError, UnsupportedError
from edgekit.networks.expressions import check_operator, check_shape, check_structure


@pytest.mark.parametrize(
    "text",
    [
        "s77",
        "Symbol('s77', positive=True, integer=True)",
        "Mul(Integer(2), Symbol('s0', integer=True))",
        "Add(Integer(-1), FloorDiv(Add(Symbol('s1'), Integer(-1)), Integer(2)))",
        "Max(1, s0) // 2 + 3 * s1 - 4 % s2",
        "Pow(Symbol('s0'), Integer(2))",
        "Float('2.5', precision=53)",
        "Eq(s0, 3)",
        "s0 >= 2",
    ],
)
def test_arithmetic_passes(text):
    check_shape(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__.__base__.__subclasses__()",
        "s0.func",
        "[s0][0]",
        "lambda: 1",
        "Symbol('s0; import os')",
        "Symbol(\"s0') + __import__('os\")",
        "Integer('__import__(\"os\")')",
        "'a' * 10",
        "eval('1')",
        "(x := 3)",
        "Pow(Integer(9), Integer(999999999))",
        "9 ** 9",
        "f'{s0}'",
        "s0 if 1 else 2",
        "Add(*s0)",
        "Add(**s0)",
        "(" * 5000,
        "s0 + " * 10_000 + "1",
        "",
        "\0",
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(InputError):
        check_shape(text)


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.conv2d.default",
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.prims.convert_element_type.default",
        "torch.ops.higher_order.cond",
        "_operator.getitem",
        "torch.sym_max",
        "math.ceil",
    ],
)
def test_tensor_operators_pass(target):
    check_operator(target)


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.serialization.load",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.__class__.__init__",
        "torch.ops.__class__.mro",
        "torch.ops.aten.add.__call__",
        "torch.hub.load",
        "_operator.call",
        "_operator.methodcaller",
        "_operator.attrgetter",
        "math.__loader__.load_module",
        "os.system",
        "#ns:op",
        "torch.ops.load_library",
        "torch.ops.aten.add.default\n",
        "",
    ],
)
def test_other_attributes_are_refused(target):
    with pytest.raises(InputError):
        check_operator(target)


@pytest.mark.parametrize(
    "target", ["torch.ops.mylib.op.default", "torch.ops.higher_order.triton_kernel_wrapper_mutation"]
)
def test_operators_of_others_are_not_supported(target):
    with pytest.raises(UnsupportedError):
        check_operator(target)


def tree(kind, context="null", *children):
    return {"type": kind, "context": context, "children_spec": list(children)}


LEAF = {"type": None, "context": None, "children_spec": []}


@pytest.mark.parametrize(
    "spec", [LEAF, tree("builtins.tuple", "null", LEAF, tree("builtins.dict", '["x"]', LEAF)), tree("builtins.list")]
)
def test_nested_containers_pass(spec):
    check_structure(json.dumps([1, spec]))


@pytest.mark.parametrize(
    "spec",
    [
        tree("collections.defaultdict", json.dumps({"default_factory_module": "os", "default_factory_name": "system"})),
        tree("builtins.tuple", json.dumps({"__enum__": True, "fqn": "os:system", "name": "x"})),
        tree("builtins.dict", json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "x"}]), LEAF),
        tree("builtins.tuple", "null", tree("some.ModelOutput")),
        tree("builtins.tuple", "not json"),
        {"type": "builtins.tuple"},
    ],
)
def test_other_structures_are_refused(spec):
    with pytest.raises(EdgekitError) as caught:
        check_structure(json.dumps([1, spec]))
    assert caught.value.exit_status in (4, 7)
