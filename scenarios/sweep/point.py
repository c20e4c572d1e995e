"""Some points of a sweep: simulated, and their results. Runs in whatever process it is sent to."""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from scenarios.report.charts.thumbnail import Thumbnail, thumbnail
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.workload import Compared, Scenario


class Measured(Struct, frozen=True):
    """The results of a point, a frozen dataclass; ``picture`` where it was asked for."""

    results: object
    picture: Thumbnail | None = None


def measure(scenarios: Sequence[Scenario], with_picture: bool) -> list[Measured | str]:
    """Return what the simulation of each of some scenarios of one kind says, or in one line why there is none."""
    simulated = scenarios[0].workload.simulator(drawn=with_picture)
    return [_measured(simulated, scenario) for scenario in scenarios]


def _measured(simulated: Callable[[Any], Compared], scenario: Scenario) -> Measured | str:
    try:
        found = simulated(scenario)
    except REFUSALS as error:
        return one_line(error)
    return Measured(found.row, None if found.timeline is None else thumbnail(found.timeline))
