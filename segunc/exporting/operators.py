"""The operators and types of an ONNX file, and which of them TensorRT lacks by its own list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.core.files import read_json

TENSORRT_LIST = Path(__file__).with_name("tensorrt.json")
"""Operators with the types of their data that TensorRT's ONNX parser takes, as its developers
publish them. The file names its source.
"""
_OF_UINT8 = frozenset({"UINT8", "FLOAT", "FLOAT16"})
"""Types between which TensorRT converts where one of them is uint8, by the reference of its
``DataType``; the list says nothing of that."""
_ONNX = ("", "ai.onnx")  # names of ONNX's own domain
_DATA_INPUT = {"Where": 1, "OneHot": 2, "Compress": 0}
"""Which input of an operator holds its data, if it is not the first."""


@dataclass(frozen=True, order=True)
class Operator:
    """An operator of a file with the element types of its tensors.

    Attributes:
        name: as ONNX calls it; an operator of another domain stands behind its domain, as in
            ``com.microsoft.Gelu``.
        data: type of its data, a name of ``onnx.TensorProto`` such as ``FLOAT``; empty where
            nothing says it.
        types: of all its inputs and outputs, in alphabetical order.
    """

    name: str
    data: str
    types: tuple[str, ...]


def operators_of(model: Any) -> list[Operator]:
    """Return the operators of an ``onnx.ModelProto``, also those of its functions and branches.

    Each combination of types comes once.
    """
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model)
    found: set[Operator] = set()
    _collect(inferred.graph, {}, found)
    for function in inferred.functions:
        for node in function.node:  # their types depend on where they are called
            found.add(Operator(_name_of(node), "", ()))
    return sorted(found)


def _collect(graph: Any, outer_types: dict[str, str], found: set[Operator]) -> None:
    """Add the operators of a graph, whose branches also read tensors of the graph around."""
    import onnx

    types = dict(outer_types)
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = _type_name(value.type.tensor_type.elem_type)
    for constant in graph.initializer:
        types[constant.name] = _type_name(constant.data_type)
    for node in graph.node:
        of_node = {types.get(name, "") for name in (*node.input, *node.output) if name}
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                of_node.add(_type_name(attribute.t.data_type))
            elif attribute.type == onnx.AttributeProto.GRAPH:
                _collect(attribute.g, types, found)
        position = _DATA_INPUT.get(node.op_type, 0)
        named = node.input[position] if position < len(node.input) else ""
        known = tuple(sorted(of_node - {""}))
        found.add(Operator(_name_of(node), types.get(named, ""), known))


def _type_name(number: int) -> str:
    """Return the name of an element type; empty where it is not known."""
    import onnx

    return str(onnx.TensorProto.DataType.Name(number)) if number else ""


def _name_of(node: Any) -> str:
    """Return the name of a node's operator."""
    name: str = node.op_type
    return name if node.domain in _ONNX else f"{node.domain}.{name}"


def tensorrt_check(model: Any) -> dict[str, Any]:
    """Return by which list an ``onnx.ModelProto`` was compared with TensorRT, and what it
    ``lacks``: a sentence for each operator or type that is not in the list.

    The list has no word on attributes and sizes, and of conversions only those of uint8 are looked
    at, by another page. So an empty ``lacks`` is no promise.
    """
    listed = read_json(TENSORRT_LIST, "the list of TensorRT's operators")
    name = f"TensorRT {listed['version']}"
    oldest, newest = listed["opsets"]
    lacks = []
    versions = [opset.version for opset in model.opset_import if opset.domain in _ONNX]
    if versions and not oldest <= versions[0] <= newest:
        lacks.append(f"{name} takes opsets {oldest} to {newest}, not {versions[0]}")
    for operator in operators_of(model):
        known = listed["operators"].get(operator.name)
        if known is None:
            lacks.append(f"{name} has no operator {operator.name}")
        elif "DOUBLE" in operator.types:
            lacks.append(f"{name} has no float64, which {operator.name} uses")
        elif operator.name == "Cast" and "UINT8" in operator.types:
            lacks.extend(
                f"{name} converts between uint8 and floats alone, and Cast has {other}"
                for other in operator.types
                if other not in _OF_UINT8
            )
        elif operator.data and operator.name != "Constant" and operator.data not in known:
            lacks.append(f"{name} has no {operator.name} of {operator.data}")
    return {
        "version": listed["version"],
        "source": listed["source"],
        "commit": listed["commit"],
        "lacks": list(dict.fromkeys(lacks)),
    }
