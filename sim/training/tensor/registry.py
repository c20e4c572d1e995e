"""The tensor-parallel methods, by their names in scenarios."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from sim.training.method_options import check_options
from sim.training.tensor import one_dimensional, three_dimensional, two_and_a_half_dimensional, two_dimensional
from sim.training.tensor.method import TensorMethod

TensorMethodName = Literal["1d", "2d", "2.5d", "3d"]
"""The choices of ``parallel.tensor.method``; a test holds them to the registry."""

TENSOR_METHODS: Final[Mapping[TensorMethodName, Callable[[], type[TensorMethod]]]] = {
    "1d": lambda: one_dimensional.OneDimensional,
    "2d": lambda: two_dimensional.TwoDimensional,
    "2.5d": lambda: two_and_a_half_dimensional.TwoAndAHalfDimensional,
    "3d": lambda: three_dimensional.ThreeDimensional,
}
"""What names the class of each method, whose file may wait until then; it takes the degree and its own options."""


def tensor_method(name: TensorMethodName, degree: int, options: Mapping[str, object]) -> TensorMethod:
    """Return the method of a name: ``tensor_method("1d", 8, {"sequence_parallel": True})``.

    Raises SpecError for an option that the method does not have.
    """
    method = TENSOR_METHODS[name]()
    check_options("parallel.tensor", name, method, options)
    make: Callable[..., TensorMethod] = method
    return make(degree=degree, **options)
