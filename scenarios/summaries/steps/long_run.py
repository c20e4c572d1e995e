"""A long run's numbers in words, for the console and the report alike."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from costmodels.units import format_percent, format_time
from scenarios.summaries.steps.study import StudySummary
from sim.reliability.study import Spread

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
    """Return the simulated interval, the best interval, and the closed form's goodput, in words."""
    steps = reliability.interval_steps
    chosen = f"a checkpoint every {format_time(reliability.interval_s)} ({steps:,} step{'s' if steps > 1 else ''})"
    estimates = f"Young {format_time(reliability.young_interval_s)}, Daly {format_time(reliability.daly_interval_s)}"
    best = f"best {format_time(reliability.best_interval_s)}; {estimates}"
    expected = reliability.expected
    goodput = f"; goodput in closed form {format_percent(expected.goodput)}" if expected else ""
    return f"{chosen}; {best}{goodput}; an interruption every {format_time(reliability.mtbf_s)}"


def _row(name: str, spread: Spread, show: Callable[[float], str], fraction: str = "") -> Row:
    low, high = show(spread.low), show(spread.high)
    return Row(name, show(spread.mean), fraction, f"{low} to {high}" if low != high else "")


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
