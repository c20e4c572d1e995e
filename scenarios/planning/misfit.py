"""The refusal of a search in which nothing fits: what the leanest strategy needs, and a change that would fit."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from itertools import islice
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from costmodels.units import format_bytes
from scenarios.errors import ScenarioError
from scenarios.planning.openings import KEYS, MANAGER, Openings, openings_of
from scenarios.planning.proof import Proof, prove
from scenarios.planning.studied import PLACES, Studied, studied_of
from scenarios.reading.documents.overrides import apply_overrides
from sim.planner.space import OFFLOADS, Ints, OffloadChoice
from sim.planner.trust import ordered

_MOST_LEAN: Final[Mapping[OffloadChoice, int]] = {"none": 6, "optimizer": 2, "state": 2}
"""Strategies that are laid out at most, the leanest by estimate. Hosts hold as much state whatever the strategy."""
_HOPELESS: Final = 2.0
"""An estimate of so many times the room is of a strategy that does not fit: none was seen so far off."""


def refuse_misfit(studied: Studied, workers: Executor) -> NoReturn:
    """Raise ScenarioError with the memory of the leanest strategies, and the first change under which one fits."""
    leanest = _leanest(studied, np.ones(len(studied.grid), dtype=np.bool_))
    rule = f"no strategy fits: the leanest of {len(studied.grid):,} needs "
    rule += "; ".join(_needs(kind, proof, studied) for kind, proof in leanest.items())
    rule += f"; there is room for {format_bytes(studied.room_bytes)}"
    origin = studied.openings.document.origin(("parallel",))
    raise ScenarioError(origin, "parallel", rule, _remedy(studied, workers))


def _needs(kind: OffloadChoice, proof: Proof, studied: Studied) -> str:
    """Return what a leanest strategy needs, with its state where it is."""
    words = f"{format_bytes(proof.memory_bytes)} per rank with {PLACES[kind]}"
    cluster = studied.openings.anchor.cluster
    if not proof.host_is_short or cluster is None:
        return words
    capacity_bytes = cluster.node_spec.host.memory_bytes
    return f"{words}, and {format_bytes(proof.host_bytes)} of a host with {format_bytes(capacity_bytes)}"


def refuse_planner(openings: Openings, planner: str, workers: Executor) -> NoReturn:
    """Raise ScenarioError where none of a planner's strategies fits: what all strategies need, or that others fit."""
    studied = studied_of(openings, workers)
    if not some_fit(studied):
        refuse_misfit(studied, workers)
    rule = f"no strategy of {planner} fits, and others do"
    raise ScenarioError(openings.document.origin(("parallel",)), "parallel", rule, "take --planner auto")


def some_fit(studied: Studied) -> bool:
    """Return whether one of the leanest strategies fits on its device and its host."""
    likely = studied.estimates.memory_bytes <= _HOPELESS * studied.room_bytes
    leanest = _leanest(studied, likely).values()
    return any(proof.memory_bytes <= studied.room_bytes and not proof.host_is_short for proof in leanest)


def _leanest(studied: Studied, among: NDArray[np.bool_]) -> dict[OffloadChoice, Proof]:
    """Return the leanest strategy for each place of state: of the few that are leanest by estimate, laid out.

    ``among``: the rows to take.
    """
    found: dict[OffloadChoice, Proof] = {}
    for kind, name in enumerate(OFFLOADS):
        rows = ordered(studied.estimates, np.flatnonzero((studied.grid.offload == kind) & among), "memory")
        proofs = list(islice(_laid_out(studied, rows), _MOST_LEAN[name]))
        if proofs:
            found[name] = min(proofs, key=lambda proof: (proof.host_is_short, proof.memory_bytes))
    return found


def _laid_out(studied: Studied, rows: Ints) -> Iterator[Proof]:
    """Yield the memory of strategies, without those that a rule refuses."""
    for row in rows.tolist():
        try:
            proof = prove(studied.scenario(row), 0)
        except ScenarioError:
            continue
        if isinstance(proof, Proof):
            yield proof


def _remedy(studied: Studied, workers: Executor) -> str:
    """Return a change under which a strategy fits: written keys left out, or else more nodes."""
    openings = studied.openings
    document, fixed, schedules = openings.document, openings.fixed, openings.schedules
    document = apply_overrides(document, [f"{MANAGER}=auto"])  # as a search opens it where nothing fits
    free = openings_of(document, schedules, released=True) if fixed else None
    if free is not None and some_fit(studied_of(free, workers)):
        keys = ", ".join(KEYS[name] for name in fixed)
        return f"leave out {keys}: then a strategy fits"
    nodes = openings.cluster.num_nodes
    for factor in (2, 4, 8, 16):
        try:
            larger_cluster = apply_overrides(document, [f"cluster.num_nodes={factor * nodes}"])
            more = openings_of(larger_cluster, schedules, released=True)
            larger = studied_of(more, workers)
        except ScenarioError:
            continue
        if some_fit(larger):
            released = f", and leave out {', '.join(KEYS[name] for name in fixed)}" if fixed else ""
            return f"use cluster.num_nodes: {factor * nodes}{released}: then a strategy fits"
    return "use devices with more memory, shorter sequences or a smaller model"
