"""The training time to a number of tokens: the ``goal`` object of summary.json."""

from typing import Annotated

from msgspec import Struct

from scenarios.summaries.as_json import ABSENT


class Goal(Struct, frozen=True, kw_only=True):
    """Whole steps to ``tokens``, and their time.

    ``time_interval_s``: by the 90 % interval of a step; None if it is unknown.
    ``elapsed_s``: with interruptions and checkpoints, by the mean goodput of the long run; absent without a long run.
    ``cost_usd``: of all devices for that time, at ``device_price_usd_per_s`` on average; absent without a price.
    """

    tokens: int
    num_steps: int
    time_s: float
    time_interval_s: tuple[float, float] | None
    elapsed_s: Annotated[float | None, ABSENT] = None
    cost_usd: Annotated[float | None, ABSENT] = None
    device_price_usd_per_s: Annotated[float | None, ABSENT] = None
