"""Steps in which experts move: what each took, and how the loads of experts change."""

from typing import Final

from costmodels.units import format_time
from scenarios.report.blocks import Chart, Only, Section
from scenarios.report.charts.hover_text import hover_template
from scenarios.report.pages.step_rows import step_rows
from scenarios.summaries.steps.placement import PlacementSummary

MAX_EXPERTS: Final = 64
_SCALE: Final = ((0.0, "rgba(42,120,214,0.06)"), (1.0, "rgba(42,120,214,1)"))
"""From no choices to the most, on white and on black."""
_COLUMNS: Final = ("step", "time", "changes", "search", "copies", "arriving", "busiest", "if experts stayed")
_MEANING: Final = (
    "changes: decided before the step, found by a host in the time of search; copies: of experts, on all ranks and in "
    "all layers; arriving: those that travel during the step; busiest: load of the busiest rank over the mean one"
)


def placement_section(placement: PlacementSummary) -> Section:
    """Return a row per step, and each expert's part of the choices over the steps, the busiest experts first."""
    steps = placement.steps
    rows = [
        (
            str(number), format_time(step.duration_s), str(step.num_changes), format_time(step.search_s),
            str(step.num_copies), str(step.num_arriving), f"{step.rank_max_over_mean:.2f}",
            f"{step.fixed_max_over_mean:.2f}",
        )
        for number, step in enumerate(steps)
    ]  # fmt: skip
    first, last = steps[0], steps[-1]
    how = "All ranks get the hottest experts for a step, for their own tokens."
    if placement.slots is not None:
        how = f"{placement.slots} slots per rank. Copies travel during a step and serve from the next one on."
    lead = (
        f"{placement.policy}: {how} The busiest rank had {first.rank_max_over_mean:.2f} times the mean load in the "
        f"first step, and {last.rank_max_over_mean:.2f} times in the last one; had experts stayed, "
        f"{last.fixed_max_over_mean:.2f}. Below, the part of the choices that fall on each expert of layer "
        f"{placement.layer}."
    )
    mean = f"mean of all steps: {format_time(placement.mean_time_s)}"
    blocks = (*step_rows(_COLUMNS, rows, (mean, _MEANING)), Only("page", (_loads(placement),)))
    return Section("Experts over the steps", blocks, lead, f"{_MEANING[0].upper()}{_MEANING[1:]}.")


def _loads(placement: PlacementSummary) -> Chart:
    """Return each expert's part of the choices in every step, in per cent, a line of colours per expert."""
    steps = placement.steps
    totals = [sum(shares) for shares in zip(*(step.expert_shares for step in steps), strict=True)]
    order = sorted(range(len(totals)), key=lambda expert: (-totals[expert], expert))[:MAX_EXPERTS]
    trace = {
        "type": "heatmap", "z": [[round(100.0 * step.expert_shares[e], 3) for step in steps] for e in order],
        "x0": 0, "dx": 1, "y": [f"expert {e}" for e in order], "colorscale": [list(stop) for stop in _SCALE], "ygap": 2,
        "zmin": 0, "zmax": round(100.0 * max(max(step.expert_shares) for step in steps), 3),
        "colorbar": {"thickness": 10, "ticksuffix": " %", "outlinewidth": 0},
        "hovertemplate": hover_template("%{z:.3g} % of the choices of step %{x}", strong="%{y}"),
    }  # fmt: skip
    layout = {
        "margin": {"l": 8, "r": 8, "t": 6, "b": 44},
        "xaxis": {"title": {"text": "step"}, "dtick": max(1, len(steps) // 10)},
        "yaxis": {"autorange": "reversed", "dtick": 1, "automargin": True},
    }  # fmt: skip
    return Chart("experts-over-steps", {"data": [trace], "layout": layout}, 90 + 16 * len(order))
