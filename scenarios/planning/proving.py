"""Strategies that the engine simulates: the best by estimate, those that may be better, some of the front."""

import math
from collections import deque
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
"""Largest number of strategies that are laid out, before those of the front, for each that is to be simulated."""
_ALL_AT_ONCE: Final = 32
_LIKELY: Final = 1.05
"""The most that the best strategy is likely to take, for each second of the best estimate."""

Tried = tuple[int, Proof | str]
"""A row of the grid, and its proof, or the rule that refuses it."""


def fits(outcome: Proof | str) -> bool:
    """Return whether a strategy was simulated."""
    return isinstance(outcome, Proof) and outcome.time_s is not None


Prover = Callable[[int, float], Future[Proof | str]]
"""Asks for the proof of a row of the grid. The second argument is a time in seconds: slower ones get no interval."""
_Choose = Callable[[Sequence[Tried], Sequence[int]], int | None]
"""Returns the row to ask for next, None where there is none; from what was tried, and the rows that were asked for."""


def prover(studied: Studied, resources: Resources) -> Prover:
    """Return what asks the engine, in worker processes."""
    return partial(_asked_for, studied, resources)


def _endless() -> bool:
    return False


def prove_all(
    studied: Studied, objective: Objective, ask: Prover, is_over: Callable[[], bool] = _endless
) -> list[Tried]:
    """Return what came of every strategy, or of those whose turn came until a search that found something is over."""
    rows = iter(ordered(studied.estimates, np.arange(len(studied.grid)), objective).tolist())

    def choose(tried: Sequence[Tried], asked: Sequence[int]) -> int | None:
        del asked
        return None if is_over() and _any_fits(tried) else next(rows, None)

    return _in_turn(studied, objective, choose, _ALL_AT_ONCE, ask)


def prove_best(
    studied: Studied, objective: Objective, num_proofs: int, ask: Prover, is_over: Callable[[], bool] = _endless
) -> list[Tried]:
    """Return what came of the best strategies by estimate, of those that may be better, and of the front.

    ``num_proofs``: that fit are simulated, or all; and as many at a time. Strategies that may be better are tried
    until none is left, 4 times as many are laid out, or something fits and the search is over.
    """
    return _in_turn(studied, objective, _Best(studied, objective, num_proofs, is_over), num_proofs, ask)


def _in_turn(studied: Studied, objective: Objective, choose: _Choose, most: int, ask: Prover) -> list[Tried]:
    """Return what came of the strategies that are chosen, at most so many of which are under way at a time.

    One that was asked for later is not waited for before one that was asked for earlier. So what is known when a row is
    chosen, and with it the answer, does not depend on how many processes there are.
    """
    tried, under_way = list[Tried](), deque[tuple[int, Future[Proof | str]]]()
    while True:
        asked = [row for row, _ in under_way]
        row = choose(tried, asked) if len(asked) < most else None
        if row is not None:
            under_way.append((row, ask(row, _bar_s(studied, objective, tried))))
        elif under_way:
            first, future = under_way.popleft()
            tried.append((first, future.result()))
        else:
            return tried


