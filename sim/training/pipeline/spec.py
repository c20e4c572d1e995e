"""The layout and the schedule of a pipeline: typed, checked input."""

from typing import Literal

from msgspec import Struct

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
    check_overlap,
    check_slices,
    check_stages,
)

Recompute = Literal["none", "selective", "full"]
"""Recomputation in a layer's backward: none, the attention only, or the whole layer."""
RecomputeMethod = Literal["block", "uniform"]
"""Layers of a virtual stage to recompute: the first n, or all in groups of n (Megatron-LM's option of this name).

``block`` keeps all activations of the other layers; ``uniform`` keeps only the input of every n-th layer.
"""


class PipelineSpec(Struct, frozen=True, kw_only=True):
    """Pipeline parallelism."""

    degree: int = 1
    schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    """Stages per rank and copy of the model."""
    microbatch_group_size: int = 0
    """interleaved_1f1b: micro-batches that run through a chunk before the next chunk's turn; 0: Megatron-LM's order."""
    max_live_microbatches: int = 0
    """zb_auto: micro-batches that a rank may keep; 0: the pipeline degree."""
    kept_for_weights: float = 1.0
    """zb_auto: the part of a micro-batch's memory that counts until its weight part has run."""
    actions: Actions = ()
    """custom: the actions of every rank."""
    optimizer_barrier: bool | None = None
    """All ranks wait for each other between steps, as for a global gradient norm; None: yes, except under aiao."""
    layers_per_stage: tuple[int, ...] = ()
    """Layers of every virtual stage in model order; empty: as even as Megatron-LM's."""
    recompute_per_stage: tuple[Recompute, ...] = ()
    """Recomputation of every virtual stage in model order; empty: the one of the training."""
    token_slices: tuple[int, ...] = ()
    """terapipe, seq_1f1b: tokens of each slice of a sequence; empty: slices are yet to be chosen."""
    slice_granularity: int = 0
    """Chosen slices are multiples of this many tokens; 0: the default granularity."""
    blocking_messages: bool = False
    """A message blocks the computing of both its ranks, as a broadcast in a group of two on the compute stream does."""
    overlap_exchanges: bool = False
    """Overlapping passes take turns, so that experts' exchanges of one run while the other computes."""
    scatter_gather: bool = False
    """Send 1/t of a replicated boundary tensor per tensor-parallel rank, gather on arrival (SC21, section 4.1)."""

    def __post_init__(self) -> None:
        check_stages(self.schedule, self.virtual_stages)
        check_options(
            self.schedule, self.microbatch_group_size, self.max_live_microbatches, self.kept_for_weights, self.actions
        )
        check_slices(self.schedule, self.token_slices, self.slice_granularity)
        check_barrier(self.schedule, self.optimizer_barrier)
        check_blocking(self.schedule, blocking_messages=self.blocking_messages)
        check_overlap(self.schedule, overlap_exchanges=self.overlap_exchanges)

    @property
    def has_barrier(self) -> bool:
        """Return whether all ranks wait for each other between steps."""
        return self.schedule != "aiao" and self.optimizer_barrier is not False

    @property
    def num_virtual_stages(self) -> int:
        """Return the number of virtual stages over all ranks of one copy of the model."""
        return self.degree * self.virtual_stages

    @property
    def num_slices(self) -> int:
        """Return the number of slices of a sequence."""
        return max(1, len(self.token_slices))

    @property
    def awaits_slices(self) -> bool:
        """Return whether the slices of a sequence are yet to be chosen."""
        return self.schedule in SLICED_SCHEDULES and not self.token_slices

    @property
    def num_copies(self) -> int:
        """Return the number of copies of the model: two under a bidirectional schedule."""
        return 2 if TRAITS[self.schedule].placement == "bidirectional" else 1

    @property
    def gradient_delay(self) -> int:
        """Return how many steps old the weights of a gradient are when the gradient updates them."""
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
