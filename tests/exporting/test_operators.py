"""Which operators and types of an ONNX file are not in TensorRT's list."""

from __future__ import annotations

from typing import Any

import pytest

from segunc.exporting.operators import Operator, operators_of, tensorrt_check

onnx = pytest.importorskip("onnx")


def model_of(*operators: str, data: str = "FLOAT", opset: int = 18) -> Any:
    """Return a model that applies operators of one input and one output, one after the other."""
    number = onnx.TensorProto.DataType.Value(data)
    nodes = []
    for index, name in enumerate(operators):
        domain, _, plain = name.rpartition(".")
        nodes.append(onnx.helper.make_node(plain, [f"t{index}"], [f"t{index + 1}"], domain=domain))
    first = onnx.helper.make_tensor_value_info("t0", number, [2, 3])
    last = onnx.helper.make_tensor_value_info(f"t{len(operators)}", number, [2, 3])
    graph = onnx.helper.make_graph(nodes, "g", [first], [last])
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.mine", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets)


def test_a_graph_of_known_operators_lacks_nothing() -> None:
    check = tensorrt_check(model_of("Relu", "Exp", "Log"))
    assert check["lacks"] == []
    assert check["version"] == "10.1"
    assert len(check["commit"]) == 40


@pytest.mark.parametrize(
    ("model", "lacks"),
    [
        (model_of("Relu", "Det"), "TensorRT 10.1 has no operator Det"),
        (model_of("com.mine.Gelu"), "TensorRT 10.1 has no operator com.mine.Gelu"),
        (model_of("Exp", data="DOUBLE"), "TensorRT 10.1 has no float64, which Exp uses"),
        (model_of("Exp", data="INT32"), "TensorRT 10.1 has no Exp of INT32"),
        (model_of("Relu", opset=21), "TensorRT 10.1 takes opsets 9 to 20, not 21"),
    ],
)
def test_what_the_list_lacks_is_named(model: Any, lacks: str) -> None:
    assert tensorrt_check(model)["lacks"] == [lacks]


def cast(source: str, target: str) -> Any:
    """Return a model that converts one type into another one."""
    types = [onnx.TensorProto.DataType.Value(name) for name in (source, target)]
    first, last = (
        onnx.helper.make_tensor_value_info(name, number, [2, 3])
        for name, number in zip(("x", "y"), types, strict=True)
    )
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=types[1])
    graph = onnx.helper.make_graph([node], "g", [first], [last])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])


@pytest.mark.parametrize(("source", "target"), [("INT64", "UINT8"), ("UINT8", "BOOL")])
def test_conversions_of_uint8_that_tensorrt_lacks_are_named(source: str, target: str) -> None:
    (lack,) = tensorrt_check(cast(source, target))["lacks"]
    other = source if target == "UINT8" else target
    assert lack == f"TensorRT 10.1 converts between uint8 and floats alone, and Cast has {other}"


@pytest.mark.parametrize(("source", "target"), [("FLOAT", "UINT8"), ("UINT8", "FLOAT16")])
def test_conversions_between_uint8_and_floats_are_known(source: str, target: str) -> None:
    assert tensorrt_check(cast(source, target))["lacks"] == []


def test_operators_of_branches_are_seen() -> None:
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])
    branches = []
    for name in ("Det", "Exp"):
        node = onnx.helper.make_node(name, ["x"], ["y"])
        branches.append(onnx.helper.make_graph([node], name, [], [output]))
    inputs = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3]),
        onnx.helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []),
    ]
    choice = onnx.helper.make_node(
        "If", ["condition"], ["y"], then_branch=branches[0], else_branch=branches[1]
    )
    model = onnx.helper.make_model(onnx.helper.make_graph([choice], "g", inputs, [output]))
    assert operators_of(model) == [
        Operator("Det", "FLOAT", ("FLOAT",)),
        Operator("Exp", "FLOAT", ("FLOAT",)),
        Operator("If", "BOOL", ("BOOL", "FLOAT")),
    ]
