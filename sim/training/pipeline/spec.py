"""How a pipeline is laid out and scheduled: typed, checked input."""

from dataclasses import dataclass
from typing import Literal

from sim.training.pipeline.rules import (
    SLICED_SCHEDULES,
    TRAITS,
    Actions,
    Schedule,
    check_actions,
    check_barrier,
    check_blocking,
    check_microbatches,
    check_options,
    check_slices,
    check_stages,
)

Recompute = Literal["none", "selective", "full"]
"""Recomputation in a layer's backward: none, attention, or the whole layer."""
RecomputeMethod = Literal["block", "uniform"]
"""Which whole layers of a virtual stage: the first n of them, or all, n at a time (Megatron-LM's option of this name).

``block`` keeps everything of the other layers; ``uniform`` keeps the input of every n-th layer alone, and nothing else.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """Pipeline parallelism."""

    degree: int = 1
    schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    """Stages per rank, of each copy of the model."""
    microbatch_group_size: int = 0
    """interleaved_1f1b: micro-batches that run through a chunk before the next one's turn; 0: Megatron-LM's order."""
    max_live_microbatches: int = 0
    """zb_auto: micro-batches that a rank may keep; 0: the degree."""
    actions: Actions = ()
    """custom: every rank's actions."""
    optimizer_barrier: bool | None = None
    """All ranks wait for each other between steps, as a global norm of gradients makes them; None: but with aiao."""
    layers_per_stage: tuple[int, ...] = ()
    """Layers of every virtual stage in model order; empty: as evenly as Megatron would."""
    recompute_per_stage: tuple[Recompute, ...] = ()
    """Recomputation of every virtual stage, in model order; empty: that of the training."""
    token_slices: tuple[int, ...] = ()
    """terapipe, seq_1f1b: tokens of the slices in which a sequence goes through the pipeline; empty: to be chosen."""
    slice_granularity: int = 0
    """Slices that are to be chosen have multiples of this many tokens; 0: of what is usual."""
    blocking_messages: bool = False
    """A message holds up the computing of both its ranks: a broadcast in a group of two on the stream of computing."""
    scatter_gather: bool = False
    """Send 1/t of a replicated boundary tensor per tensor-parallel rank, gather on arrival (SC21, section 4.1)."""

    def __post_init__(self) -> None:
        check_stages(self.schedule, self.virtual_stages)
        check_options(self.schedule, self.microbatch_group_size, self.max_live_microbatches, self.actions)
        check_slices(self.schedule, self.token_slices, self.slice_granularity)
        check_barrier(self.schedule, self.optimizer_barrier)
        check_blocking(self.schedule, blocking_messages=self.blocking_messages)

    @property
    def has_barrier(self) -> bool:
        """Return whether all ranks wait for each other between steps."""
        return self.schedule != "aiao" and self.optimizer_barrier is not False

    @property
    def num_virtual_stages(self) -> int:
        """Return the number of virtual stages over all ranks, of one copy of the model."""
        return self.degree * self.virtual_stages

    @property
    def num_slices(self) -> int:
        """Return in how many slices a sequence goes through the pipeline."""
        return max(1, len(self.token_slices))

    @property
    def awaits_slices(self) -> bool:
        """Return whether it is yet to be chosen into which slices sequences are cut."""
        return self.schedule in SLICED_SCHEDULES and not self.token_slices

    @property
    def num_copies(self) -> int:
        """Return how many copies of the model the ranks hold: two under a bidirectional schedule."""
        return 2 if TRAITS[self.schedule].placement == "bidirectional" else 1

    @property
    def gradient_delay(self) -> int:
        """Return by how many steps the weights that a gradient is taken at lie behind those that it updates."""
        return 1 if self.schedule == "pipedream_2bw" else 0


def check_schedule(num_microbatches: int, pipeline: PipelineSpec) -> None:
    """Raise SpecError where a schedule cannot run on this many ranks or micro-batches."""
    check_microbatches(
        pipeline.schedule,
        pipeline.degree,
        num_microbatches,
        virtual_stages=pipeline.virtual_stages,
        group_size=pipeline.microbatch_group_size,
    )
    if pipeline.schedule == "custom":
        check_actions(pipeline.actions, pipeline.degree, pipeline.virtual_stages, num_microbatches)
