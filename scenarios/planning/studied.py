"""All strategies that a scenario leaves open, with the estimate of each."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from scenarios.errors import ScenarioError
from scenarios.planning.openings import Openings
from scenarios.planning.pricing import Priced, priced
from scenarios.reading.documents.yaml_tree import read_value
from scenarios.workloads.steps.scenario import StepScenario
from sim.planner.estimating import estimate
from sim.planner.prices import Estimates, probe_keys
from sim.planner.space import MOST_WALKED, OFFLOADS, ORDERED, SPLIT, Grid, OffloadChoice, grid

PLACES: Final[Mapping[OffloadChoice, str]] = {
    "none": "all state on the device",
    "optimizer": "the optimizer on the host",
    "state": "all state on the host (memory.manager)",
}
"""Where strategies have their state, in words."""


class Studied(Struct, frozen=True):
    """All strategies of a scenario that have estimates. ``refused``: how many have none, by the rule that refuses them.

    ``room_bytes``: of the device with the least memory. ``more``: overrides of every row beside those of its strategy;
    ``more_keys``: the keys of these that were searched.
    """

    openings: Openings
    grid: Grid
    estimates: Estimates
    room_bytes: int
    refused: Counter[str]
    more: tuple[tuple[str, ...], ...] = ()
    more_keys: tuple[str, ...] = ()

    def overrides(self, row: int) -> tuple[str, ...]:
        """Return a strategy as overrides of the scenario."""
        return (*self.openings.overrides(self.grid.strategy(row)), *(self.more[row] if self.more else ()))

    def values(self, row: int) -> dict[str, Any]:
        """Return a strategy as the values of its keys."""
        pairs = (text.partition("=") for text in self.overrides(row))
        return {key: read_value(value, key) for key, _, value in pairs}

    def scenario(self, row: int) -> StepScenario:
        """Return the scenario with a strategy. Raises ScenarioError where its rules refuse it."""
        return self.openings.scenario(self.grid.strategy(row), self.more[row] if self.more else ())


def studied_of(openings: Openings, workers: Executor, only: Mapping[str, Sequence[int]] = {}) -> Studied:
    """Return the estimates of all strategies, priced by ``workers``.

    ``only``: fewer values of fields that the scenario leaves open. Raises ScenarioError where the rules leave none.
    """
    fewer = {name: values for name, values in only.items() if name not in openings.fixed}
    every = grid({**openings.choices(), **fewer}, openings.sizes)
    found = priced(openings, every, workers) if len(every) else None
    valued = rows_with_prices(every, found) if found is not None else every
    if found is None or not len(valued):
        remedy = "write fewer keys of the strategy, so that a search can choose them, or change batch or cluster"
        raise ScenarioError(openings.document.origin(("parallel",)), "parallel", _none_valid(openings, found), remedy)
    return Studied(openings, valued, estimate(valued, found.prices), openings.room_bytes, refusals(every, found))


def _none_valid(openings: Openings, found: Priced | None) -> str:
    """Return why no strategy is valid. ``found``: None where no combination passes the rules of numbers."""
    if found is not None:
        return f"no strategy is valid: {min(found.refused.values())}"
    sizes = openings.sizes
    rule = f"no strategy is valid: degrees have to multiply to {sizes.world_size:,} devices, "
    rule += f"replicas times micro-batch divide a batch of {sizes.global_batch_size:,}, "
    rule += f"and {sizes.num_layers} layers fill all stages"
    schedules = [openings.fixed["schedule"]] if "schedule" in openings.fixed else openings.schedules
    if not set(schedules) <= set(ORDERED):
        return rule
    ranks, stages = MOST_WALKED
    rule += f"; of schedules {', '.join(schedules)}, searched with ZeRO 0 and 1, on 2 to {ranks} pipeline ranks"
    return rule + f" and {stages} stages per rank, and with as many micro-batches as it needs"


def rows_with_prices(every: Grid, found: Priced) -> Grid:
    """Return the strategies whose probe was not refused, nor their backward in parts, nor their offloading."""
    keys, numbers = probe_keys(every)
    has_prices, is_whole = (
        np.array([key in kept for key in keys])[numbers] for kept in (found.prices.probes, found.whole)
    )
    return every.rows(has_prices & ~(is_whole & every.runs(SPLIT)) & ~_off_device(every, found))


def _off_device(every: Grid, found: Priced) -> NDArray[np.bool_]:
    """Return which strategies have state on the host that a rule refuses."""
    refused = np.zeros(len(every), dtype=np.bool_)
    for rows, _ in _hosted_rows(every, found):
        refused |= rows
    return refused


def _hosted_rows(every: Grid, found: Priced) -> Iterator[tuple[NDArray[np.bool_], str]]:
    """Yield the rows that a rule refuses as their state is on the host, and with what in front the rule."""
    for kind, rules in found.on_device.items():
        for rule, staged in zip(rules, (False, True), strict=True):
            if rule:
                words = f"{PLACES[OFFLOADS[kind]]}: {rule}"
                yield (every.offload == kind) & ((every.pipeline > 1) == staged), words


def refusals(every: Grid, found: Priced) -> Counter[str]:
    """Return how many strategies each rule refuses, by their probes."""
    keys, numbers = probe_keys(every)
    refused: Counter[str] = Counter()
    of_all, of_split = (np.bincount(numbers[rows], minlength=len(keys)) for rows in (slice(None), every.runs(SPLIT)))
    for rules, counts in ((found.refused, of_all), (found.whole, of_split)):
        for key, count in zip(keys, counts.tolist(), strict=True):
            if key in rules and count:
                refused[f"refused: {rules[key]}"] += count
    for rows, rule in _hosted_rows(every, found):
        if number := int(rows.sum()):
            refused[f"refused with {rule}"] += number
    return refused
