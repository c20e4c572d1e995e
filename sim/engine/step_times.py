"""A cache of step times: worlds that ask for thousands of steps run the engine dozens of times.

A job mix or a service makes a plan for every step that it takes, and most of these plans are equal. Plans are known
again by their content; they need not be the same object.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from sim.engine.folding.folding import fold
from sim.engine.prices.activity import Pricing
from sim.engine.running.collector import collector_paused
from sim.engine.running.simulate import Fold, Simulation
from sim.plan.facts.content import content_digest, plan_digest
from sim.plan.words.program import Plan

MOST_OBJECTS: Final = 128
"""Largest number of plans and prices that are known by identity, without another digest."""

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Bounded(Generic[_Key, _Value]):
    """A mapping of at most ``most`` entries: the one that has not been asked for longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries = OrderedDict[_Key, _Value]()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: _Key) -> _Value | None:
        """Return the value under a key, or None."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Remember a value, and return it."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return value


@dataclass
class StepTimes:
    """Remembers the step time of plans under prices, by content; ``num_misses`` times it ran the engine.

    Prices say on which devices which rank lies, so another placement is another entry. A plan's name and seed do not
    count: no time depends on them. ``most``: how many times are remembered. ``most_plans``: how many plans stay
    compiled, for the case that they are asked for under other prices.

        times = StepTimes()
        for plan in plans:
            clock_s += times.step_time_s(plan, pricing)
    """

    most: int = 4096
    most_plans: int = 8
    fold: Fold = fold
    num_hits: int = 0
    num_misses: int = 0
    _times_s: _Bounded[tuple[bytes, bytes], float] = field(init=False, repr=False)
    _simulations: _Bounded[bytes, Simulation] = field(init=False, repr=False)
    _digests: _Bounded[int, tuple[object, bytes]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.most < 1 or self.most_plans < 1:
            raise ValueError(f"StepTimes remembers at least one time and one plan, not {self.most}, {self.most_plans}")
        self._times_s, self._simulations = _Bounded(self.most), _Bounded(self.most_plans)
        self._digests = _Bounded(MOST_OBJECTS)

    def __len__(self) -> int:
        """Return how many times are remembered."""
        return len(self._times_s)

    def step_time_s(self, plan: Plan, pricing: Pricing) -> float:
        """Return how long a step of a plan takes, in seconds: ``simulate(plan, pricing).iteration_time_s``.

        Raises as ``simulate``, and TypeError where prices are no plain data.
        """
        of_plan, of_prices = self._digest(plan, plan_digest), self._digest(pricing, content_digest)
        known_s = self._times_s.get((of_plan, of_prices))
        if known_s is not None:
            self.num_hits += 1
            return known_s
        self.num_misses += 1
        simulation = self._simulations.get(of_plan) or self._simulations.put(of_plan, Simulation(plan, self.fold))
        return self._times_s.put((of_plan, of_prices), simulation.run(pricing).iteration_time_s)

    def _digest(self, value: Plan | Pricing, digest: Callable[..., bytes]) -> bytes:
        """Return the digest of a plan or of prices; the last ones are known by their identity."""
        known = self._digests.get(id(value))
        if known is None:
            with collector_paused():
                found = digest(value)
            known = self._digests.put(id(value), (value, found))  # kept, so that no other gets its identity
        return known[1]
