"""The tensor-parallel methods, by their names in scenarios."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from sim.training.method_options import check_options
from sim.training.tensor.method import TensorMethod
from sim.training.tensor.one_dimensional import OneDimensional
from sim.training.tensor.three_dimensional import ThreeDimensional
from sim.training.tensor.two_and_a_half_dimensional import TwoAndAHalfDimensional
from sim.training.tensor.two_dimensional import TwoDimensional

TensorMethodName = Literal["1d", "2d", "2.5d", "3d"]
"""The choices of ``parallel.tensor.method``; a test holds them to the registry."""

TENSOR_METHODS: Final[Mapping[TensorMethodName, Callable[..., TensorMethod]]] = {
    "1d": OneDimensional,
    "2d": TwoDimensional,
    "2.5d": TwoAndAHalfDimensional,
    "3d": ThreeDimensional,
}
"""The class of each method; it takes the degree and the method's own options."""


def tensor_method(name: TensorMethodName, degree: int, options: Mapping[str, object]) -> TensorMethod:
    """Return the method of a name: ``tensor_method("1d", 8, {"sequence_parallel": True})``.

    Raises SpecError for an option that the method does not have.
    """
    make = TENSOR_METHODS[name]
    check_options("parallel.tensor", name, make, options)
    return make(degree=degree, **options)
