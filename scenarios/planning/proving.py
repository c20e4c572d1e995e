"""Strategies that the engine simulates: the best by estimate, those that may be better, some of the front."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import numpy as np

from scenarios.errors import ScenarioError
from scenarios.planning.kept import key_of
from scenarios.planning.proof import Proof, prove
from scenarios.planning.resources import Resources
from scenarios.planning.studied import Studied
from scenarios.sweep.refusal import one_line
from scenarios.workloads.steps.scenario import StepScenario
from sim.planner.space import Ints
from sim.planner.trust import Objective, Seen, hopeful_rows, ordered

_MOST_TRIED: Final = 4
"""Largest number of strategies that are laid out, for each that is to be simulated."""
_ALL_AT_ONCE: Final = 32

Tried = tuple[int, Proof | str]
"""A row of the grid, and its proof, or the rule that refuses it."""


def fits(outcome: Proof | str) -> bool:
    """Return whether a strategy was simulated."""
    return isinstance(outcome, Proof) and outcome.time_s is not None


Prover = Callable[[Ints, float], list[Tried]]
"""Proves rows of the grid, in their order. The second argument is a time in seconds: slower ones get no interval."""


def prover(studied: Studied, resources: Resources) -> Prover:
    """Return what asks the engine, in worker processes."""
    return partial(_proved, studied, resources)


def _endless() -> bool:
    return False


def prove_all(
    studied: Studied, objective: Objective, ask: Prover, is_over: Callable[[], bool] = _endless
) -> list[Tried]:
    """Return what came of every strategy, or of those whose turn came until a search that found something is over."""
    rows, tried = ordered(studied.estimates, np.arange(len(studied.grid)), objective), list[Tried]()
    for begin in range(0, len(rows), _ALL_AT_ONCE):
        if is_over() and _any_fits(tried):
            break
        tried += ask(rows[begin : begin + _ALL_AT_ONCE], _bar_s(objective, tried))
    return tried


def prove_best(
    studied: Studied, objective: Objective, num_proofs: int, ask: Prover, is_over: Callable[[], bool] = _endless
) -> list[Tried]:
    """Return what came of the best strategies by estimate, of those that may be better, and of the front.

    ``num_proofs``: that fit are simulated, or all; and as many at a time. Strategies that may be better are tried
    until none is left, 4 times as many are laid out, or something fits and the search is over.
    """
    tried = _while_hopeful(studied, objective, num_proofs, [], ask, is_over)
    if is_over():
        return tried
    likely = np.flatnonzero(studied.estimates.memory_bytes <= studied.room_bytes)
    front = np.setdiff1d(front_rows(studied, likely), [row for row, _ in tried])
    places = np.linspace(0, len(front) - 1, min(len(front), -(-num_proofs // 2))).round().astype(int)
    tried = tried + ask(front[places], _bar_s(objective, tried))
    # Strategies of the front are of other kinds: they show how far estimates of these are to be trusted
    return _while_hopeful(studied, objective, num_proofs, tried, ask, is_over)


def _while_hopeful(
    studied: Studied, objective: Objective, num_proofs: int, tried: list[Tried], ask: Prover, over: Callable[[], bool]
) -> list[Tried]:
    """Return what was tried, and what came of the strategies that may be better, until none is left or time is over."""
    while len(tried) < _MOST_TRIED * num_proofs:
        rows = _next_rows(studied, objective, num_proofs, tried)
        if not len(rows) or (over() and _any_fits(tried)):
            break
        tried = tried + ask(rows, _bar_s(objective, tried))
    return tried


def _any_fits(tried: Sequence[Tried]) -> bool:
    return any(fits(outcome) for _, outcome in tried)


def _bar_s(objective: Objective, tried: Sequence[Tried]) -> float:
    """Return the seconds beyond which a strategy is not the best, as far as is known."""
    times_s = [found.time_s for found in seen(tried) if found.time_s is not None]
    return min(times_s) if times_s and objective == "time" else math.inf


def hopeful(studied: Studied, objective: Objective, tried: Sequence[Tried]) -> Ints:
    """Return the rows that may fit and be better than all that were tried, the most hopeful first."""
    rows = hopeful_rows(studied.grid, studied.estimates, studied.room_bytes, seen(tried), objective)
    refused = [row for row, outcome in tried if isinstance(outcome, str)]
    return rows[~np.isin(rows, refused)]


def seen(tried: Sequence[Tried]) -> list[Seen]:
    """Return what the engine found."""
    return [Seen(row, o.memory_bytes, o.time_s) for row, o in tried if isinstance(o, Proof)]


def _next_rows(studied: Studied, objective: Objective, number: int, tried: Sequence[Tried]) -> Ints:
    """Return the rows to try next: the best by estimate until so many fit, then those that may be better."""
    if sum(fits(outcome) for _, outcome in tried) < number:
        likely = np.flatnonzero(studied.estimates.memory_bytes <= studied.room_bytes)
        likely = ordered(studied.estimates, np.setdiff1d(likely, [row for row, _ in tried]), objective)
        if len(likely):
            return likely[:number]
    return hopeful(studied, objective, tried)[:number]


def front_rows(studied: Studied, rows: Ints) -> Ints:
    """Return the rows that take less memory than every faster one, by estimate and among ``rows``."""
    by_time = ordered(studied.estimates, rows, "time")
    memory = studied.estimates.memory_bytes[by_time]
    least = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]])) if len(memory) else memory
    return by_time[memory < least]


def _proved(studied: Studied, resources: Resources, rows: Ints, bar_s: float) -> list[Tried]:
    """Return what came of some strategies, in their order."""
    outcomes: list[tuple[int, Future[Proof | str] | str]] = []
    for row in rows.tolist():
        try:
            scenario = studied.scenario(row)
        except ScenarioError as error:
            outcomes.append((row, one_line(error)))
        else:
            outcomes.append((row, _asked(scenario, studied.room_bytes, bar_s, resources)))
    return [(row, found if isinstance(found, str) else found.result()) for row, found in outcomes]


def _asked(scenario: StepScenario, room_bytes: int, bar_s: float, resources: Resources) -> Future[Proof | str]:
    """Return the future of a simulation, which is kept and counted when it is done; one that is known is done."""
    kept = resources.kept
    key = "" if kept is None else key_of(scenario, room_bytes, bar_s)
    if kept is not None and key in kept.known:
        known: Future[Proof | str] = Future()
        known.set_result(kept.known[key])
        return known

    def end(future: Future[Proof | str]) -> None:
        if kept is not None and not future.cancelled() and future.exception() is None:
            kept.add(key, future.result())
        resources.tick()

    future = resources.workers.submit(prove, scenario, room_bytes, bar_s)
    future.add_done_callback(end)
    return future
