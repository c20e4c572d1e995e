"""The answer of a search: proved plans of all clusters, the best first, and why the others lost."""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from scenarios.planning.openings import KEYS, MANAGER
from scenarios.planning.proof import Proof
from scenarios.planning.proving import hopeful, prover, seen
from scenarios.planning.request import Goal, Request
from scenarios.planning.resources import Resources
from scenarios.planning.searched import Searched
from scenarios.summaries.planning import LostStrategies, PlanSummary, ProvedPlan, ShiftedPlan
from sim.planner.trust import at_least


class Ranked(Struct, frozen=True):
    """A strategy that fits: its cluster and row, seconds and their interval, bytes, dollars and joules."""

    of: Searched
    row: int
    time_s: float
    memory_bytes: int
    interval_s: tuple[float, float] | None
    energy_j: float | None

    @property
    def cost_usd(self) -> float | None:
        """Return the dollars of a step, None where no price is known."""
        price_usd_per_s = self.of.studied.openings.cluster.price_usd_per_s
        return None if price_usd_per_s is None else price_usd_per_s * self.time_s

    def value(self, goal: Goal) -> tuple[float, float, float, int]:
        """Return what plans are sorted by. A batch has the same tokens on all clusters."""
        cost = self.cost_usd or 0.0
        first = {
            "memory": (self.memory_bytes, self.time_s, cost),
            "cost": (cost, self.time_s, self.memory_bytes),
            "energy": (self.energy_j or 0.0, self.time_s, self.memory_bytes),
        }
        return (*first.get(goal, (self.time_s, self.memory_bytes, cost)), self.row)

    def beats(self, other: "Ranked") -> bool:
        """Return whether this plan is no worse in time, memory and dollars, and better in one."""
        mine, its = ((p.time_s, p.memory_bytes, p.cost_usd or 0.0) for p in (self, other))
        return mine != its and all(a <= b for a, b in zip(mine, its, strict=True))


def ranked(clusters: Sequence[Searched], goal: Goal) -> list[Ranked]:
    """Return the strategies of all clusters that fit, the best first."""
    proofs = [(of, row, outcome) for of in clusters for row, outcome in of.tried if isinstance(outcome, Proof)]
    fitting = [
        Ranked(of, row, proof.time_s, proof.memory_bytes, proof.interval_s, proof.energy_j)
        for of, row, proof in proofs
        if proof.time_s is not None
    ]
    return sorted(fitting, key=lambda plan: plan.value(goal))


def with_interval(plan: Ranked, resources: Resources) -> Ranked:
    """Return a plan with the interval of its time, which is simulated again where nobody asked for that before."""
    if plan.interval_s is not None:
        return plan
    outcome = prover(plan.of.studied, resources)(plan.row, math.inf).result()
    return replace(plan, interval_s=outcome.interval_s) if isinstance(outcome, Proof) else plan


def summarise(
    fitting: Sequence[Ranked],
    clusters: Sequence[Searched],
    lost: Counter[str],
    request: Request,
    shifted: Sequence[ShiftedPlan],
) -> PlanSummary:
    """Return the answer. ``lost``: what else lost, by reason."""
    studied = clusters[0].studied
    times = [float(plan.of.studied.estimates.time_s[plan.row]) / plan.time_s for plan in fitting]
    memory = [
        float(of.studied.estimates.memory_bytes[found.row]) / found.memory_bytes
        for of in clusters
        for found in seen(of.tried)
        if np.isfinite(of.studied.estimates.memory_bytes[found.row])
    ]
    return PlanSummary(
        scenario=studied.openings.anchor.name,
        objective=request.goal,
        planner=request.planner,
        searched=(
            *clusters[0].variant,
            *(KEYS[name] for name in KEYS if name in studied.openings.open_keys),
            *((MANAGER,) if studied.openings.moves_state else ()),
            *studied.more_keys,
        ),
        memory_room_bytes=studied.room_bytes,
        num_strategies=sum(len(of.studied.grid) + of.studied.refused.total() for of in clusters),
        plans=tuple(_plan(plan, fitting) for plan in fitting),
        lost=_lost(clusters, lost, request),
        sensitivity=tuple(shifted),
        time_disagreement=median(abs(ratio - 1.0) for ratio in times),
        memory_disagreement=median(abs(ratio - 1.0) for ratio in memory),
    )


def _lost(clusters: Sequence[Searched], others: Counter[str], request: Request) -> tuple[LostStrategies, ...]:
    """Return why strategies lost, the most frequent reason first."""
    lost = sum((_lost_in(of, request) for of in clusters), others)
    return tuple(LostStrategies(reason=words, number=number) for words, number in lost.most_common() if number)


def _lost_in(of: Searched, request: Request) -> Counter[str]:
    """Return why strategies of a cluster lost."""
    studied, tried = of.studied, of.tried
    lost = studied.refused + Counter(f"refused: {outcome}" for _, outcome in tried if isinstance(outcome, str))
    lost["do not fit in memory, by their plans"] = sum(found.time_s is None for found in seen(tried))
    rest = np.setdiff1d(np.arange(len(studied.grid)), [row for row, _ in tried])
    if request.planner == "megatron":
        lost["are not what the rules take"] = len(rest)
        return lost
    least = at_least(studied.grid, studied.estimates, seen(tried))
    hopeless = least.memory_bytes[rest] > studied.room_bytes
    left = len(hopeful(studied, request.objective, tried))
    lost["do not fit in memory, by estimate"] = int(hopeless.sum())
    ended = "the time was up" if of.out_of_time else "the search had tried enough (--proofs tries more)"
    lost[f"may fit and be better, but {ended}"] = left
    lost["are not better than the best of their cluster, by estimate"] = len(rest) - int(hopeless.sum()) - left
    return lost


def _plan(plan: Ranked, fitting: Sequence[Ranked]) -> ProvedPlan:
    studied, best, cost = plan.of.studied, fitting[0], plan.cost_usd
    low_s, high_s = best.interval_s if best.interval_s is not None and best.of is plan.of else (math.inf, -math.inf)
    tokens = studied.openings.sizes.global_batch_size * studied.openings.job.model.sequence_length
    return ProvedPlan(
        set={**plan.of.variant, **studied.values(plan.row)},
        iteration_time_s=plan.time_s,
        iteration_time_interval_s=plan.interval_s,
        estimated_time_s=float(studied.estimates.time_s[plan.row]),
        tokens_per_s=tokens / plan.time_s,
        peak_memory_bytes=plan.memory_bytes,
        estimated_memory_bytes=float(studied.estimates.memory_bytes[plan.row]),
        cost_usd=cost,
        cost_usd_per_million_tokens=None if cost is None else cost / tokens * 1e6,
        energy_j=plan.energy_j,
        energy_j_per_token=None if plan.energy_j is None else plan.energy_j / tokens,
        indistinguishable=low_s <= plan.time_s <= high_s,
        on_front=not any(other.beats(plan) for other in fitting),
    )
