"""The keys of a job mix's file."""

from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from costmodels.units import Dimension
from scenarios.reading.quantities import Duration, DurationOrZero, Quantity, quantity_schema
from scenarios.reading.schema.values import ScenarioSection, Section
from traces.jobs import MAX_GPUS, MAX_JOBS

DurationOfJob = Annotated[
    float, PlainValidator(Quantity(Dimension.TIME, most=1e10, allow_zero=False)), quantity_schema(Dimension.TIME)
]
Arrival = Annotated[
    float, PlainValidator(Quantity(Dimension.TIME, most=1e10, allow_zero=True)), quantity_schema(Dimension.TIME)
]
PolicyName = Literal["fifo", "fifo_fit_first", "sjf", "srtf", "srsf", "las", "tiresias"]


class SharedClusterSection(Section):
    """The cluster that the jobs share."""

    num_nodes: int = Field(ge=1, le=MAX_GPUS)
    """Number of nodes."""
    devices_per_node: int = Field(ge=1, le=1_000)
    """GPUs of a node."""


class JobSection(Section):
    """One job."""

    id: str = Field(min_length=1, max_length=200)
    """Its name."""
    arrival: Arrival
    """The time of its submission."""
    num_gpus: int = Field(ge=1, le=MAX_GPUS)
    """The GPUs that it needs at once."""
    duration: DurationOfJob
    """Its training time on these GPUs."""


class DrawnJobsSection(Section):
    """Jobs drawn from seeded generators."""

    num_jobs: int = Field(ge=1, le=MAX_JOBS)
    """Number of jobs."""
    load: float = Field(gt=0, le=100, allow_inf_nan=False)
    """Offered GPU-seconds per GPU-second of the cluster."""
    median_duration: Duration = 900.0
    """Half of the jobs take less."""


class JobsSection(Section):
    """The jobs: one of three forms."""

    list: Annotated[tuple[JobSection, ...], Field(min_length=1, strict=False)] | None = None
    """Jobs written here."""
    trace: str | None = None
    """A CSV file with a row per job: job_id, arrival_s, num_gpus, duration_s."""
    draw: DrawnJobsSection | None = None
    """Jobs drawn at random, with sizes and durations like those of the Philly cluster."""


class CostsSection(Section):
    """Time for which a job holds GPUs without progress."""

    start: DurationOrZero = 0.0
    """Of a job that never ran."""
    resume: DurationOrZero = 0.0
    """Of a job that was preempted, from its checkpoint."""


class JobMixScenario(ScenarioSection):
    """Jobs that share a cluster under a scheduling policy."""

    workload: Literal["job_mix"]
    """The kind of work: jobs that share a cluster."""
    cluster: SharedClusterSection
    jobs: JobsSection
    policy: PolicyName = "fifo"
    """The scheduling policy."""
    round: Duration | None = None
    """Time between decisions; left out: decide at every event."""
    quantum: Duration = 60.0
    """Time between decisions of las while jobs wait."""
    thresholds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field((57_600.0,), strict=False)
    """GPU-seconds of service at which a job of tiresias falls to the next queue, ascending."""
    starvation: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Waiting time per run time after which a fallen job of tiresias goes back to the first queue; 0: never."""
    past_services: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field((), strict=False)
    """GPU-seconds of past jobs: tiresias then orders its first queue by the Gittins index (Tiresias-G)."""
    costs: CostsSection = CostsSection()
