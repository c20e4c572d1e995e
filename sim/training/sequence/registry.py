"""The methods that share sequences, by their names in scenarios."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from sim.training.method_options import check_options
from sim.training.sequence import key_exchange, ring_self_attention, two_level, ulysses
from sim.training.sequence.method import SequenceMethod
from sim.training.sequence.unshared import Unshared

SequenceMethodName = Literal["p2p", "all_gather", "ulysses", "ring_self_attention", "two_level"]
"""The choices of ``parallel.context.method``; a test holds them to the registry."""

SEQUENCE_METHODS: Final[Mapping[SequenceMethodName, Callable[[], type[SequenceMethod]]]] = {
    "p2p": lambda: key_exchange.PointToPoint,
    "all_gather": lambda: key_exchange.AllGather,
    "ulysses": lambda: ulysses.Ulysses,
    "ring_self_attention": lambda: ring_self_attention.RingSelfAttention,
    "two_level": lambda: two_level.TwoLevel,
}
"""What names the class of each method, whose file may wait until then; it takes the degree and its own options."""


def sequence_method(name: SequenceMethodName, degree: int, options: Mapping[str, object]) -> SequenceMethod:
    """Return the method of a name: ``sequence_method("p2p", 8, {})``; of degree 1 nobody shares sequences.

    Raises SpecError for an option that the method does not have.
    """
    if degree == 1:
        return Unshared()
    method = SEQUENCE_METHODS[name]()
    check_options("parallel.context", name, method, options)
    make: Callable[..., SequenceMethod] = method
    return make(degree=degree, **options)