class _Best:
    """Chooses the best by estimate until so many fit, then what may be better; some of the front before the last."""

    def __init__(self, studied: Studied, objective: Objective, num_proofs: int, is_over: Callable[[], bool]) -> None:
        self._studied, self._objective, self._num_proofs, self._is_over = studied, objective, num_proofs, is_over
        self._front: list[int] | None = None

    def __call__(self, tried: Sequence[Tried], asked: Sequence[int]) -> int | None:
        """Return the row to try next, None where there is none."""
        if self._is_over() and _any_fits(tried):
            return None
        row = None if self._front else self._likely(tried, asked)
        if row is None and self._front is None:
            # Strategies of the front are of other kinds: they show how far estimates of these are to be trusted
            self._front = self._some_of_front(-(-self._num_proofs // 2), _rows(tried, asked))
        return self._front.pop(0) if row is None and self._front else row

    def _likely(self, tried: Sequence[Tried], asked: Sequence[int]) -> int | None:
        """Return the most hopeful row, None where there is none or enough have been tried."""
        studied, taken = self._studied, _rows(tried, asked)
        if len(taken) >= _MOST_TRIED * self._num_proofs:
            return None
        if sum(fits(outcome) for _, outcome in tried) + len(asked) < self._num_proofs:
            rows = ordered(studied.estimates, np.setdiff1d(_likely_to_fit(studied), taken), self._objective)
            if len(rows):
                return int(rows[0])
        rows = hopeful(studied, self._objective, tried)
        rows = rows[~np.isin(rows, asked)]
        return int(rows[0]) if len(rows) else None

    def _some_of_front(self, number: int, taken: Sequence[int]) -> list[int]:
        front = np.setdiff1d(front_rows(self._studied, _likely_to_fit(self._studied)), taken)
        places = np.linspace(0, len(front) - 1, min(len(front), number)).round().astype(int)
        rows: list[int] = front[places].tolist()
        return rows


def _rows(tried: Sequence[Tried], asked: Sequence[int]) -> list[int]:
    return [*(row for row, _ in tried), *asked]


def _likely_to_fit(studied: Studied) -> Ints:
    return np.flatnonzero(studied.estimates.memory_bytes <= studied.room_bytes)


def _any_fits(tried: Sequence[Tried]) -> bool:
    return any(fits(outcome) for _, outcome in tried)


def _bar_s(studied: Studied, objective: Objective, tried: Sequence[Tried]) -> float:
    """Return the seconds beyond which a strategy is not the best, as far as is known: the best simulated time.

    While there is none, a little more than the best estimate. Of a search for the least memory none is the best.
    """
    if objective != "time":
        return 0.0
    times_s = [found.time_s for found in seen(tried) if found.time_s is not None]
    estimates_s = studied.estimates.time_s[_likely_to_fit(studied)]
    return min(times_s, default=_LIKELY * float(estimates_s.min(initial=math.inf)))


def hopeful(studied: Studied, objective: Objective, tried: Sequence[Tried]) -> Ints:
    """Return the rows that may fit and be better than all that were tried, the most hopeful first."""
    rows = hopeful_rows(studied.grid, studied.estimates, studied.room_bytes, seen(tried), objective)
    refused = [row for row, outcome in tried if isinstance(outcome, str)]
    return rows[~np.isin(rows, refused)]


def seen(tried: Sequence[Tried]) -> list[Seen]:
    """Return what the engine found."""
    return [Seen(row, o.memory_bytes, o.time_s) for row, o in tried if isinstance(o, Proof)]


def front_rows(studied: Studied, rows: Ints) -> Ints:
    """Return the rows that take less memory than every faster one, by estimate and among ``rows``."""
    by_time = ordered(studied.estimates, rows, "time")
    memory = studied.estimates.memory_bytes[by_time]
    least = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]])) if len(memory) else memory
    return by_time[memory < least]


def _asked_for(studied: Studied, resources: Resources, row: int, bar_s: float) -> Future[Proof | str]:
    """Return the future of what comes of a strategy."""
    try:
        scenario = studied.scenario(row)
    except ScenarioError as error:
        return done(one_line(error))
    return _asked(scenario, studied.room_bytes, bar_s, resources)


def done(outcome: Proof | str) -> Future[Proof | str]:
    """Return a future that is done."""
    found: Future[Proof | str] = Future()
    found.set_result(outcome)
    return found


def _asked(scenario: StepScenario, room_bytes: int, bar_s: float, resources: Resources) -> Future[Proof | str]:
    """Return the future of a simulation, which is kept and counted when it is done; one that is known is done."""
    kept = resources.kept
    key = "" if kept is None else key_of(scenario, room_bytes, bar_s)
    if kept is not None and key in kept.known:
        return done(kept.known[key])

    def end(future: Future[Proof | str]) -> None:
        if kept is not None and not future.cancelled() and future.exception() is None:
            kept.add(key, future.result())
        resources.tick()

    future = resources.workers.submit(prove, scenario, room_bytes, bar_s)
    future.add_done_callback(end)
    return future
