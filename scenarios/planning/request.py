"""What a user asks a search for."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from sim.planner.space import SEARCHED
from sim.planner.trust import Objective
from sim.training.pipeline.rules import Schedule

Goal = Literal["throughput", "time", "memory", "cost", "energy"]
"""What is to be best: tokens per second, seconds, dollars or joules per step, or bytes of the fullest rank."""
Planner = Literal["auto", "exhaustive", "galvatron", "galvatron_bmw", "alpa", "megatron", "osdp"]
NUM_NODES: Final = "cluster.num_nodes"
MOST_EXHAUSTIVE: Final = 2_000
"""Strategies that are all simulated at most."""
PROOFS: Final = (1, 1_000)
MOST_NODES: Final = 100_000


class Request(Struct, frozen=True):
    """What to search for. At least ``num_proofs`` strategies that fit are simulated, and half as many of the front.

    ``num_nodes``: the sizes of clusters to search; none: the scenario's. ``sensitivity``: also search with less
    and more memory, and on a slower and a faster network. ``schedules``: the pipeline schedules to search, where the
    scenario writes none.
    """

    goal: Goal = "time"
    planner: Planner = "auto"
    num_proofs: Annotated[int, Meta(ge=PROOFS[0], le=PROOFS[1])] = 4
    num_nodes: tuple[Annotated[int, Meta(ge=1, le=MOST_NODES)], ...] = ()
    sensitivity: bool = False
    schedules: tuple[Schedule, ...] = SEARCHED

    @property
    def objective(self) -> Objective:
        """Return what strategies of one cluster are tried by.

        There, the fastest are the cheapest, and energy falls with time: only the part that is not idle can differ.
        """
        return "memory" if self.goal == "memory" else "time"
