"""Only a method of tensor or context parallelism names its mesh axes.

The rule: no module of ``sim/training`` or ``backends`` holds the string of such an axis, or imports it by name, but the
methods themselves (``sim/training/tensor``, ``sim/training/sequence``) and the order of axes that a scenario states
(``sim/training/spec/parallelism``).
What users write (``axis_order``) and what results show (streams by name) are words of ``scenarios`` and
``sim/engine/findings``, which build no plan; there the names may stand.
"""

import ast
from collections.abc import Iterable
from inspect import signature
from typing import get_args

import pytest

from scenarios.reading.schema.parallel import ContextSection, TensorSection
from scenarios.reading.sections.section import keys_of
from sim.plan.words.stream import Purpose, stream_of
from sim.training.sequence.registry import SEQUENCE_METHODS, SequenceMethodName, sequence_method
from sim.training.tensor.one_dimensional import OneDimensional
from sim.training.tensor.registry import TENSOR_METHODS, TensorMethodName

HOME = ("sim/training/tensor/", "sim/training/sequence/", "sim/training/spec/parallelism/")
ROOMS = ("sim/training/", "backends/")
NAMES = {"TENSOR_AXIS", "TENSOR_PLACE", "CONTEXT_AXIS", "CONTEXT_PLACE"}


def axes_of_methods() -> set[str]:
    """Return the names of the axes of all tensor-parallel methods that are built."""
    return {axis for class_of in TENSOR_METHODS.values() for axis, _ in class_of()().axes}


def axes_of_sequences() -> set[str]:
    """Return the names of the axes of all methods that share sequences."""
    return {axis for class_of in SEQUENCE_METHODS.values() for axis, _ in class_of()(degree=4).axes}


def named_axes(nodes: Iterable[ast.AST], axes: set[str]) -> list[int]:
    """Return the lines where code names an axis of a method: as a string, or by a constant that holds it."""
    lines = []
    for node in nodes:
        is_string = isinstance(node, ast.Constant) and node.value in axes
        is_import = isinstance(node, ast.alias) and node.name in NAMES
        is_use = isinstance(node, ast.Name | ast.Attribute) and (getattr(node, "id", "") or node.attr) in NAMES
        if is_string or is_import or is_use:
            lines.append(node.lineno)
    return lines


def test_only_methods_name_their_axes(modules) -> None:
    """Builders, data parallelism, pipelines and both backends get a method's axes from the method."""
    axes = axes_of_methods() | axes_of_sequences()
    asked = [m for m in modules if m.name.startswith(ROOMS) and not m.name.startswith(HOME)]
    assert {m.name: lines for m in asked if (lines := named_axes(m.nodes, axes))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "f(x, 'cp')",
        "g(CONTEXT_PLACE)",
        "f(x, 'tp')",
        "from a import TENSOR_AXIS",
        "g(TENSOR_PLACE)",
        "axes.TENSOR_AXIS",
        "order = ('pp', 'dp', 'tp')",
    ],
)
def test_the_rule_sees_what_it_forbids(code: str) -> None:
    """Each way of naming an axis is found."""
    assert named_axes(ast.walk(ast.parse(code)), axes_of_methods() | axes_of_sequences()) == [1]


def test_the_registry_holds_what_scenarios_may_choose() -> None:
    """The choices of parallel.tensor.method are the registry's names, and each makes a method of that name."""
    assert set(get_args(TensorMethodName)) == set(TENSOR_METHODS)
    assert {name: class_of()(degree=4).name for name, class_of in TENSOR_METHODS.items()} == {
        n: n for n in TENSOR_METHODS
    }
    assert OneDimensional(degree=4).degree == 4


def test_a_method_and_its_keys_have_the_same_defaults() -> None:
    """A scenario hands a method only the options that differ from the defaults of the keys."""
    keys = {name: field.default for name, field in keys_of(TensorSection).items()}
    for class_of in TENSOR_METHODS.values():
        own = {name: option.default for name, option in signature(class_of()).parameters.items()}
        assert own.items() <= keys.items()


def test_the_registry_of_sequences_holds_what_scenarios_may_choose() -> None:
    """The choices of parallel.context.method are the registry's names; options and keys have the same defaults."""
    assert set(get_args(SequenceMethodName)) == set(SEQUENCE_METHODS)
    assert {name: sequence_method(name, 4, {}).name for name in SEQUENCE_METHODS} == {n: n for n in SEQUENCE_METHODS}
    keys = {name: field.default for name, field in keys_of(ContextSection).items()}
    for class_of in SEQUENCE_METHODS.values():
        assert {
            name: option.default for name, option in signature(class_of()).parameters.items()
        }.items() <= keys.items()


def test_an_axis_is_named_for_its_purpose() -> None:
    """Streams are named by axes, and reports read the purpose of a stream from its first word."""
    assert {stream_of(axis).purpose for axis in axes_of_methods()} == {Purpose.TENSOR}
    assert {stream_of(axis).purpose for axis in axes_of_sequences()} == {Purpose.CONTEXT}
