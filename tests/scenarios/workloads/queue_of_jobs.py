"""A trial kind of work, as somebody would write it who has read the design page: one server, and jobs that wait."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import simpy
from msgspec import Meta, Struct

from costmodels.units import format_time
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.quantities import Duration
from scenarios.reading.schema.values import ScenarioSection
from scenarios.report.blocks import Block, Card, Headline, Section, Table
from scenarios.workloads.effort import Announce
from scenarios.workloads.workload import Column, Detail, Outcome, Scenario, Workload


class QueueFile(ScenarioSection):
    """Jobs that come to one server at regular intervals."""

    workload: Literal["queue"]
    num_jobs: Annotated[int, Meta(ge=1, le=10_000)]
    every: Duration
    takes: Duration


class QueueScenario(Scenario, frozen=True, kw_only=True, eq=False):
    """How many jobs come, how far apart, and how long each takes; seconds."""

    num_jobs: int
    every_s: float
    takes_s: float


class QueueSummary(Struct, frozen=True, kw_only=True):
    """When the last job was done, and how long the mean job waited; seconds."""

    schema: str = "trial.queue/1"
    scenario: str
    makespan_s: float
    mean_wait_s: float


class QueueRow(Struct, frozen=True, kw_only=True):
    """What a sweep compares; seconds."""

    makespan_s: float
    mean_wait_s: float


@dataclass
class ServedQueue(Outcome):
    """What came of it, and every job's wait."""

    summary: QueueSummary
    waits_s: Sequence[float]

    def row(self) -> QueueRow:
        """Return what a sweep compares."""
        return QueueRow(makespan_s=self.summary.makespan_s, mean_wait_s=self.summary.mean_wait_s)

    def blocks(self, *, drawn: bool = True) -> Sequence[Block]:
        """Return the answer and a table."""
        done = Card("All done after", format_time(self.summary.makespan_s))
        rows = [(str(place), format_time(wait_s)) for place, wait_s in enumerate(self.waits_s)]
        return (Headline(self.summary.scenario, "jobs at one server", (done,)),
                Section("Waiting", (Table(("job", "waited"), rows),)))  # fmt: skip


class Queue(Workload[QueueScenario]):
    """One server."""

    name, what, schema = "queue", "jobs that wait for one server", QueueFile
    starter = "name: my queue\nworkload: queue\nnum_jobs: 4\nevery: 1 s\ntakes: 2 s\n"
    row_type = QueueRow
    columns = (Column("done", "makespan_s", format_time), Column("wait", "mean_wait_s", format_time))
    order, ordered_by = "makespan_s", "time"

    def read(self, document: Document, overrides: tuple[str, ...]) -> QueueScenario:
        """Return the scenario of a document."""
        file = check_document(document, QueueFile)
        return QueueScenario(
            name=file.name, seed=file.seed, source=document.source, overrides=overrides, workload=self,
            document=document, as_read=document, num_jobs=file.num_jobs, every_s=file.every, takes_s=file.takes,
        )  # fmt: skip

    def simulate(
        self,
        scenario: QueueScenario,
        *,
        detail: Detail | None = None,
        fold: bool = True,
        announce: Announce | None = None,
    ) -> ServedQueue:
        """Return what came of the jobs, served one after the other."""
        world, waits_s = simpy.Environment(), list[float]()
        server = simpy.Resource(world)

        def job(arrival_s: float) -> Any:
            yield world.timeout(arrival_s)
            with server.request() as turn:
                yield turn
                waits_s.append(world.now - arrival_s)
                yield world.timeout(scenario.takes_s)

        for place in range(scenario.num_jobs):
            world.process(job(place * scenario.every_s))
        world.run()
        mean_s = sum(waits_s) / len(waits_s)
        summary = QueueSummary(scenario=scenario.name, makespan_s=world.now, mean_wait_s=mean_s)
        return ServedQueue(summary, waits_s)
