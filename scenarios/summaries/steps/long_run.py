"""A long run's numbers in words, for the console and the report alike."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.summaries.steps.study import SavingSummary, StudySummary
from sim.reliability.expectation import Spread

TIME_WORDS: Final[Mapping[str, str]] = {
    "useful": "training that is kept",
    "lost": "training that is lost",
    "checkpoint": "standing still to save",
    "restart": "restarting",
    "waiting": "waiting for a spare node",
}


class Row(Struct, frozen=True):
    """One quantity: its mean, the mean as a fraction of the run's time, and the range of nine in ten runs."""

    name: str
    mean: str
    fraction: str
    between: str


def reliability_rows(reliability: StudySummary) -> list[Row]:
    """Return the rows of the table of a long run."""
    rows = [
        _row("goodput", reliability.goodput, format_percent),
        _row("duration", reliability.elapsed_s, format_time),
    ]
    counts = (("steps", reliability.steps), ("interruptions", reliability.interruptions))
    rows += [_row(name, spread, _count) for name, spread in counts]
    total_s = reliability.elapsed_s.mean
    for key, words in TIME_WORDS.items():
        spread = reliability.time_s[key]
        if spread.mean > 0:
            rows.append(_row(words, spread, format_time, format_percent(spread.mean / total_s)))
    return rows


def interval_words(reliability: StudySummary) -> str:
    """Return the simulated and the best interval, the closed form's goodput, and how state is saved, in words."""
    steps = reliability.interval_steps
    chosen = f"a checkpoint every {format_time(reliability.interval_s)} ({steps:,} step{'s' if steps > 1 else ''})"
    estimates = f"Young {format_time(reliability.young_interval_s)}, Daly {format_time(reliability.daly_interval_s)}"
    best = f"best {format_time(reliability.best_interval_s)}; {estimates}"
    expected = reliability.expected
    goodput = f"; goodput in closed form {format_percent(expected.goodput)}" if expected else ""
    saved = "" if reliability.saving is None else f"; {_saving_words(reliability.saving)}"
    return f"{chosen}; {best}{goodput}; an interruption every {format_time(reliability.mtbf_s)}{saved}"


def _saving_words(saving: SavingSummary) -> str:
    """Return how a simulated checkpoint is saved, in words."""
    steps = (
        f"{saving.over_steps:,} steps of {format_time(saving.step_s)}"
        if saving.over_steps > 1
        else (f"a step of {format_time(saving.step_s)}")
    )
    standing = f"training stands still for {format_time(saving.snapshot_s)}"
    return f"to save {format_bytes(saving.node_bytes)} of each node, {standing}, and drives are written beside {steps}"


def _row(name: str, spread: Spread, show: Callable[[float], str], fraction: str = "") -> Row:
    low, high = show(spread.low), show(spread.high)
    return Row(name, show(spread.mean), fraction, f"{low} to {high}" if low != high else "")


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
