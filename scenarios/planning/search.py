"""The search: estimate all strategies, prove the best of them by the engine, and say why the others lost."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, NoReturn

import numpy as np

from costmodels.units import format_bytes
from scenarios.errors import ScenarioError
from scenarios.planning.openings import KEYS, Openings, openings_of
from scenarios.planning.pricing import Priced, priced
from scenarios.planning.proof import Proof, prove
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document, read_document, read_value
from scenarios.summaries.as_json import as_json
from scenarios.summaries.planning import LostStrategies, PlanSummary, ProvedPlan
from scenarios.sweep.refusal import one_line
from sim.planner.estimating import Estimates, estimate, probe_keys
from sim.planner.space import Grid, Ints, grid

Objective = Literal["time", "memory"]
Planner = Literal["auto", "exhaustive"]
MOST_EXHAUSTIVE: Final = 2_000
"""Strategies that are all simulated at most."""
_DOUBT: Final = 1.05
"""Strategies are proved whose estimated memory is up to so much more than there is."""
_MOST_TRIED: Final = 8
"""Strategies are laid out at most, for each that is to be simulated."""
_MOST_LEAN: Final = 6


@dataclass(frozen=True, slots=True)
class Request:
    """What to search for: ``num_proofs`` strategies that fit are simulated, and half as many of the front."""

    objective: Objective = "time"
    planner: Planner = "auto"
    num_proofs: int = 4


@dataclass(frozen=True, slots=True)
class Studied:
    """All strategies of a scenario that have estimates.

    ``lost``: how many were refused, by rule. ``refused_rows``: those of them that have estimates.
    """

    openings: Openings
    grid: Grid
    estimates: Estimates
    room_bytes: int
    lost: Counter[str]
    refused_rows: set[int] = field(default_factory=set)

    def order(self, objective: Objective) -> Ints:
        """Return the rows by objective, the best first; the other value decides between equals."""
        time_s, memory = self.estimates.time_s, self.estimates.memory_bytes
        return np.lexsort((memory, time_s) if objective == "time" else (time_s, memory))


@dataclass(frozen=True, slots=True)
class Found:
    """A finished search, and the scenario of its best plan."""

    summary: PlanSummary
    best: Document

    def as_json(self) -> dict[str, Any]:
        """Return the answers as plan.json holds them."""
        found: dict[str, Any] = as_json(self.summary)
        return found


def studied_of(openings: Openings) -> Studied:
    """Return the estimates of all strategies. Raises ScenarioError where the scenario's rules leave none."""
    every = grid(openings.choices(), openings.sizes)
    found = priced(openings, every) if len(every) else None
    valued = rows_with_prices(every, found) if found is not None else every
    if found is None or not len(valued):
        remedy = "write fewer keys of the strategy, so that a search can choose them, or change batch or cluster"
        raise ScenarioError(openings.document.origin(("parallel",)), "parallel", _none_valid(openings, found), remedy)
    lost = refusals(every, found)
    room = min(openings.anchor.software.room_bytes(device) for device, _ in openings.anchor.devices)
    return Studied(openings, valued, estimate(valued, found.prices), room, lost)


def _none_valid(openings: Openings, found: Priced | None) -> str:
    """Return why no strategy is valid. ``found``: None where no combination passes the rules of numbers."""
    if found is not None:
        return f"no strategy is valid: {min(found.refused.values())}"
    sizes = openings.sizes
    rule = f"no strategy is valid: degrees have to multiply to {sizes.world_size:,} devices, "
    rule += f"replicas times micro-batch divide a batch of {sizes.global_batch_size:,}, "
    return rule + f"and {sizes.num_layers} layers fill all stages"


def rows_with_prices(every: Grid, found: Priced) -> Grid:
    """Return the strategies whose probe was not refused."""
    keys, numbers = probe_keys(every)
    return every.rows(np.array([key in found.prices.probes for key in keys])[numbers])


def refusals(every: Grid, found: Priced) -> Counter[str]:
    """Return how many strategies each rule refuses, by their probes."""
    keys, numbers = probe_keys(every)
    counts = np.bincount(numbers, minlength=len(keys)).tolist()
    lost: Counter[str] = Counter()
    for key, count in zip(keys, counts, strict=True):
        if key in found.refused:
            lost[f"refused: {found.refused[key]}"] += count
    return lost


