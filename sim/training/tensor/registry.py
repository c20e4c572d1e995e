"""The tensor-parallel methods, by their names in scenarios."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from sim.training.tensor.method import TensorMethod
from sim.training.tensor.one_dimensional import OneDimensional

TensorMethodName = Literal["1d"]
"""The choices of ``parallel.tensor.method``; a test holds them to the registry."""

TENSOR_METHODS: Final[Mapping[TensorMethodName, Callable[..., TensorMethod]]] = {"1d": OneDimensional}
"""The class of each method; it takes the degree and the options."""
