"""The refusal of a search in which nothing fits: what the leanest strategy needs, and a change that would fit."""

from concurrent.futures import Executor
from typing import Final, NoReturn

import numpy as np

from costmodels.units import format_bytes
from scenarios.errors import ScenarioError
from scenarios.planning.openings import KEYS, Openings, openings_of
from scenarios.planning.proof import Proof, prove
from scenarios.planning.studied import Studied, studied_of
from scenarios.reading.documents.overrides import apply_overrides
from sim.planner.trust import ordered

_MOST_LEAN: Final = 6
"""Strategies that are laid out at most, the leanest by estimate."""


def refuse_misfit(studied: Studied, workers: Executor) -> NoReturn:
    """Raise ScenarioError with the memory of the leanest strategy, and the first change under which one fits."""
    needed = leanest_bytes(studied)
    rule = f"no strategy fits: the leanest of {len(studied.grid):,} needs {format_bytes(needed)} per rank, "
    rule += f"and there is room for {format_bytes(studied.room_bytes)}"
    origin = studied.openings.document.origin(("parallel",))
    raise ScenarioError(origin, "parallel", rule, _remedy(studied, workers))


def refuse_planner(openings: Openings, planner: str, workers: Executor) -> NoReturn:
    """Raise ScenarioError where none of a planner's strategies fits: what all strategies need, or that others fit."""
    studied = studied_of(openings, workers)
    if leanest_bytes(studied) > studied.room_bytes:
        refuse_misfit(studied, workers)
    rule = f"no strategy of {planner} fits, and others do"
    raise ScenarioError(openings.document.origin(("parallel",)), "parallel", rule, "take --planner auto")


def leanest_bytes(studied: Studied) -> int:
    """Return the memory of the leanest strategy: the least of the few that are leanest by estimate, laid out."""
    sizes: list[int] = []
    for row in ordered(studied.estimates, np.arange(len(studied.grid)), "memory").tolist():
        try:
            proof = prove(studied.scenario(row), 0)
        except ScenarioError:
            continue
        if isinstance(proof, Proof):
            sizes.append(proof.memory_bytes)
        if len(sizes) == _MOST_LEAN:
            break
    return min(sizes, default=int(studied.estimates.memory_bytes.min()))


def _remedy(studied: Studied, workers: Executor) -> str:
    """Return a change under which a strategy fits: written keys left out, or else more nodes."""
    openings = studied.openings
    document, fixed, schedules = openings.document, openings.fixed, openings.schedules
    free = openings_of(document, schedules, released=True) if fixed else None
    if free is not None and leanest_bytes(studied_of(free, workers)) <= studied.room_bytes:
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
        if leanest_bytes(larger) <= larger.room_bytes:
            released = f", and leave out {', '.join(KEYS[name] for name in fixed)}" if fixed else ""
            return f"use cluster.num_nodes: {factor * nodes}{released}: then a strategy fits"
    return "use devices with more memory, shorter sequences or a smaller model"
