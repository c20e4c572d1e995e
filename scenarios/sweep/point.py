"""One point of a sweep: simulated, and what came out as plain values. Runs in whatever process it is sent to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scenarios.report.charts.thumbnail import Thumbnail, thumbnail
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.workload import Scenario


@dataclass(frozen=True, slots=True)
class Measured:
    """What a sweep tells of a point, by result key; ``picture`` where it was asked for."""

    values: Mapping[str, Any]
    picture: Thumbnail | None = None


def measure(scenario: Scenario, with_picture: bool) -> Measured | str:
    """Return what the simulation of a scenario says, or in one line why there is none."""
    try:
        found = scenario.workload.simulate(scenario, detail="task" if with_picture else None)
        values, timeline = found.row(), found.timeline if with_picture else None
    except REFUSALS as error:
        return one_line(error)
    return Measured(values, None if timeline is None else thumbnail(timeline))
