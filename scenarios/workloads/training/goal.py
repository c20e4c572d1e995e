"""From the time of a step to that of a training run of so many tokens."""

from scenarios.summaries.steps.goal import Goal
from scenarios.summaries.steps.step import StepSummary


def goal_of(tokens: int, tokens_per_step: int, summary: StepSummary, price_usd_per_s: float | None) -> Goal:
    """Return when whole steps have seen at least so many tokens, every step being like the summary's.

    ``price_usd_per_s``: of all devices together; None: not known.
    """
    num_steps = -(-tokens // tokens_per_step)
    interval_s, study = summary.iteration_time_interval_s, summary.reliability
    time_s = num_steps * summary.iteration_time_s
    elapsed_s = None if study is None else time_s / study.goodput.mean
    return Goal(
        tokens=tokens,
        num_steps=num_steps,
        time_s=time_s,
        time_interval_s=None if interval_s is None else (num_steps * interval_s[0], num_steps * interval_s[1]),
        elapsed_s=elapsed_s,
        cost_usd=None if price_usd_per_s is None else price_usd_per_s * (elapsed_s or time_s),
        device_price_usd_per_s=None if price_usd_per_s is None else price_usd_per_s / summary.world_size,
    )
