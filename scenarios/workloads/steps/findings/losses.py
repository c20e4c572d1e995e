"""The losses of a step, with overrides of its scenario against each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sim.training.pipeline.spec import PipelineSpec

Change = tuple[str, ...]
"""Overrides, ``key=value``, that go together."""

MEMORY: Final = "memory"
WORTH_SAYING: Final = 0.02
"""Losses of a smaller fraction of the step are not worth a change."""

GAINS_BY_STAGES: Final = ("gpipe", "1f1b", "interleaved_1f1b", "breadth_first")
"""Schedules whose bubble is (p-1)/(vm) of the work: of more stages a rank it is smaller (Narayanan et al. 2021, section
2.2). Those that split the backward, or run micro-batches from both ends, may have less as they are.
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of a step: its fraction of the step, and changes against it."""

    name: str
    fraction: float
    changes: Sequence[Change]

    @property
    def is_memory(self) -> bool:
        """Return whether the plan does not fit in memory. This is no loss of time, but comes before all losses."""
        return self.name == MEMORY

    @property
    def most_gain(self) -> float:
        """Return the rise of throughput, as a fraction, if the whole loss goes."""
        return self.fraction / (1.0 - self.fraction) if self.fraction < 1.0 else float("inf")


def worth_saying(losses: Sequence[Loss]) -> list[Loss]:
    """Return the losses that are worth a change, the greatest first."""
    return sorted((loss for loss in losses if loss.fraction >= WORTH_SAYING), key=lambda loss: -loss.fraction)


def against_bubble(pipeline: PipelineSpec, finer: Sequence[int], more: str) -> list[Change]:
    """Return more stages a rank, the first of those numbers that are ``finer``, and ``more`` micro-batches."""
    changes: list[Change] = []
    if pipeline.degree > 1 and pipeline.schedule in GAINS_BY_STAGES and finer:
        stages = f"parallel.pipeline.virtual_stages={finer[0]}"
        changes.append(("parallel.pipeline.schedule=interleaved_1f1b", stages))
    return [*changes, (more,)]
