"""A policy that places experts from step to step, as a scenario states it."""

from typing import Final, Literal

from msgspec import Struct

PlacementPolicy = Literal["flexmoe", "fastermoe"]
StepTimesBy = Literal["engine", "sums"]
StepInFull = Literal["last", "first"]
DEFAULT_STEPS: Final = 8


class MovingExperts(Struct, frozen=True, kw_only=True):
    """FlexMoE (Nie et al. 2023): copies of experts come and go as loads change. Or FasterMoE (He et al. 2022): all
    ranks get the hottest experts for a step.

    ``steps``: from the first, without copies, to the last. ``slots``: vExperts that a rank has room for; None: twice
    its even part of the experts. ``threshold``: largest over mean load of the ranks, from which it acts. ``every``:
    steps from one look at a layer to the next, in which layers take turns. ``step_times``: of all steps by the
    ``engine``, each from a plan of its own, or as ``sums`` of calls. ``in_full``: the step that the engine simulates
    beside sums; of the first, one rank stands for the busiest. FasterMoE reads ``steps`` alone.
    """

    policy: PlacementPolicy = "flexmoe"
    steps: int = DEFAULT_STEPS
    slots: int | None = None
    threshold: float = 1.2
    every: int = 1
    step_times: StepTimesBy = "engine"
    in_full: StepInFull = "last"
