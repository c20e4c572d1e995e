"""A tiny training whose plan changes in every step, for sessions of both backends."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.session.observations import NoObservations, Observations
from sim.plan.session.protocol import Seen
from sim.plan.session.residents import Residents
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.program import Plan
from sim.training.adjusting.adjustment import adjusted
from sim.training.adjusting.replicas import with_joiners, with_leavers
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training
from tests.backends.jobs import training

NUM_RANKS: Final = 4
LAST_STAGE: Final = (2, 3)
"""The ranks that have the loss."""


@dataclass(frozen=True)
class Strategy:
    """How the next step is run. ``layers``: of both pipeline stages; ``ranks``: of the session."""

    microbatch_size: int = 1
    schedule: str = "1f1b"
    layers: tuple[int, int] = (2, 2)
    ranks: tuple[int, ...] = (0, 1, 2, 3)


CHANGES: Final[tuple[Mapping[str, object], ...]] = (
    {},
    {"microbatch_size": 2},
    {"schedule": "gpipe"},
    {"layers": (1, 3)},
    {"ranks": (0, 2)},
    {"ranks": (0, 1, 2, 3), "schedule": "1f1b"},
    {"layers": (3, 1)},
)
"""Other micro-batches; another schedule; a layer handed on; a replica leaves; one joins; layers are handed back."""


class ChangesEverything:
    """Changes the strategy in every step. The size of a micro-batch follows from the digits of the loss that it saw."""

    def start(self) -> tuple[int, Strategy]:
        """Return the first step and strategy."""
        return 0, Strategy()

    def decide(self, state: tuple[int, Strategy], seen: Seen | None) -> tuple[tuple[int, Strategy], Strategy]:
        """Return the next change. From the third step on the loss says how large micro-batches are."""
        step, strategy = state
        strategy = dataclasses.replace(strategy, **CHANGES[step])
        if seen is not None and step > 1:
            loss = float(seen.observed["loss"][LAST_STAGE[0]][0])
            strategy = dataclasses.replace(strategy, microbatch_size=1 + int(loss * 1e9) % 2)
        return (step + 1, strategy), strategy


class AllSeeTheSame:
    """Uses one rank, then two, then the second alone; which is the last one, the time of the second step says."""

    def start(self) -> int:
        """Return the number of the first step."""
        return 0

    def decide(self, state: int, seen: Seen | None) -> tuple[int, tuple[int, ...]]:
        """Return the ranks of the next step."""
        by_time = int(seen.duration_s * 1e9) % 2 if seen is not None else 0
        return state + 1, ((0,), (0, 1), (by_time,))[state]


def build_small(ranks: tuple[int, ...], residents: Residents) -> Plan:
    """Return a step of as many replicas as there are ranks."""
    plan = build_dense_training(training(data_degree=len(ranks), batch=(2, 1)), f"step {residents.num_plans}")
    plan = replace(plan, observed=frozenset({"loss"}))
    return with_joiners(plan, ranks, residents) if len(ranks) > 1 else with_leavers(plan, ranks, residents)


def job_of(strategy: Strategy) -> DenseTraining:
    """Return the training of a step."""
    pipeline = {"degree": 2, "schedule": strategy.schedule, "layers_per_stage": strategy.layers}
    batch = (8, strategy.microbatch_size)
    return training(pipeline=pipeline, data_degree=len(strategy.ranks) // 2, batch=batch)


def build(strategy: Strategy, residents: Residents) -> Plan:
    """Return the plan of a step, which first moves what has to be moved. It asks to see the loss."""
    plan = replace(build_dense_training(job_of(strategy), f"step {residents.num_plans}"), observed=frozenset({"loss"}))
    if len(strategy.ranks) < NUM_RANKS:
        return with_leavers(plan, strategy.ranks, residents)
    return with_joiners(plan, strategy.ranks, residents) if residents.num_plans else adjusted(plan, residents)


def seeing_all(plan: Plan) -> Plan:
    """Return a plan that asks to see all parameters, and what the optimizer keeps of them."""
    wanted = {
        name
        for program in plan.programs
        for name, buffer in program.buffers.items()
        if buffer.scope is Scope.PERSISTENT and buffer.kind in {Kind.PARAMETER, Kind.OPTIMIZER}
        if name not in program.released
    }
    return replace(plan, observed=plan.observed | wanted)


def build_and_see_all(strategy: Strategy, residents: Residents) -> Plan:
    """Return the plan of a step; the last one asks to see all that the training has come to."""
    plan = build(strategy, residents)
    return seeing_all(plan) if residents.num_plans == len(CHANGES) - 1 else plan


def simulated_backend(observations: Observations | None = None, num_ranks: int = NUM_RANKS) -> SimulatedBackend:
    """Return the simulated backend on this kind of machine."""
    node = load_node("local-cpu")
    prices = ClusterPricing(Cluster(node, 1, num_ranks), load_profile(node.device.generation))
    return SimulatedBackend(prices, observations=observations or NoObservations())
