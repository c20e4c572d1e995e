"""Textbook workloads: a schedule with stated times; typed, checked input."""

from msgspec import Struct

from sim.training.errors import MicrobatchError, SpecError
from sim.training.pipeline import evaluate
from sim.training.pipeline.deferral import check_deferral, deferred_part
from sim.training.pipeline.rules import SLICES_KEY, check_times
from sim.training.pipeline.spec import PipelineSpec, check_schedule
from sim.training.spec.method import LocalUpdate, Method, check_auxiliary, check_method


class DelaySpec(Struct, frozen=True, kw_only=True):
    """A textbook workload: per stage and micro-batch, stated times and nothing else.

    A virtual stage takes its share of a stage's times. ``hop_s`` is added to every dependency between ranks.
    ``gradient_sync_s``: to synchronise all gradients of a rank with its replicas. ``auxiliary_s``: local updates' heads
    of a stage, forward and backward.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    hop_s: float = 0.0
    gradient_sync_s: float = 0.0
    auxiliary_s: float = 0.0


class TextbookTraining(Struct, frozen=True, kw_only=True):
    """A schedule with stated times, on no particular hardware.

    ``overlap_gradient_sync``: a virtual stage's gradients are synchronised once its last backward has ended; else all
    of them after the rank's last backward. ``deferred_sync``, of 0 to 1: the part of the gradients of all virtual
    stages but a rank's first whose synchronisation aiao leaves to the next step's forwards; None: in
    proportion to the time of forwards and backwards.
    """

    model: DelaySpec
    num_microbatches: int
    pipeline: PipelineSpec
    overlap_gradient_sync: bool = True
    deferred_sync: float | None = None
    seed: int = 0
    method: Method = "backprop"
    local_update: LocalUpdate | None = None

    def __post_init__(self) -> None:
        check_method(self.method, self.local_update, self.pipeline)
        if self.pipeline.awaits_slices:
            rule = f"{self.pipeline.schedule} runs slices of tokens; none are stated, and a textbook has no prices"
            raise SpecError(SLICES_KEY, rule, "write token_slices: 4, or a list of lengths")
        check_auxiliary(self.method, self.model.auxiliary_s)
        try:
            check_schedule(self.num_microbatches, self.pipeline)
        except MicrobatchError as error:
            raise error.naming("training.num_microbatches", error.num_valid) from error
        check_times(self.pipeline.schedule, self.times)
        check_deferral(self.pipeline.schedule, self.deferred_sync, overlaps=self.overlap_gradient_sync)
        self._check_sync()

    @property
    def update(self) -> LocalUpdate:
        """Return the kind of local updates."""
        return self.local_update or "greedy"

    @property
    def deferred_part(self) -> float:
        """Return the part of a deferred stage's gradients that is synchronised in the next step."""
        if self.pipeline.schedule != "aiao" or not self.overlap_gradient_sync:
            return 0.0
        if self.deferred_sync is not None:
            return self.deferred_sync
        return deferred_part(self.times.forward_s, self.times.input_s + self.times.weight_s)

    @property
    def times(self) -> "evaluate.StageTimes":
        """Return the times of one virtual stage."""
        model, share = self.model, self.pipeline.virtual_stages
        return evaluate.StageTimes(
            model.forward_s / share, model.backward_input_s / share, model.backward_weight_s / share, model.hop_s
        )

    @property
    def auxiliary_s(self) -> float:
        """Return the times of the head of one virtual stage."""
        return self.model.auxiliary_s / self.pipeline.virtual_stages

    def _check_sync(self) -> None:
        if self.model.gradient_sync_s and self.pipeline.num_copies > 1:
            raise SpecError(
                "model.gradient_sync",
                f"{self.pipeline.schedule} also sums the gradients of its two copies, for which there is no time",
                "leave it out, or choose another schedule",
            )
