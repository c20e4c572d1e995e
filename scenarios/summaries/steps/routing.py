"""How evenly a forced routing loads experts and ranks, for the summary of a step."""

from msgspec import Struct


class RoutingSummary(Struct, frozen=True, kw_only=True):
    """The loads of experts, and of the ranks that share them out, in one micro-batch; and what they cost.

    ``waiting_fraction``: part of the step that the mean rank waits for ranks with busier experts; None where all ranks
    have the rows of the busiest.
    ``expert_max_over_mean``, ``rank_max_over_mean``: the largest load over the mean one, on the mean of layers.
    ``kept_fraction``: choices that are not dropped. ``layer_shares``: each expert's part of the choices, in the layer
    ``uneven_layer`` of the model, in which the busiest rank has most.
    """

    dispatch: str
    waiting_fraction: float | None
    expert_max_over_mean: float
    rank_max_over_mean: float
    kept_fraction: float
    uneven_layer: int
    layer_shares: tuple[float, ...]
