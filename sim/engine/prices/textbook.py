"""Prices of a textbook workload: stated durations, and a stated lag per hop between ranks."""

from collections.abc import Collection, Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.prices.activity import Activity
from sim.engine.prices.traffic import Exchange, Load, Wanted
from sim.plan.words.op import Compute, Op, Recv, Send
from sim.plan.words.program import Plan, Program, Task


class TextbookPricing(Struct, frozen=True):
    """Every ``delay`` lasts as it says; a message takes ``hop_s`` and occupies nothing."""

    hop_s: float = 0.0

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the stated duration; ValueError for an op that states none."""
        if isinstance(op, Compute) and op.kernel == "delay":
            return Activity(latency_s=float(op.attributes["duration_s"]))
        if isinstance(op, Send):
            return Activity(latency_s=self.hop_s)
        if isinstance(op, Recv):
            return Activity()
        raise ValueError(f"{plan.name}, {program.role_name}: {op.name} states no duration")

    def expect(self, plan: Plan, ranks: Collection[int], wanted: Wanted | None = None) -> None:
        """Do nothing: stated durations are not computed."""

    def launches_s(self, task: Task) -> tuple[float, ...]:
        """Return that launching takes no time."""
        return ()

    def rank_kinds(self, plan: Plan) -> NDArray[np.int64]:
        """Return that all ranks are alike."""
        return np.zeros(plan.mesh.size, dtype=np.int64)

    def link_kinds(self) -> NDArray[np.int32]:
        """Return that there are no links."""
        return np.zeros(0, dtype=np.int32)

    def network_links(self) -> NDArray[np.bool_]:
        """Return that there are no links."""
        return np.zeros(0, dtype=np.bool_)

    def link_images(self, ranks_to: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Return that no links go anywhere."""
        return np.zeros(0, dtype=np.int32)

    def lie_alike(self, groups: NDArray[np.int64]) -> bool:
        """Return that all groups communicate alike."""
        return True

    def loads(self, plan: Plan, exchanges: Iterator[Exchange]) -> Iterator[tuple[Exchange, Load]]:
        """Yield every exchange with no load."""
        nothing = np.zeros(0, dtype=np.int64)
        for exchange in exchanges:
            yield exchange, Load(nothing, nothing, np.zeros(0))
