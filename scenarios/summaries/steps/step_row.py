"""A simulated step as a point of a sweep."""

from msgspec import Struct


class StepRow(Struct, frozen=True, kw_only=True):
    """The results of a step that a sweep compares; None is a value that a textbook workload lacks.

    Bytes sent are those of the mean rank in a step, all and by axis of the mesh. ``peak_live_activations``: the
    micro-batches whose activations the fullest rank holds, each with all layers of the rank. ``mean_iteration_time_s``:
    of all steps in which experts move, if they do. ``goodput``: of the long run, if there is one.
    """

    world_size: int
    iteration_time_s: float
    tokens_per_s: float | None
    model_flop_per_s_per_device: float | None
    mfu: float | None
    hfu: float | None
    bubble_fraction: float
    exposed_communication_fraction: float
    algorithm: str
    peak_memory_bytes: int | None
    memory_capacity_bytes: int | None
    fits_memory: bool | None
    sent_bytes_per_rank: float | None
    tensor_sent_bytes_per_rank: float | None
    pipeline_sent_bytes_per_rank: float | None
    data_sent_bytes_per_rank: float | None
    expert_sent_bytes_per_rank: float | None
    peak_live_microbatches: float
    peak_live_activations: float
    mean_iteration_time_s: float | None = None
    goodput: float | None = None