def search(path: Path, overrides: Sequence[str], request: Request, workers: Executor) -> Found:
    """Return the best plans of a scenario.

    Raises ScenarioError where nothing fits, with what the leanest strategy needs and a change that would fit.
    """
    document = apply_overrides(read_document(path), overrides)
    studied = studied_of(openings_of(document))
    proofs = _proved(studied, request, workers)
    if not any(proof.time_s is not None for _, proof in proofs):
        _refuse_misfit(studied)
    summary = _summary(studied, request, proofs)
    best = summary.plans[0]
    return Found(summary, apply_overrides(document, [f"{key}={value}" for key, value in best.set.items()]))


def _proved(studied: Studied, request: Request, workers: Executor) -> list[tuple[int, Proof]]:
    """Return the proofs of the best strategies by estimate, and of the front, in the order of their rows."""
    order = studied.order(request.objective)
    likely = order[studied.estimates.memory_bytes[order] <= _DOUBT * studied.room_bytes]
    if request.planner == "exhaustive":
        _refuse_many(studied)
        return _prove_rows(studied, order, workers)
    proofs: list[tuple[int, Proof]] = []
    for begin in range(0, min(len(likely), _MOST_TRIED * request.num_proofs), request.num_proofs):
        proofs += _prove_rows(studied, likely[begin : begin + request.num_proofs], workers)
        if sum(proof.time_s is not None for _, proof in proofs) >= request.num_proofs:
            break
    front = np.setdiff1d(front_rows(studied, likely), [row for row, _ in proofs])
    places = np.linspace(0, len(front) - 1, min(len(front), -(-request.num_proofs // 2))).round().astype(int)
    return proofs + _prove_rows(studied, front[places], workers)


def front_rows(studied: Studied, rows: Ints) -> Ints:
    """Return the rows that take less memory than every faster one, by estimate and among ``rows``."""
    by_time = rows[np.lexsort((studied.estimates.memory_bytes[rows], studied.estimates.time_s[rows]))]
    memory = studied.estimates.memory_bytes[by_time]
    least = np.minimum.accumulate(np.concatenate([[np.inf], memory[:-1]])) if len(memory) else memory
    return by_time[memory < least]


def _refuse_many(studied: Studied) -> None:
    if len(studied.grid) > MOST_EXHAUSTIVE:
        origin = studied.openings.document.origin(("parallel",))
        rule = f"{len(studied.grid):,} strategies are more than the {MOST_EXHAUSTIVE:,} that are all simulated"
        raise ScenarioError(origin, "parallel", rule, "fix some keys, or --planner auto")


def _prove_rows(studied: Studied, rows: Sequence[int] | Ints, workers: Executor) -> list[tuple[int, Proof]]:
    futures = []
    for row in map(int, rows):
        try:
            scenario = studied.openings.scenario(studied.grid.strategy(row))
        except ScenarioError as error:
            _note_refused(studied, row, one_line(error))
            continue
        futures.append((row, workers.submit(prove, scenario, studied.room_bytes)))
    found: list[tuple[int, Proof]] = []
    for row, future in futures:
        result = future.result()
        if isinstance(result, str):
            _note_refused(studied, row, result)
        else:
            found.append((row, result))
    return found


def _note_refused(studied: Studied, row: int, rule: str) -> None:
    studied.lost[f"refused: {rule}"] += 1
    studied.refused_rows.add(row)


@dataclass(frozen=True, slots=True)
class _Proved:
    """A strategy that fits: its row, seconds and bytes, and the interval of the seconds."""

    row: int
    time_s: float
    memory_bytes: int
    interval_s: tuple[float, float] | None

    def value(self, objective: Objective) -> tuple[float, float, int]:
        """Return what plans are sorted by."""
        values = (self.time_s, self.memory_bytes) if objective == "time" else (self.memory_bytes, self.time_s)
        return (*values, self.row)

    def beats(self, other: "_Proved") -> bool:
        """Return whether this plan is no worse in both time and memory, and better in one."""
        mine, its = (self.time_s, self.memory_bytes), (other.time_s, other.memory_bytes)
        return mine[0] <= its[0] and mine[1] <= its[1] and mine != its


def _summary(studied: Studied, request: Request, proofs: Sequence[tuple[int, Proof]]) -> PlanSummary:
    fitting = sorted(
        (_Proved(row, p.time_s, p.memory_bytes, p.interval_s) for row, p in proofs if p.time_s is not None),
        key=lambda plan: plan.value(request.objective),
    )
    time_s, memory = studied.estimates.time_s, studied.estimates.memory_bytes
    return PlanSummary(
        scenario=studied.openings.anchor.name,
        objective=request.objective,
        planner=request.planner,
        searched=tuple(KEYS[name] for name in KEYS if name in studied.openings.open_keys),
        memory_room_bytes=studied.room_bytes,
        num_strategies=len(studied.grid),
        plans=tuple(_plan(studied, plan, fitting) for plan in fitting),
        lost=_lost(studied, proofs),
        time_disagreement=median(abs(time_s[plan.row] / plan.time_s - 1.0) for plan in fitting),
        memory_disagreement=median(abs(memory[row] / proof.memory_bytes - 1.0) for row, proof in proofs),
    )


def _lost(studied: Studied, proofs: Sequence[tuple[int, Proof]]) -> tuple[LostStrategies, ...]:
    """Return why strategies lost, the most frequent reason first."""
    rest = np.setdiff1d(np.arange(len(studied.grid)), [*(row for row, _ in proofs), *studied.refused_rows])
    too_large = int((studied.estimates.memory_bytes[rest] > _DOUBT * studied.room_bytes).sum())
    lost = Counter(studied.lost)
    lost["do not fit in memory, by their plans"] += sum(proof.time_s is None for _, proof in proofs)
    lost["do not fit in memory, by estimate"] += too_large
    lost["fit by estimate, but others were estimated as better"] += len(rest) - too_large
    return tuple(LostStrategies(reason=words, number=number) for words, number in lost.most_common() if number)


def _plan(studied: Studied, plan: _Proved, fitting: Sequence[_Proved]) -> ProvedPlan:
    overrides = [text.partition("=") for text in studied.openings.overrides(studied.grid.strategy(plan.row))]
    price_usd_per_s, best = studied.openings.cluster.price_usd_per_s, fitting[0]
    return ProvedPlan(
        set={key: read_value(value, key) for key, _, value in overrides},
        iteration_time_s=plan.time_s,
        iteration_time_interval_s=plan.interval_s,
        estimated_time_s=float(studied.estimates.time_s[plan.row]),
        peak_memory_bytes=plan.memory_bytes,
        estimated_memory_bytes=float(studied.estimates.memory_bytes[plan.row]),
        cost_usd=None if price_usd_per_s is None else price_usd_per_s * plan.time_s,
        indistinguishable=best.interval_s is not None and best.interval_s[0] <= plan.time_s <= best.interval_s[1],
        on_front=not any(other.beats(plan) for other in fitting),
    )


def _refuse_misfit(studied: Studied) -> NoReturn:
    """Raise ScenarioError with the memory of the leanest strategy, and the first change under which one fits."""
    needed = leanest_bytes(studied)
    rule = f"no strategy fits: the leanest of {len(studied.grid):,} needs {format_bytes(needed)} per rank, "
    rule += f"and there is room for {format_bytes(studied.room_bytes)}"
    origin = studied.openings.document.origin(("parallel",))
    raise ScenarioError(origin, "parallel", rule, _remedy(studied))


def leanest_bytes(studied: Studied) -> int:
    """Return the memory of the leanest strategy: the least of the few that are leanest by estimate, laid out."""
    sizes: list[int] = []
    for row in studied.order("memory").tolist():
        try:
            proof = prove(studied.openings.scenario(studied.grid.strategy(row)), 0)
        except ScenarioError:
            continue
        if isinstance(proof, Proof):
            sizes.append(proof.memory_bytes)
        if len(sizes) == _MOST_LEAN:
            break
    return min(sizes, default=int(studied.estimates.memory_bytes.min()))


def _remedy(studied: Studied) -> str:
    """Return a change under which a strategy fits: written keys left out, or else more nodes."""
    document, fixed = studied.openings.document, studied.openings.fixed
    free = openings_of(document, released=True) if fixed else None
    if free is not None and leanest_bytes(studied_of(free)) <= studied.room_bytes:
        keys = ", ".join(KEYS[name] for name in fixed)
        return f"leave out {keys}: then a strategy fits"
    nodes = studied.openings.cluster.num_nodes
    for factor in (2, 4, 8, 16):
        try:
            more = openings_of(apply_overrides(document, [f"cluster.num_nodes={factor * nodes}"]), released=True)
            larger = studied_of(more)
        except ScenarioError:
            continue
        if leanest_bytes(larger) <= larger.room_bytes:
            released = f", and leave out {', '.join(KEYS[name] for name in fixed)}" if fixed else ""
            return f"use cluster.num_nodes: {factor * nodes}{released}: then a strategy fits"
    return "use devices with more memory, shorter sequences or a smaller model"
