"""The links that decide between two simulated steps, for the comparison page."""

from collections.abc import Mapping
from typing import Final

from costmodels.units import format_percent, format_time
from scenarios.report.blocks import Columns, Group, Section, Table
from scenarios.report.causes import cause_of
from scenarios.summaries.comparing.explanation import CauseDifference, Explanation, OpDifference

MAX_OPS: Final = 12


def decision_section(explanation: Explanation) -> Section:
    """Return the verdict, and the differing parts of the step, ops and links (see ``comparing.explanation``)."""
    names = (explanation.first, explanation.second)
    causes = Table(
        ("the mean rank's step", *names, "first less second"),
        [(row.cause, *_times(row)) for row in explanation.causes],
    )
    links = Table(
        ("the busiest link of a kind", *names),
        [
            (row.kind, format_percent(row.first_busy_fraction), format_percent(row.second_busy_fraction))
            for row in explanation.links
        ],
    )
    ops = Table(
        ("communication, per rank", *(f"held back by, {name}" for name in names), *names, "first less second"),
        [
            (
                f"{row.kind}, {cause_of(row.stream)[0]}",
                _bound(row.first_bound_s, row.first_fullest_fraction),
                _bound(row.second_bound_s, row.second_fullest_fraction),
                *_times(row),
            )
            for row in [row for row in explanation.communication if row.difference_s][:MAX_OPS]
        ],
        text_columns=3,
    )
    note = "Only ops that differ. Full: utilisation of the fullest link on an op's route, while its bytes move."
    blocks = Columns((Group((causes,)), Group((links,)))), ops
    return Section("What decides", blocks, explanation.verdict, note)


def _times(row: CauseDifference | OpDifference) -> tuple[str, str, str]:
    sign = "−" if row.difference_s < 0 else "+" if row.difference_s else ""
    return format_time(row.first_s), format_time(row.second_s), sign + format_time(abs(row.difference_s))


def _bound(bound_s: Mapping[str, float], fullest: Mapping[str, float]) -> str:
    """Return the links that limited an op, as parts of its time, and their utilisation."""
    whole_s = sum(bound_s.values())
    parts = sorted(bound_s.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(
        f"{kind} {format_percent(part / whole_s, 0)}"
        + (f" ({format_percent(fullest[kind], 0)} full)" if kind in fullest else "")
        for kind, part in parts
        if part > 0.005 * whole_s
    )
