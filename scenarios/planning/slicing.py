"""Schedules that send sequences in slices, which are chosen for the best few strategies: a choice takes seconds."""

from concurrent.futures import Executor
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from scenarios.choices.slices import best_slicing, with_slices
from scenarios.errors import ScenarioError
from scenarios.planning.studied import Studied
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.running.memory import memory_use
from sim.planner.prices import Estimates
from sim.planner.space import SLICED
from sim.training.pipeline.rules import SLICES_KEY
from sim.training.steps.builder import build_dense_training

MOST_SLICED: Final = 4
"""Strategies of each schedule whose slices are chosen."""
_OTHERS: Final = f"slices are chosen for the best {MOST_SLICED} of each schedule only, by the time without slices"


class Sliced(Struct, frozen=True):
    """The slices of a strategy. ``saved_s``: what a step takes less than with whole sequences, by their choice.

    ``memory_bytes``: of the fullest rank, by its plan.
    """

    slices: tuple[int, ...]
    saved_s: float
    memory_bytes: int


def with_slices_chosen(studied: Studied, workers: Executor) -> Studied:
    """Return the strategies with slices for the best few of each schedule that has them, and without the others.

    Raises ScenarioError where none is left.
    """
    kept, refused, found = ~studied.grid.runs(SLICED), studied.refused.copy(), dict[int, Sliced]()
    asked = [(row, workers.submit(sliced, studied.scenario(row))) for row in _best_rows(studied)]
    for row, future in asked:
        outcome = future.result()
        if isinstance(outcome, str):
            refused[f"refused: {outcome}"] += 1
        else:
            kept[row], found[row] = True, outcome
    if others := int(np.count_nonzero(studied.grid.runs(SLICED))) - len(asked):
        refused[_OTHERS] += others
    if not kept.any():
        origin, rule = studied.openings.document.origin(("parallel",)), max(refused, key=lambda rule: refused[rule])
        raise ScenarioError(origin, "parallel", f"no strategy is valid: {rule}", "write fewer keys of the strategy")
    time_s, memory = studied.estimates.time_s.copy(), studied.estimates.memory_bytes.copy()
    for row, choice in found.items():
        time_s[row], memory[row] = time_s[row] - choice.saved_s, choice.memory_bytes
    more = {row: (f"{SLICES_KEY}={list(choice.slices)}",) for row, choice in found.items()}
    return replace(
        studied,
        grid=studied.grid.rows(kept),
        estimates=Estimates(time_s[kept], memory[kept]),
        refused=refused,
        more=tuple(more.get(row, ()) for row in np.flatnonzero(kept).tolist()),
        more_keys=(SLICES_KEY,),
    )


def _best_rows(studied: Studied) -> list[int]:
    """Return the rows of least time of each schedule with slices, those that fit before the others."""
    tight = studied.estimates.memory_bytes > studied.room_bytes
    in_turn = np.lexsort((studied.estimates.time_s, tight))
    return [row for name in SLICED for row in in_turn[studied.grid.runs([name])[in_turn]][:MOST_SLICED].tolist()]


def sliced(scenario: StepScenario) -> Sliced | str:
    """Return the best slices of a strategy, or the rule that refuses it. Runs in whatever process it is sent to."""
    job = scenario.open_job
    assert job is not None  # its slices are left to prices
    try:
        slicing, whole_s = best_slicing(job, scenario.pricing())
        plan = build_dense_training(with_slices(job, slicing.slices), scenario.name)
    except REFUSALS as error:
        return one_line(error)
    memory_bytes = max(memory_use(program).peak_bytes for program in plan.programs)
    unsliced_s = (slicing.num_sequences + slicing.num_stages - 1) * whole_s
    return Sliced(slicing.slices, unsliced_s - slicing.latency_s, memory_bytes)
