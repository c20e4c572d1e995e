"""A policy that places experts from step to step, as a scenario states it."""

from dataclasses import dataclass
from typing import Final, Literal

PlacementPolicy = Literal["flexmoe"]
DEFAULT_STEPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingExperts:
    """FlexMoE (Nie et al. 2023): copies of experts come and go as loads change.

    ``steps``: from the first, without copies, to the one that is simulated in full. ``slots``: vExperts that a rank has
    room for; None: twice its even part of the experts. ``threshold``: largest over mean load of the ranks, from which
    it acts.
    """

    policy: PlacementPolicy = "flexmoe"
    steps: int = DEFAULT_STEPS
    slots: int | None = None
    threshold: float = 1.2
