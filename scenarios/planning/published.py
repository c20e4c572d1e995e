"""Strategies as publications choose them: Megatron-LM's rules of thumb, and OSDP."""

import math
from concurrent.futures import Executor
from typing import Final

from msgspec.structs import replace

from scenarios.planning.openings import Openings
from scenarios.planning.proving import Prover, Tried, fits
from scenarios.planning.studied import Studied, studied_of
from sim.planner.rules import rows_in_turn
from sim.planner.space import RECOMPUTE, SCHEDULES

_ALONE: Final = {"context": [1], "expert": [1], "offload": [0]}


def megatron_of(openings: Openings, workers: Executor) -> Studied:
    """Return the strategies that Megatron-LM's rules know: the optimizer's state sharded, all layers recomputed.

    What is written in the scenario stays as it is. Raises ScenarioError where the rules of numbers leave none.
    """
    known = [SCHEDULES.index(name) for name in ("1f1b", "interleaved_1f1b")]
    only = {"schedule": known, "zero_stage": [1], "recompute": [RECOMPUTE.index("full")]}
    return studied_of(openings, workers, {**_ALONE, **only})


def prove_in_turn(studied: Studied, ask: Prover) -> list[Tried]:
    """Return what came of Megatron-LM's strategies, up to the first that fits."""
    tried: list[Tried] = []
    for row in rows_in_turn(studied.grid, studied.estimates, studied.room_bytes):
        tried.append((row, ask(row, math.inf).result()))
        if fits(tried[-1][1]):
            break
    return tried


def osdp_of(openings: Openings, workers: Executor) -> Studied:
    """Return a strategy for each micro-batch and recomputation: replicas alone, with the operators that OSDP chooses.

    Estimates are those of ZeRO 3, the leanest choice. Raises ScenarioError where the rules of numbers leave none.
    """
    only = {"tensor": [1], "pipeline": [1], "schedule": [0], "virtual_stages": [1], "zero_stage": [3]}
    studied = studied_of(openings, workers, {**_ALONE, **only})
    more = ("parallel.data.zero_stage=0", "parallel.data.osdp={}")
    return replace(studied, more=(more,) * len(studied.grid), more_keys=("parallel.data.osdp",))
