"""Which replica of an expert gets which tokens: those of its own rank first, the rest where there is room."""

import numpy as np
from numpy.typing import NDArray

from sim.moe.errors import RoutingError
from sim.moe.routing import Counts

Floats = NDArray[np.float64]
Placement = NDArray[np.int64]
"""The vExperts [rank, expert]: how many of an expert's equal shares of tokens fall on a rank."""


def assigned(counts: Counts, placement: Placement) -> Floats:
    """Return tokens [source, expert, rank], for choices ``counts`` [source, expert] and at least one vExpert each.

    A rank has room for its vExperts' part of all tokens of the expert. Its own tokens come first; what is left of
    every source is split in proportion to the room that is left (FlexMoE, Nie et al. 2023; exact rule ours).
    Raises RoutingError for a placement of other ranks or experts, or without one of the experts.
    """
    check_placement(counts, placement)
    room = (counts.sum(0) * placement / placement.sum(0)).T  # [expert, rank]
    local = np.minimum(counts.T, room)
    rest, free = counts.T - local, room - local
    total = free.sum(1, keepdims=True)
    part = np.divide(free, total, out=np.zeros_like(free), where=total > 0.0)
    tokens = rest.T[:, :, None] * part[None]
    ranks = np.arange(len(counts))
    tokens[ranks, :, ranks] += local.T
    result: Floats = tokens
    return result


def balance_ratio(counts: Counts, placement: Placement) -> float:
    """Return the largest load of a rank over the mean one. Raises as ``assigned``."""
    check_placement(counts, placement)
    load = (placement * (counts.sum(0) / placement.sum(0))).sum(1)
    return float(load.max() / load.mean())


def check_placement(counts: Counts, placement: Placement) -> None:
    """Raise RoutingError for a placement of other ranks or experts than counts, or without one of the experts."""
    if placement.shape != counts.shape:
        rule = f"the placement has the shape {placement.shape}, and the token counts {counts.shape}"
        raise RoutingError(rule, "place every expert that the router knows, on the ranks that have tokens")
    if not placement.any(0).all():
        missing = int(np.flatnonzero(~placement.any(0))[0])
        raise RoutingError(f"expert {missing} lies on no rank", "give every expert at least one vExpert")


def in_whole_tokens(tokens: Floats, counts: Counts) -> Counts:
    """Return assigned tokens in whole numbers: a source's last tokens of an expert go to the largest fractions.

    Equal fractions fall to the lower rank. No rank without the expert gets a token.
    """
    floor = np.floor(tokens + 1e-9)
    left = counts - floor.sum(2).astype(np.int64)
    order = np.argsort(floor - tokens, axis=2, kind="stable")
    place = np.argsort(order, axis=2, kind="stable")
    whole: Counts = (floor + (place < left[:, :, None])).astype(np.int64)
    return whole
