"""The search: estimate all strategies, prove the best of them by the engine, and say why the others lost."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import numpy as np

from scenarios.errors import ScenarioError
from scenarios.planning.misfit import refuse_misfit
from scenarios.planning.openings import KEYS, openings_of
from scenarios.planning.proof import Proof, prove
from scenarios.planning.studied import Objective, Studied, studied_of
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document, read_document, read_value
from scenarios.summaries.as_json import as_json
from scenarios.summaries.planning import LostStrategies, PlanSummary, ProvedPlan
from scenarios.sweep.refusal import one_line
from sim.planner.space import Ints

Planner = Literal["auto", "exhaustive"]
MOST_EXHAUSTIVE: Final = 2_000
"""Strategies that are all simulated at most."""
_DOUBT: Final = 1.05
"""Strategies are proved whose estimated memory is up to so much more than there is."""
_MOST_TRIED: Final = 8
"""Strategies are laid out at most, for each that is to be simulated."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to search for: ``num_proofs`` strategies that fit are simulated, and half as many of the front."""

    objective: Objective = "time"
    planner: Planner = "auto"
    num_proofs: int = 4


@dataclass(frozen=True, slots=True)
class Found:
    """A finished search, and the scenario of its best plan."""

    summary: PlanSummary
    best: Document

    def as_json(self) -> dict[str, Any]:
        """Return the answers as plan.json holds them."""
        found: dict[str, Any] = as_json(self.summary)
        return found


def search(path: Path, overrides: Sequence[str], request: Request, workers: Executor) -> Found:
    """Return the best plans of a scenario.

    Raises ScenarioError where nothing fits, with what the leanest strategy needs and a change that would fit.
    """
    document = apply_overrides(read_document(path), overrides)
    studied = studied_of(openings_of(document))
    tried = _tried(studied, request, workers)
    if not any(_fits(outcome) for _, outcome in tried):
        refuse_misfit(studied)
    summary = _summary(studied, request, tried)
    best = summary.plans[0]
    return Found(summary, apply_overrides(document, [f"{key}={value}" for key, value in best.set.items()]))


Tried = tuple[int, Proof | str]
"""A row of the grid, and its proof, or the rule that refuses it."""


def _fits(outcome: Proof | str) -> bool:
    return isinstance(outcome, Proof) and outcome.time_s is not None


def _tried(studied: Studied, request: Request, workers: Executor) -> list[Tried]:
    """Return what came of the best strategies by estimate, and of the front."""
    order = studied.order(request.objective)
    likely = order[studied.estimates.memory_bytes[order] <= _DOUBT * studied.room_bytes]
    if request.planner == "exhaustive":
        _refuse_many(studied)
        return _prove_rows(studied, order, workers)
    tried: list[Tried] = []
    for begin in range(0, min(len(likely), _MOST_TRIED * request.num_proofs), request.num_proofs):
        tried += _prove_rows(studied, likely[begin : begin + request.num_proofs], workers)
        if sum(_fits(outcome) for _, outcome in tried) >= request.num_proofs:
            break
    front = np.setdiff1d(front_rows(studied, likely), [row for row, _ in tried])
    places = np.linspace(0, len(front) - 1, min(len(front), -(-request.num_proofs // 2))).round().astype(int)
    return tried + _prove_rows(studied, front[places], workers)


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


def _prove_rows(studied: Studied, rows: Sequence[int] | Ints, workers: Executor) -> list[Tried]:
    """Return what came of some strategies, in their order."""
    outcomes: list[tuple[int, Future[Proof | str] | str]] = []
    for row in map(int, rows):
        try:
            scenario = studied.openings.scenario(studied.grid.strategy(row))
        except ScenarioError as error:
            outcomes.append((row, one_line(error)))
        else:
            outcomes.append((row, workers.submit(prove, scenario, studied.room_bytes)))
    return [(row, found if isinstance(found, str) else found.result()) for row, found in outcomes]


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


def _summary(studied: Studied, request: Request, tried: Sequence[Tried]) -> PlanSummary:
    proofs = [(row, outcome) for row, outcome in tried if isinstance(outcome, Proof)]
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
        lost=_lost(studied, tried),
        time_disagreement=median(abs(time_s[plan.row] / plan.time_s - 1.0) for plan in fitting),
        memory_disagreement=median(abs(memory[row] / proof.memory_bytes - 1.0) for row, proof in proofs),
    )


def _lost(studied: Studied, tried: Sequence[Tried]) -> tuple[LostStrategies, ...]:
    """Return why strategies lost, the most frequent reason first."""
    rest = np.setdiff1d(np.arange(len(studied.grid)), [row for row, _ in tried])
    too_large = int((studied.estimates.memory_bytes[rest] > _DOUBT * studied.room_bytes).sum())
    lost = studied.refused + Counter(f"refused: {outcome}" for _, outcome in tried if isinstance(outcome, str))
    misfits = sum(isinstance(outcome, Proof) and not _fits(outcome) for _, outcome in tried)
    lost["do not fit in memory, by their plans"] = misfits
    lost["do not fit in memory, by estimate"] = too_large
    lost["fit by estimate, but others were estimated as better"] = len(rest) - too_large
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
