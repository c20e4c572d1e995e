"""The methods that share sequences, by their names in scenarios."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from sim.training.method_options import check_options
from sim.training.sequence.key_exchange import AllGather, PointToPoint
from sim.training.sequence.method import SequenceMethod
from sim.training.sequence.ring_self_attention import RingSelfAttention
from sim.training.sequence.two_level import TwoLevel
from sim.training.sequence.ulysses import Ulysses
from sim.training.sequence.unshared import Unshared

SequenceMethodName = Literal["p2p", "all_gather", "ulysses", "ring_self_attention", "two_level"]
"""The choices of ``parallel.context.method``; a test holds them to the registry."""

SEQUENCE_METHODS: Final[Mapping[SequenceMethodName, Callable[..., SequenceMethod]]] = {
    "p2p": PointToPoint,
    "all_gather": AllGather,
    "ulysses": Ulysses,
    "ring_self_attention": RingSelfAttention,
    "two_level": TwoLevel,
}
"""The class of each method; it takes the degree and the method's own options."""


def sequence_method(name: SequenceMethodName, degree: int, options: Mapping[str, object]) -> SequenceMethod:
    """Return the method of a name: ``sequence_method("p2p", 8, {})``; of degree 1 nobody shares sequences.

    Raises SpecError for an option that the method does not have.
    """
    make = SEQUENCE_METHODS[name]
    if degree == 1:
        return Unshared()
    check_options("parallel.context", name, make, options)
    return make(degree=degree, **options)
