"""A search of strategies: the classes behind plan.json."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

PLAN_SCHEMA: Final = "meshtwin.plan/1"


class ProvedPlan(Struct, frozen=True, kw_only=True):
    """A strategy that the engine simulated: the keys that it sets, and what came out beside what was estimated.

    ``indistinguishable``: its time lies in the interval of the best plan's, on the same cluster. ``on_front``: no other
    proved plan beats it in time, memory and dollars. ``iteration_time_interval_s``: None where it never was the best.
    ``cost_usd``: of a step, None where the price of a device is not known. ``energy_j``: of all devices for a step,
    without hosts; None where the power of one is not known.
    """

    set: Mapping[str, Any]
    iteration_time_s: float
    iteration_time_interval_s: tuple[float, float] | None
    estimated_time_s: float
    tokens_per_s: float
    peak_memory_bytes: int
    estimated_memory_bytes: float
    cost_usd: float | None
    cost_usd_per_million_tokens: float | None
    energy_j: float | None
    energy_j_per_token: float | None
    indistinguishable: bool
    on_front: bool


class ShiftedPlan(Struct, frozen=True, kw_only=True):
    """The fastest plan under another condition, as on half the network's bandwidth, beside the plan that was the best.

    ``set``: its searched keys; none where nothing fits. Times in seconds: None where nothing fits, or where the best
    plan of the search does not.
    """

    condition: str
    set: Mapping[str, Any]
    iteration_time_s: float | None
    kept_iteration_time_s: float | None


class LostStrategies(Struct, frozen=True, kw_only=True):
    """Strategies that lost for one reason."""

    reason: str
    number: int


class PlanSummary(Struct, frozen=True, kw_only=True):
    """The answer of a search: the proved plans, the best first.

    ``sensitivity``: empty where it was not asked for. ``time_disagreement``, ``memory_disagreement``: the median of the
    relative differences between estimate and engine.
    """

    schema: str = PLAN_SCHEMA
    scenario: str
    objective: str
    planner: str
    searched: tuple[str, ...]
    memory_room_bytes: int
    num_strategies: int
    plans: tuple[ProvedPlan, ...]
    lost: tuple[LostStrategies, ...]
    sensitivity: tuple[ShiftedPlan, ...] = ()
    time_disagreement: float
    memory_disagreement: float
