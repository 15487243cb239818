"""What is known of the tensors of a graph: types, shapes, and the values of small constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    import onnx

Shape = tuple[int | str | None, ...]


@dataclass
class Scope:
    """What is known about the tensors of one graph, those of enclosing graphs included.

    Attributes:
        types: tensor name -> TypeProto.
        values: tensor name -> value, for constants of at most 65,536 elements.
        constants: names of all tensors that depend on no input.
        lost: tensor name -> the node from which on its shape is unknown.
        inner: node name -> the inner graphs of an `If` and their scopes, in attribute order; when its condition is
            known only the branch taken. Loop bodies have none: see `shapes.body_scope`.
    """

    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    values: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    lost: dict[str, onnx.NodeProto] = field(default_factory=dict)
    inner: dict[str, list[tuple[onnx.GraphProto, Scope]]] = field(default_factory=dict)

    def shape(self, name: str) -> Shape | None:
        """Return a tensor's shape: ints, axis names, None for unknown sizes; None when the rank is unknown."""
        kind = self.types.get(name)
        return None if kind is None else shape_of(kind)

    def static(self, name: str) -> tuple[int, ...] | None:
        """Return a tensor's shape when all of it is known, else None."""
        shape = self.shape(name)
        if shape is None:
            return None
        fixed = tuple(dim for dim in shape if isinstance(dim, int))
        return fixed if len(fixed) == len(shape) else None

    def element_type(self, name: str) -> int:
        """Return a tensor's ONNX element type; 0 when it is unknown."""
        kind = self.types.get(name)
        return 0 if kind is None else int(kind.tensor_type.elem_type)

    def child(self) -> Scope:
        """Return a scope for an inner graph, which sees what this one knows so far."""
        return Scope(
            types=dict(self.types), values=dict(self.values), constants=set(self.constants), lost=dict(self.lost)
        )


def shape_of(kind: onnx.TypeProto) -> Shape | None:
    """Return the shape in a TypeProto; None when the rank is unknown or it is no tensor."""
    if not kind.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in kind.tensor_type.shape.dim
    )


def tensor_type(element_type: int, shape: Sequence[int | str | None]) -> onnx.TypeProto:
    """Make a TypeProto of a tensor."""
    import onnx

    return onnx.helper.make_tensor_type_proto(element_type, shape)
