"""The search: estimate all strategies, prove the best of them by the engine, and say why the others lost."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import numpy as np

from scenarios.errors import ScenarioError
from scenarios.planning.layerwise import layerwise_of
from scenarios.planning.misfit import refuse_misfit, refuse_planner
from scenarios.planning.openings import KEYS, Openings, openings_of
from scenarios.planning.proof import Proof
from scenarios.planning.proving import Tried, fits, hopeful, prove_all, prove_best, prover, seen
from scenarios.planning.published import megatron_of, osdp_of, prove_in_turn
from scenarios.planning.studied import Studied, studied_of
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document, read_document, read_value
from scenarios.summaries.as_json import as_json
from scenarios.summaries.planning import LostStrategies, PlanSummary, ProvedPlan
from sim.planner.trust import Objective, at_least

Planner = Literal["auto", "exhaustive", "galvatron", "galvatron_bmw", "megatron", "osdp"]
MOST_EXHAUSTIVE: Final = 2_000
"""Strategies that are all simulated at most."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to search for. At least ``num_proofs`` strategies that fit are simulated, and half as many of the front."""

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
    openings = openings_of(document)
    studied = _studied(openings, request, workers)
    tried = _tried(studied, request, workers)
    if not any(fits(outcome) for _, outcome in tried):
        if request.planner in ("auto", "exhaustive"):
            refuse_misfit(studied, workers)
        refuse_planner(openings, request.planner, workers)
    summary = _summary(studied, request, tried)
    best = summary.plans[0]
    return Found(summary, apply_overrides(document, [f"{key}={value}" for key, value in best.set.items()]))


def _studied(openings: Openings, request: Request, workers: Executor) -> Studied:
    """Return the strategies of a planner with their estimates."""
    if request.planner in ("galvatron", "galvatron_bmw"):
        return layerwise_of(openings, request.planner, request.num_proofs, workers)
    chosen = {"megatron": megatron_of, "osdp": osdp_of}.get(request.planner, studied_of)
    return chosen(openings, workers)


def _tried(studied: Studied, request: Request, workers: Executor) -> list[Tried]:
    """Return what came of the strategies that the engine tried."""
    ask = prover(studied, workers)
    if request.planner == "megatron":
        return prove_in_turn(studied, ask)
    if request.planner in ("exhaustive", "osdp"):
        _refuse_many(studied)
        return prove_all(studied, request.objective, ask)
    return prove_best(studied, request.objective, request.num_proofs, ask)


def _refuse_many(studied: Studied) -> None:
    if len(studied.grid) > MOST_EXHAUSTIVE:
        origin = studied.openings.document.origin(("parallel",))
        rule = f"{len(studied.grid):,} strategies are more than the {MOST_EXHAUSTIVE:,} that are all simulated"
        raise ScenarioError(origin, "parallel", rule, "fix some keys, or --planner auto")


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
        searched=(*(KEYS[name] for name in KEYS if name in studied.openings.open_keys), *studied.more_keys),
        memory_room_bytes=studied.room_bytes,
        num_strategies=len(studied.grid),
        plans=tuple(_plan(studied, plan, fitting) for plan in fitting),
        lost=_lost(studied, request, tried),
        time_disagreement=median(abs(time_s[plan.row] / plan.time_s - 1.0) for plan in fitting),
        memory_disagreement=median(abs(memory[row] / proof.memory_bytes - 1.0) for row, proof in proofs),
    )


def _lost(studied: Studied, request: Request, tried: Sequence[Tried]) -> tuple[LostStrategies, ...]:
    """Return why strategies lost, the most frequent reason first."""
    lost = studied.refused + Counter(f"refused: {outcome}" for _, outcome in tried if isinstance(outcome, str))
    lost["do not fit in memory, by their plans"] = sum(found.time_s is None for found in seen(tried))
    rest = np.setdiff1d(np.arange(len(studied.grid)), [row for row, _ in tried])
    if request.planner == "megatron":
        lost["are not what the rules take"] = len(rest)
        return _by_number(lost)
    least = at_least(studied.grid, studied.estimates, seen(tried))
    hopeless = least.memory_bytes[rest] > studied.room_bytes
    left = len(hopeful(studied, request.objective, tried))
    lost["do not fit in memory, by estimate"] = int(hopeless.sum())
    lost["may fit and be better, but the search had tried enough"] = left
    lost["are not better than the best, by estimate"] = len(rest) - int(hopeless.sum()) - left
    return _by_number(lost)


def _by_number(lost: Counter[str]) -> tuple[LostStrategies, ...]:
    return tuple(LostStrategies(reason=words, number=number) for words, number in lost.most_common() if number)


def _plan(studied: Studied, plan: _Proved, fitting: Sequence[_Proved]) -> ProvedPlan:
    overrides = [text.partition("=") for text in studied.overrides(plan.row)]
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
