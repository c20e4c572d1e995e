"""One point of a sweep: simulated, and its results. Runs in whatever process it is sent to."""

from msgspec import Struct

from scenarios.report.charts.thumbnail import Thumbnail, thumbnail
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.workload import Scenario


class Measured(Struct, frozen=True):
    """The results of a point, a frozen dataclass; ``picture`` where it was asked for."""

    results: object
    picture: Thumbnail | None = None


def measure(scenario: Scenario, with_picture: bool) -> Measured | str:
    """Return what the simulation of a scenario says, or in one line why there is none."""
    try:
        found = scenario.workload.simulate(scenario, detail="task" if with_picture else None)
        results, timeline = found.row(), found.timeline if with_picture else None
    except REFUSALS as error:
        return one_line(error)
    return Measured(results, None if timeline is None else thumbnail(timeline))
