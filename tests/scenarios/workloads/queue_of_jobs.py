"""A trial kind of work, as somebody would write it who reads the design page: one server, jobs that wait for it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from scenarios.reading.quantities import Duration
from scenarios.reading.schema.values import ScenarioSection
from scenarios.workloads.workload import Scenario


class QueueFile(ScenarioSection):
    """Jobs that arrive at one server in regular intervals."""

    workload: Literal["queue"]
    num_jobs: Annotated[int, Field(ge=1, le=10_000)]
    every: Duration
    takes: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueScenario(Scenario):
    """How many jobs, how far apart, and how long each takes; seconds."""

    num_jobs: int
    every_s: float
    takes_s: float
