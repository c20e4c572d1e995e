"""The long run in a report: goodput over the checkpoint interval, and the table of simulated runs."""

import math
from typing import Final

import numpy as np

from costmodels.units import format_percent
from scenarios.report.blocks import Card, Chart, Only, Section, Table, Text
from scenarios.report.charts.axis_unit import drawn_number
from scenarios.report.charts.hover_text import hover_template
from scenarios.summaries.steps.long_run import interval_words, reliability_rows
from scenarios.summaries.steps.study import StudySummary
from sim.reliability.closed_forms import ExactModel

_NUM_POINTS: Final = 161
_SPAN: Final = 12.0
"""Range of the curve: from a twelfth of the interval to twelve times it."""

_CURVE, _DOT = "#4a7fd6", "#d9822b"


def long_run_card(reliability: StudySummary) -> Card:
    """Return the goodput, and the number of interruptions."""
    goodput, interruptions = reliability.goodput, reliability.interruptions.mean
    return Card("Goodput of the long run", format_percent(goodput.mean), f"{interruptions:,.0f} interruptions")


def long_run_section(reliability: StudySummary) -> Section:
    """Return the section on the long run."""
    rows = [(row.name, row.mean, row.fraction, row.between) for row in reliability_rows(reliability)]
    heads = ("mean", "of the time")
    table = Table(("", *heads, "nine runs of ten"), rows)
    terminal_table = Table(("the long run", *heads, "9 runs of 10"), rows)
    lead = "Goodput is the fraction of the time that trains and whose result is kept. "
    lead += f"{reliability.replications:,} runs were simulated, each with failures of its own."
    words = interval_words(reliability)
    note = f"{words[0].upper()}{words[1:]}."
    blocks = (
        Only("page", (table, _goodput_chart(reliability))),
        Only("terminal", (terminal_table, Text(words))),
    )
    return Section("The long run", blocks, lead, note)


def _goodput_chart(reliability: StudySummary) -> Chart:
    """Return the chart of exact goodput over the interval, with the simulated goodput and spread at the used one."""
    chosen_s, goodput = reliability.interval_s, reliability.goodput
    lowest_s = max(chosen_s / _SPAN, reliability.background_s - reliability.stall_s)
    highest_s = max(chosen_s, reliability.best_interval_s) * _SPAN
    intervals_s = np.geomspace(lowest_s, highest_s, _NUM_POINTS)
    simulated = {
        "type": "scatter", "mode": "markers", "name": "simulated", "x": [_number(chosen_s / 60)],
        "y": [_number(100 * goodput.mean)], "marker": {"color": _DOT, "size": 9},
        "error_y": {
            "type": "data", "symmetric": False, "array": [_number(100 * (goodput.high - goodput.mean))],
            "arrayminus": [_number(100 * (goodput.mean - goodput.low))], "color": _DOT, "thickness": 1.5,
        },
        "hovertemplate": hover_template("simulated %{y:.2f} %, every %{x:.3g} min"),
    }  # fmt: skip
    data = [simulated]
    if reliability.expected:
        exact = ExactModel(
            mtbf_s=reliability.mtbf_s,
            stall_s=reliability.stall_s,
            restart_s=reliability.restart_s,
            background_s=reliability.background_s,
        )
        curve = [100 * exact.goodput(float(t_s)) for t_s in intervals_s]
        data.insert(0, {
            "type": "scatter", "mode": "lines", "name": "closed form", "line": {"color": _CURVE, "width": 2},
            "x": [_number(t_s / 60) for t_s in intervals_s.tolist()], "y": [_number(value) for value in curve],
            "hovertemplate": hover_template("closed form %{y:.2f} %, every %{x:.3g} min"),
        })  # fmt: skip
    layout = {
        "margin": {"l": 56, "r": 12, "t": 10, "b": 44}, "hovermode": "closest", "dragmode": False,
        "legend": {"orientation": "h", "x": 0, "y": 1.12},
        "xaxis": {
            "type": "log", "tickvals": _round_numbers(lowest_s / 60, highest_s / 60), "fixedrange": True,
            "title": {"text": "training time between checkpoints (min)"},
        },
        "yaxis": {"title": {"text": "goodput (%)"}, "fixedrange": True, "automargin": True},
    }  # fmt: skip
    return Chart("long-run", {"data": data, "layout": layout}, 320)


def _round_numbers(low: float, high: float) -> list[float]:
    """Return the numbers 1, 2 and 5 times a power of ten between two limits."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    return [number for number in numbers if low <= number <= high]


def _number(value: float) -> float:
    return drawn_number(value, digits=6)
