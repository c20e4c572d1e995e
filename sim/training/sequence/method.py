"""The interface of methods that share a sequence among ranks (context parallelism).

A method lays the tokens of every sequence over ``degree`` ranks. Norms, products, experts and the loss need a rank's
own tokens alone. Attention needs all keys and values, and asks the method. Nothing else names the method's mesh axes:
builders ask for ``rows``, and data parallelism sums gradients over all axes whose purpose is context parallelism.

    method = sequence_method("ulysses", 4, {})
    method.axes                  # (("cp", 4),)
    method.rows(4096)            # a rank has 1024 of 4096 tokens: block i of 4
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

from msgspec import Struct

from sim.abstract import AbstractStruct
from sim.plan.functions.rows import Rows
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.mesh import Axes

AXIS: Final = "cp"
"""The mesh axis of a method with one. Names of others begin with ``cp_``: a stream's first word is its purpose."""

Role = Mapping[str, int]
"""Coordinates along the axes of a method."""
SequenceLayout = Literal["zigzag", "contiguous"]
"""Choices of methods in which a rank keeps its queries: two chunks of every sequence on a rank, or one block."""


class Shares(Struct, frozen=True):
    """The sizes that a method may cut: a sequence, and the heads of one rank of tensor parallelism.

    ``token_multiple``: a divisor that the number of a rank's tokens must have. ``fused``: as in ``Scoring``.
    """

    num_tokens: int
    num_heads: int
    num_kv_heads: int
    token_multiple: int
    fused: bool


class SequenceMethod(AbstractStruct, frozen=True, kw_only=True):
    """A method to share sequences with its number of ranks and its options; immutable."""

    degree: int = 1

    name: ClassVar[str]
    """Its name in scenarios: ``parallel.context.method``."""

    @property
    @abstractmethod
    def axes(self) -> Axes:
        """Return the method's mesh axes; the last varies fastest over ranks. None where nobody shares a sequence."""

    @abstractmethod
    def rows(self, num_tokens: int) -> Rows:
        """Return which tokens of a sequence a rank has."""

    @property
    @abstractmethod
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Return which of a sequence's equal chunks, in order, each rank along the axes has."""

    def roles(self, *, causal: bool) -> tuple[Role, ...]:
        """Return the coordinates of ranks that run one program: none where all ranks along the axes do.

        The program's tracer knows its role. A method whose ranks compute different amounts under a causal mask has
        several then.
        """
        return ({},)

    @abstractmethod
    def check(self, shares: Shares) -> None:
        """Raise SpecError, with the nearest valid choice, where the ranks do not divide what they share."""

    @abstractmethod
    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return attention of q[s, b, n, d] to k[s, b, g, d] and v[s, b, g, e] of all ranks, as [s, b, n, e].

        ``s`` are a rank's own tokens, ``n`` and ``g`` the heads of one rank of tensor parallelism.
        """
