"""The training time to a number of tokens: the ``goal`` object of summary.json."""

from dataclasses import dataclass, field

from scenarios.summaries.as_json import ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Whole steps to ``tokens``, and their time.

    ``time_interval_s``: by the 90 % interval of a step; None if it is unknown.
    ``elapsed_s``: with interruptions and checkpoints, by the mean goodput of the long run; absent without a long run.
    ``cost_usd``: of all devices for that time, at ``device_price_usd_per_s`` on average; absent without a price.
    """

    tokens: int
    num_steps: int
    time_s: float
    time_interval_s: tuple[float, float] | None
    elapsed_s: float | None = field(default=None, metadata=ABSENT)
    cost_usd: float | None = field(default=None, metadata=ABSENT)
    device_price_usd_per_s: float | None = field(default=None, metadata=ABSENT)
