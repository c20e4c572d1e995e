"""The account of a lock-free update (Angel-PTM; Nie et al., VLDB 2023, section 5): who has made and applied what.

A training adds gradients to buffers and goes on. An update takes what a unit's buffer has by then, and publishes the
unit's new parameters when it is done. Both the simulation and torch's threads keep this account.

    account = Account(("layer0", "layer1"), max_staleness=3)
    account.made("layer0")                              # by the training, once per iteration
    taken = account.take("layer0")                      # by the update: iterations whose gradients it applies
    account.applied("layer0", taken)                    # or account.give_back("layer0", taken), if it failed
    account.may_begin(iteration)                        # whether the next iteration finds parameters new enough
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Account:
    """Counts of gradients by unit. ``max_staleness``: gradients that a unit's parameters may lack; None: any number."""

    units: Sequence[str]
    max_staleness: int | None = None
    num_made: dict[str, int] = field(init=False)
    num_taken: dict[str, int] = field(init=False)
    num_applied: dict[str, int] = field(init=False)
    _next: int = 0

    def __post_init__(self) -> None:
        self.num_made, self.num_taken, self.num_applied = (dict.fromkeys(self.units, 0) for _ in range(3))

    def made(self, unit: str) -> None:
        """Count a gradient of a unit."""
        self.num_made[unit] += 1

    def staleness(self, iteration: int) -> int:
        """Return the most gradients that any unit's parameters lack when an iteration begins, counted from 0."""
        return max(iteration - applied for applied in self.num_applied.values())

    def may_begin(self, iteration: int) -> bool:
        """Return whether no unit's parameters lack more gradients than they may."""
        return self.max_staleness is None or self.staleness(iteration) <= self.max_staleness

    def next_unit(self) -> str:
        """Return the next unit, in turn, that has gradients to apply; "": none has."""
        turn = (*self.units[self._next :], *self.units[: self._next])
        return next((unit for unit in turn if self.num_made[unit] > self.num_taken[unit]), "")

    def take(self, unit: str) -> int:
        """Return how many gradients of a unit an update takes: all that there are. The next unit is that after it."""
        count = self.num_made[unit] - self.num_taken[unit]
        self.num_taken[unit] += count
        self._next = (self.units.index(unit) + 1) % len(self.units)
        return count

    def applied(self, unit: str, count: int) -> None:
        """Count gradients whose update is published."""
        self.num_applied[unit] += count

    def give_back(self, unit: str, count: int) -> None:
        """Undo a take whose update failed."""
        self.num_taken[unit] -= count

    @property
    def is_settled(self) -> bool:
        """Return whether all gradients are applied."""
        return self.num_applied == self.num_made
