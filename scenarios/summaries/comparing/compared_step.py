"""The parts of a simulated step's summary.json that a comparison reads, validated and bounded."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Struct

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class ComparedRole(Struct, frozen=True, kw_only=True):
    """Equal ranks, and the parts of their time; seconds per step."""

    num_ranks: Count
    busy_s: Mapping[str, Amount]
    exposed_s: Mapping[str, Amount]


class ComparedCommunication(Struct, frozen=True, kw_only=True):
    """The ops of one kind on one stream, in seconds of the mean rank; bounds by kind of link."""

    stream: str
    kind: str
    time_s: Amount
    latency_s: Amount
    bound_s: Mapping[str, Amount]
    fullest_fraction: Mapping[str, Amount]


class ComparedLink(Struct, frozen=True, kw_only=True):
    """The link of a kind with the longest busy time: the fraction of the step in which it is busy."""

    busy_fraction: Amount


class ComparedLinks(Struct, frozen=True, kw_only=True):
    """All links of a kind."""

    kind: str
    busiest: ComparedLink


class ComparedResolved(Struct, frozen=True, kw_only=True):
    """The source of a step's times."""

    profile_basis: str


class ComparedStep(Struct, frozen=True, kw_only=True):
    """A simulated step: its seconds, its roles, and the limits of its communication."""

    iteration_time_s: Annotated[float, msgspec.Meta(gt=0, le=1e18)]
    roles: Annotated[tuple[ComparedRole, ...], msgspec.Meta(min_length=1)]
    communication: tuple[ComparedCommunication, ...]
    links: tuple[ComparedLinks, ...]
    iteration_time_median_s: Amount | None = None
    resolved: ComparedResolved | None = None
