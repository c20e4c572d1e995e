"""Steps with experts that move, for the summary of a step."""

from msgspec import Struct


class PlacedStep(Struct, frozen=True, kw_only=True):
    """One of the steps.

    ``num_copies``: experts that ranks hold, of all layers; ``num_arriving``: of these on their way. ``num_changes``: of
    vExperts, which the policy decided before the step; ``search_s``: time of a host to find them.
    ``fixed_max_over_mean``, ``rank_max_over_mean``: largest load of a rank over the mean one, on the mean of layers, if
    experts stayed and as they lie. ``expert_shares``: of the choices, in the layer ``PlacementSummary.layer``.
    """

    duration_s: float
    num_copies: int
    num_arriving: int
    num_changes: int
    search_s: float
    fixed_max_over_mean: float
    rank_max_over_mean: float
    expert_shares: tuple[float, ...]


class PlacementSummary(Struct, frozen=True, kw_only=True):
    """Steps in which a policy moves experts; the last one is the step of the summary.

    ``slots``, ``threshold``: of FlexMoE; FasterMoE has none. ``mean_time_s``: of all steps, which begin together on all
    ranks. ``layer``: of the model, the least even one in the last step. ``sums_error``: by which part the time of
    the last step is longer as a sum of calls than by the engine, if steps are sums and it is the one in full.
    """

    policy: str
    slots: int | None
    threshold: float | None
    mean_time_s: float
    sums_error: float | None
    layer: int
    steps: tuple[PlacedStep, ...]
