"""What the text of an exported program may say: shapes, operators, structures. Without torch."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from edgekit.errors import InputError, UnsupportedError

_SAVE = "Export the program again from a model that you trust."
_MAX_EXPRESSION = 20_000
_FUNCTIONS = frozenset(
    {
        "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Abs", "Eq", "Ne", "Gt",
        "Ge", "Lt", "Le", "Equality", "Unequality", "StrictGreaterThan", "StrictLessThan", "GreaterThan", "LessThan",
        "And", "Or", "Not", "FloorDiv", "ModularIndexing", "Where", "PythonMod", "CleanDiv", "CeilToInt",
        "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv",
        "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat",
        "Identity",
    }
)  # fmt: skip
_ALLOWED = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.UnaryOp, ast.USub, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE,
    ast.Gt, ast.GtE,
)  # fmt: skip
_MAX_EXPONENT = 64
_SYMBOL = re.compile(r"\w+")
_NUMBER = re.compile(r"-?\d*\.?\d+(e[+-]?\d+)?")

_NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed", "torchvision"})
_FORBIDDEN = frozenset({"from_file", "save"})
_DUNDER = re.compile(r"__(i?and|i?or|i?xor|i?lshift|i?rshift)__")
_HIGHER_ORDER = frozenset(
    {
        "cond",
        "while_loop",
        "scan",
        "map_impl",
        "wrap_with_set_grad_enabled",
        "wrap_with_autocast",
        "invoke_subgraph",
    }
)
_PYTHON = re.compile(
    r"_operator\.(add|sub|mul|floordiv|truediv|mod|neg|pos|pow|abs|lt|le|gt|ge|eq|ne|and_|or_|not_|getitem|lshift|rshift)"
    r"|math\.(ceil|floor|trunc|sqrt)"
    r"|torch\._?sym_(int|float|max|min|not|sqrt|ite|sum)"
)
_OPERATOR = re.compile(r"torch\.ops\.(?P<space>\w+)\.(?P<name>\w+)(\.\w+)?")

_STRUCTURES = frozenset(
    {
        "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict",
        "torch.fx.immutable_collections.immutable_list", "torch.fx.immutable_collections.immutable_dict",
    }
)  # fmt: skip


def check_shape(text: str) -> None:
    """Refuse a symbolic shape that is more than arithmetic: torch evaluates the text as Python.

    Raises:
        InputError: names the text.
    """
    try:
        for node in ast.walk(ast.parse(text[:_MAX_EXPRESSION], mode="eval")):  # cut text does not parse
            _check_node(node)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise InputError(f"unsafe symbolic shape {text[:80]!r} ({error})", where="expr_str", remedy=_SAVE) from None


def _check_node(node: ast.AST) -> None:
    if not isinstance(node, _ALLOWED):
        raise ValueError(f"{type(node).__name__} is not arithmetic")  # noqa: TRY004 - one class for the caller
    if isinstance(node, ast.keyword) and (node.arg is None or not isinstance(node.value, ast.Constant)):
        raise ValueError("an option that is no constant")
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in _FUNCTIONS:
            raise ValueError("a call of something else than arithmetic")
        strings = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        pattern = _SYMBOL if node.func.id == "Symbol" else _NUMBER
        if not all(pattern.fullmatch(value) for value in strings):
            raise ValueError("a name that is none")
        if "Pow" in node.func.id and len(node.args) > 1 and _magnitude(node.args[1]) > _MAX_EXPONENT:
            raise ValueError("a huge exponent")
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare)):
        operands = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.Constant)]
        if any(isinstance(operand.value, str) for operand in operands):
            raise ValueError("arithmetic on text")


def _magnitude(node: ast.AST) -> int:
    numbers = [item.value for item in ast.walk(node) if isinstance(item, ast.Constant)]
    return max((abs(number) for number in numbers if type(number) is int), default=0)


def check_operator(target: str) -> None:
    """Refuse an operator that is not one of torch's tensor operators: torch resolves the text as an attribute.

    Raises:
        UnsupportedError: an operator of another library, which this machine may not have.
        InputError: something that is no operator.
    """
    if _PYTHON.fullmatch(target):
        return
    match = _OPERATOR.fullmatch(target)
    hidden = [part for part in target.split(".") if part.startswith("__") and not _DUNDER.fullmatch(part)]
    if match is None or hidden:
        raise InputError(f"'{target[:80]}' is no tensor operator", where="target", remedy=_SAVE)
    known = _HIGHER_ORDER if match["space"] == "higher_order" else None
    if (known is not None and match["name"] in known) or (known is None and match["space"] in _NAMESPACES):
        if match["name"] in _FORBIDDEN:
            raise InputError(f"'{target[:80]}' reads or writes files", where="target", remedy=_SAVE)
        return
    raise UnsupportedError(
        f"the operator '{target[:80]}' is not one of torch's own",
        where="target",
        remedy="Give the model as python:module:factory, with its operators replaced by torch's.",
    )


def check_structure(text: str) -> None:
    """Refuse inputs or outputs that are not nested tuples, lists and dicts of tensors.

    Raises:
        UnsupportedError: names the type.
    """
    try:
        _check_tree(json.loads(text)[1])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise InputError(f"a broken structure of inputs or outputs: {error}", where="in_spec", remedy=_SAVE) from None


def _check_tree(tree: dict[str, Any]) -> None:
    kind = tree["type"]
    if kind is not None and kind not in _STRUCTURES:
        raise UnsupportedError(
            f"inputs or outputs are of the type '{str(kind)[:80]}'",
            where="in_spec, out_spec",
            remedy="Let the model take tensors and return a tensor, a tuple or a dict of tensors.",
        )
    context = json.loads(tree["context"]) if tree["context"] is not None else None
    keys = context if isinstance(context, list) else [context]
    if not all(key is None or isinstance(key, (str, int)) for key in keys):
        raise ValueError("unexpected keys")
    for child in tree["children_spec"]:
        _check_tree(child)
