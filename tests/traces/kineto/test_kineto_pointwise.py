"""Memory-bound kernels of a profile with shapes: their bytes, from the operator that launched them."""

import json
from pathlib import Path
from typing import Any

import pytest

from traces.kineto.pointwise import PointwiseKernel, pointwise_kernels

BIG = [1024, 256]


def trace(folder: Path, *calls: tuple[str, list[Any], list[str], list[float]]) -> Path:
    """Write a profile in which operators, one after the other, each launch kernels of some microseconds."""
    events: list[dict[str, Any]] = []
    for number, (name, shapes, types, kernels) in enumerate(calls):
        at = 100.0 * number
        arguments = {"Input Dims": shapes, "Input type": types}
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "ts": at, "dur": 50, "tid": 1, "args": arguments})
        for place, duration in enumerate(kernels):
            said = {"correlation": 10 * number + place + 1, "stream": 7}
            launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "args": said}
            events.append(launch | {"ts": at + 5 + place, "dur": 1})
            events.append(
                {"ph": "X", "cat": "kernel", "name": "k", "ts": at + 60, "dur": duration, "tid": 7, "args": said}
            )
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "shapes", "types", "tensors"),
    [
        ("aten::add", [BIG, BIG, []], ["float", "float", "Scalar"], 3),
        ("aten::mul", [BIG, []], ["float", "Scalar"], 2),
        ("aten::fill_", [BIG, []], ["float", "Scalar"], 1),
        ("aten::copy_", [BIG, BIG, []], ["float", "float", "Scalar"], 2),
        ("aten::tanh_backward", [BIG, BIG], ["float", "float"], 3),
        ("aten::native_layer_norm", [BIG, [], [256], [256], []], ["float", "", "float", "float", "Scalar"], 2),
        ("aten::sigmoid", [BIG], ["c10::BFloat16"], 1),
    ],
)
def test_bytes_are_those_of_what_is_read_and_written(
    tmp_path: Path, name: str, shapes: list[Any], types: list[str], tensors: int
) -> None:
    """Operands of the first's shape and one result; a number is none, and half as wide elements are half as many."""
    (found,) = pointwise_kernels(trace(tmp_path, (name, shapes, types, [16])))
    assert found == PointwiseKernel(name.removeprefix("aten::"), tensors * 4 * 1024 * 256, 16 * 1e-6)


@pytest.mark.parametrize(
    ("name", "shapes", "types", "kernels"),
    [
        ("aten::add", [BIG, [256], []], ["float", "float", "Scalar"], [5.0]),
        ("aten::add", [BIG, BIG, []], ["float", "float", "Scalar"], [5.0, 6.0]),
        ("aten::mm", [BIG, [256, 64]], ["float", "float"], [5.0]),
        ("aten::add", [], [], [5.0]),
        ("aten::copy_", [BIG, [256], []], ["float", "float", "Scalar"], [5.0]),
        ("aten::mul", [BIG, BIG], ["c10::BFloat16", "float"], [5.0]),
        ("aten::mul", [BIG, BIG], ["float", "a type to come"], [5.0]),
        ("aten::mul", [5], ["float"], [5.0]),
        ("aten::mul", [["5"]], ["float"], [5.0]),
        ("aten::mul", [[5]], [["float"]], [5.0]),
    ],
)
def test_what_cannot_be_told_is_left_out(
    tmp_path: Path, name: str, shapes: list[Any], types: list[str], kernels: list[float]
) -> None:
    """Nothing comes of broadcasting, several kernels of one operator, other operators, no shapes, results whose type
    depends on several, and shapes and types that are none.
    """
    assert pointwise_kernels(trace(tmp_path, (name, shapes, types, kernels))) == []


@pytest.mark.parametrize(
    ("name", "types", "bytes_of_each"),
    [
        ("aten::copy_", ["c10::BFloat16", "float", "Scalar"], 2 + 4),
        ("aten::copy_", ["double", "long int", "Scalar"], 8 + 8),
        ("aten::copy_", ["float", "bool", "Scalar"], 4 + 1),
        ("aten::add_", ["float", "c10::Half", "Scalar"], 4 + 4 + 2),
    ],
)
def test_elements_of_each_tensor_are_as_wide_as_its_type(
    tmp_path: Path, name: str, types: list[str], bytes_of_each: int
) -> None:
    """A copy reads its source's type and writes its own; a sum in place reads both and writes the first's."""
    (found,) = pointwise_kernels(trace(tmp_path, (name, [BIG, BIG, []], types, [16])))
    assert found.num_bytes == bytes_of_each * 1024 * 256


@pytest.mark.parametrize("number", [None, 0, [1], "one"])
def test_a_kernel_without_a_number_has_no_operator(tmp_path: Path, number: object) -> None:
    """Calls and kernels whose correlation is none do not belong together."""
    path = trace(tmp_path, ("aten::add", [BIG, BIG], ["float", "float"], [16]))
    document = json.loads(path.read_text(encoding="utf-8"))
    for event in document["traceEvents"]:
        if "correlation" in event["args"]:
            event["args"]["correlation"] = number
    path.write_text(json.dumps(document), encoding="utf-8")
    assert pointwise_kernels(path) == []


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"cuda_runtime": {"cat": "xpu_runtime"}}, 1),
        ({"cpu_op": {"cat": "Operator"}}, 1),
        ({"kernel": {"dur": 1e13}}, 0),
        ({"kernel": {"ts": 1e17}}, 0),
        ({"cpu_op": {"dur": -1.0}}, 0),
    ],
    ids=["other device", "older profiler", "endless", "no microseconds", "negative"],
)
def test_events_are_read_as_in_any_profile(tmp_path: Path, change: dict[str, dict[str, Any]], count: int) -> None:
    """Calls of any vendor's runtime launch; what is a broken record elsewhere is one here."""
    path = trace(tmp_path, ("aten::tanh", [BIG], ["float"], [16.0]))
    content = json.loads(path.read_text(encoding="utf-8"))
    content["traceEvents"] = [event | change.get(event["cat"], {}) for event in content["traceEvents"]]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert len(pointwise_kernels(path)) == count
