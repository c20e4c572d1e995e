"""The keys of a job mix's file."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta

from costmodels.units import Dimension
from scenarios.reading.quantities import Duration, DurationOrZero, quantity
from scenarios.reading.schema.values import ScenarioSection
from scenarios.reading.sections.section import Section
from scenarios.workloads.unread import Unread
from sim.jobs.speed.speed import MOST_LOCAL_BATCH
from traces.jobs import MAX_GPUS, MAX_JOBS

DurationOfJob = Annotated[float, quantity(Dimension.TIME, most=1e10, allow_zero=False)]
Arrival = Annotated[float, quantity(Dimension.TIME, most=1e10, allow_zero=True)]
PolicyName = Literal[
    "fifo",
    "fifo_fit_first",
    "sjf",
    "srtf",
    "srsf",
    "las",
    "tiresias",
    "optimus",
    "afs",
    "ones",
    "sia",
    "pollux",
    "themis",
    "gavel",
    "gandiva",
    "learned",
]
TraceFormat = Literal["meshtwin", "philly", "alibaba", "pollux", "ones"]
Above0 = Annotated[float, Meta(gt=0, le=1e15)]
Gpus = Annotated[int, Meta(ge=1, le=MAX_GPUS)]


class NodesSection(Section):
    """Nodes with one type of GPU."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    """The type of GPU, as jobs name it in ``speeds``."""
    num_nodes: Annotated[int, Meta(ge=1, le=MAX_GPUS)]
    """Number of nodes."""
    devices_per_node: Annotated[int, Meta(ge=1, le=1_000)]
    """GPUs of a node."""


class SharedClusterSection(Section):
    """The cluster that the jobs share: nodes of one type, or types."""

    num_nodes: Annotated[int, Meta(ge=1, le=MAX_GPUS)] | None = None
    """Number of nodes."""
    devices_per_node: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    """GPUs of a node."""
    types: Annotated[tuple[NodesSection, ...], Meta(max_length=100)] = ()
    """In place of the two: nodes of several types of GPU."""
    placement: Literal["few_nodes", "most_free"] = "few_nodes"
    """The nodes of a job for which the policy names none: as few as can be, or those with the most free GPUs."""
    shared_network: bool = False
    """Jobs on several nodes slow each other down where they meet on the network of a node."""
    interference: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """In its place: the fraction of its speed that a job on several nodes loses where it meets another one."""
    packing_loss: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """The fraction of its speed that a job loses which shares its GPUs, beside the time that it waits for them."""

    @property
    def nodes(self) -> tuple[tuple[str, int], ...]:
        """Return type and GPUs of each node; the type has no name where all nodes are alike."""
        if self.types:
            return tuple((each.name, each.devices_per_node) for each in self.types for _ in range(each.num_nodes))
        return (("", self.devices_per_node or 0),) * (self.num_nodes or 0)


Speeds = Annotated[Mapping[str, Annotated[float, Meta(gt=0, le=1e6)]], Meta(max_length=100)]

NetworkFraction = Annotated[float, Meta(ge=0, le=1)]


Part = Annotated[float, Meta(gt=0, le=1)]


class GpuUseSection(Section):
    """What a job takes of each of its GPUs."""

    time: Part = 1.0
    """The part of a step in which it keeps the GPU busy."""
    memory: Part = 1.0
    """The part of the GPU's memory."""


class StepSection(Section):
    """The time of a training step of data-parallel GPUs."""

    compute: DurationOrZero
    """Gradients of a micro-batch, whatever its size."""
    compute_per_sample: DurationOrZero
    """And for each sample of it."""
    node_sync: DurationOrZero = 0.0
    """Synchronisation of two GPUs of one node."""
    node_sync_per_gpu: DurationOrZero = 0.0
    """And for each further GPU."""
    network_sync: DurationOrZero = 0.0
    """Synchronisation of two GPUs of two nodes."""
    network_sync_per_gpu: DurationOrZero = 0.0
    """And for each further GPU."""
    overlap: Annotated[float, Meta(ge=1, le=10)] = 1.0
    """Exponent of the overlap of computation and synchronisation: 1 for none, 10 for nearly all."""


class MeasuredSection(Section):
    """A measured speed."""

    num_gpus: Gpus
    """On so many GPUs."""
    samples_per_s: Above0
    """Samples per second."""


class ScaledBatchSection(Section):
    """Batch and learning rate grow with the GPUs."""

    step: StepSection
    local_batch_size: Annotated[int, Meta(ge=1, le=MOST_LOCAL_BATCH)]
    """Samples of a GPU."""
    learning_rate: Above0
    """That of one GPU."""
    most_learning_rate: Above0
    """Batch and learning rate grow until this one is reached."""


class GoodputSection(Section):
    """The batch with the most useful samples per second."""

    step: StepSection
    batch_size: Annotated[int, Meta(ge=1, le=10_000_000)]
    """The batch with efficiency 1, and the least."""
    noise_scale: Annotated[float, Meta(ge=0, le=1e12)]
    """Gradient noise scale, in samples."""
    most_batch_size: Annotated[int, Meta(ge=1, le=10_000_000)]
    """The largest batch of all GPUs."""
    most_local_batch_size: Annotated[int, Meta(ge=1, le=MOST_LOCAL_BATCH)]
    """The most samples that fit on a GPU."""


class PlanSection(Section):
    """A speed that is simulated: that of the plan of a training step."""

    scenario: Annotated[str, Meta(min_length=1, max_length=1_000)]
    """A training scenario that comes with the program, or a file."""
    num_gpus: Annotated[tuple[Gpus, ...], Meta(min_length=1, max_length=64)]
    """The numbers of GPUs on which its step is simulated, all data-parallel beside its other degrees."""
    batch_per_gpu: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Samples of a step for each GPU; left out: the batch of the scenario, whatever the GPUs."""
    set: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    """Further changes of the scenario: key=value."""


class PerceptronSection(Section):
    """What `simulate execute` trains: a perceptron with one hidden layer on drawn samples."""

    num_features: Annotated[int, Meta(ge=1, le=4_096)] = 16
    """Numbers of a sample."""
    hidden_size: Annotated[int, Meta(ge=1, le=65_536)] = 32
    """Neurons of the hidden layer."""
    num_classes: Annotated[int, Meta(ge=2, le=4_096)] = 4
    """Classes that it learns to tell apart."""


class ElasticSection(Section):
    """How a job trains on other numbers of GPUs: its epochs, and one of four forms of speed."""

    samples_per_epoch: Above0
    """Samples of an epoch."""
    num_epochs: Above0
    """Epochs until it is done."""
    most_gpus: Gpus | None = None
    """The largest number of GPUs that it may have; left out: as many as the speed and the cluster allow."""
    throughput: Annotated[tuple[MeasuredSection, ...], Meta(min_length=1)] | None = None
    """Measured speeds; between them the speed is linear."""
    scaled_batch: ScaledBatchSection | None = None
    """Batch and learning rate grow with the GPUs, as in ONES."""
    goodput: GoodputSection | None = None
    """The batch with the most useful samples per second, as in Pollux."""
    plan: PlanSection | None = None
    """The simulated step of a training scenario."""
    perceptron: PerceptronSection = PerceptronSection()
    """What `simulate execute` trains."""


class JobSection(Section):
    """One job."""

    id: Annotated[str, Meta(min_length=1, max_length=200)]
    """Its name."""
    arrival: Arrival
    """The time of its submission."""
    num_gpus: Gpus
    """The GPUs that it asks for."""
    duration: DurationOfJob | None = None
    """Training time of a rigid job on these GPUs."""
    elastic: ElasticSection | None = None
    """In place of a duration: how the job trains on any number of GPUs."""
    speeds: Speeds = MappingProxyType({})
    """Speeds on types of GPU, relative to that of the duration; 1 on types that are left out."""
    network_fraction: NetworkFraction = 0.0
    """Of the time of a step on several nodes, that in which the network is busy, unless elastic says it."""
    gpu_use: GpuUseSection = GpuUseSection()
    """What it takes of each of its GPUs: two jobs may share GPUs where that is not all."""


class DrawnJobsSection(Section):
    """Jobs drawn from seeded generators."""

    num_jobs: Annotated[int, Meta(ge=1, le=MAX_JOBS)]
    """Number of jobs."""
    load: Annotated[float, Meta(gt=0, le=100)]
    """Offered GPU-seconds per GPU-second of the cluster."""
    median_duration: Duration = 900.0
    """Half of the jobs take less."""
    speeds: Annotated[tuple[Speeds, ...], Meta(max_length=1_000)] = ()
    """Relative speeds on types of GPU: each job draws one of these rows."""
    network_fraction: NetworkFraction = 0.0
    """Of the time of a step on several nodes, that in which the network is busy."""
    gpu_uses: Annotated[tuple[GpuUseSection, ...], Meta(max_length=1_000)] = ()
    """What jobs take of their GPUs: each job draws one of these rows."""


class OnesJobsSection(Section):
    """Elastic jobs like those of the trace of ONES."""

    num_jobs: Annotated[int, Meta(ge=1, le=MAX_JOBS)] = 400
    """Number of jobs."""
    mean_gap: Duration = 29.97
    """Mean time between arrivals."""
    batch: Literal["scaled", "fixed"] = "scaled"
    """The batch grows with the GPUs, as in ONES, or stays that of the requested ones, as in Optimus."""
    speed: Annotated[float, Meta(ge=0.01, le=1_000)] = 1.0
    """How many times as fast GPUs and network are as those of the artifact; V100 of Longhorn: 1.4 to 2."""


class JobsSection(Section):
    """The jobs: one of four forms."""

    list: Annotated[tuple[JobSection, ...], Meta(min_length=1)] | None = None
    """Jobs written here."""
    trace: str | None = None
    """A CSV file with a row per job: job_id, arrival_s, num_gpus, duration_s."""
    format: TraceFormat = "meshtwin"
    """The format of the trace."""
    trainings: Annotated[Mapping[str, ElasticSection], Meta(max_length=1_000)] = MappingProxyType({})
    """What jobs of a trace of Pollux or ONES train, by application."""
    measured: str | None = None
    """In place of trainings, for a trace of Pollux: tables that come with the program, or a folder with some."""
    batch: Literal["trace", "chosen"] = "trace"
    """The batch of measured trainings: the trace's batch_size, or that of most goodput by what a job measured."""
    draw: DrawnJobsSection | None = None
    """Jobs drawn at random, with sizes and durations like those of the Philly cluster."""
    ones: OnesJobsSection | None = None
    """Elastic jobs drawn at random, of 20 kinds like those of the trace of ONES."""


class CostsSection(Section):
    """Time for which a job holds GPUs without progress."""

    start: DurationOrZero = 0.0
    """Of a job that never ran."""
    resume: DurationOrZero = 0.0
    """Of a job that was preempted, from its checkpoint."""
    rescale: DurationOrZero = 0.0
    """Of a running job that goes to other GPUs."""


class OutageSection(Section):
    """One failure of a node."""

    node: Annotated[int, Meta(ge=0, lt=MAX_GPUS)]
    """The node, from 0."""
    at: Arrival
    """The time of the failure."""
    repair: DurationOfJob
    """How long the node is down."""


class FailuresSection(Section):
    """Failures of nodes."""

    list: Annotated[tuple[OutageSection, ...], Meta(max_length=100_000)] = ()
    """Failures written one by one."""
    mtbf_per_node: DurationOfJob | None = None
    """Mean time between failures of a node; left out: none is drawn."""
    repair: Duration = 3_600.0
    """How long a node is down after a drawn failure."""
    save_every: Duration = 600.0
    """Training time between two saved states of a rigid job; elastic ones save after each epoch."""


class TiresiasSection(Section):
    """Options of tiresias."""

    thresholds: tuple[Above0, ...] = (57_600.0,)
    """GPU-seconds of service at which a job falls to the next queue, ascending."""
    starvation: Annotated[float, Meta(ge=0)] = 0.0
    """Waiting time per run time after which a fallen job goes back to the first queue; 0: never."""
    past_services: tuple[Above0, ...] = ()
    """GPU-seconds of past jobs: they order the first queue by the Gittins index (Tiresias-G)."""
    order: Literal["arrival", "fall"] = "arrival"
    """The order in queues below the first: by arrival, or by when jobs fell into them."""


class OptimusSection(Section):
    """Options of optimus."""

    first: Literal["shortest", "earliest"] = "shortest"
    """Which jobs get a GPU where there are fewer GPUs than jobs."""


class LasSection(Section):
    """Options of las."""

    quantum: Duration = 60.0
    """Time between decisions while jobs wait."""


class ThemisSection(Section):
    """Options of themis."""

    lease: Duration = 1_200.0
    """Time for which a job keeps its GPUs."""


class GavelSection(Section):
    """Options of gavel."""

    round: Duration = 360.0
    """Time between two placements of all jobs."""


class GandivaSection(Section):
    """Options of gandiva."""

    slice: Duration = 60.0
    """Time for which a job keeps its turn."""
    pack: bool = True
    """Two jobs share GPUs where both fit."""


class PolluxSection(Section):
    """Options of pollux."""

    round: Duration = 60.0
    """Time between searches; jobs that arrive wait for the next one."""
    population_size: Annotated[int, Meta(ge=2, le=1_000)] = 100
    """Allocations that are kept."""
    generations: Annotated[int, Meta(ge=1, le=1_000)] = 100
    """Of a search."""
    avoid_interference: bool = True
    """No node holds two jobs of several nodes."""


class OnesSection(Section):
    """Options of ones."""

    generation: Duration = 1.0
    """Time between generations of the search; arrivals and finishes bring one, too."""
    population_size: Annotated[int, Meta(ge=2, le=1_000)] = 16
    """Schedules that are kept."""
    refit_growth: Annotated[float, Meta(ge=1, le=100)] = 1.25
    """The predictor is fitted anew when the epochs of jobs that are done have grown by this factor."""
    progress: Literal["drawn", "expected"] = "drawn"
    """The progress of a job is drawn in each generation, or the mean number of epochs left is taken."""
    growth: Literal["every_two_epochs", "after_two_epochs"] = "every_two_epochs"
    """When a job's limit doubles that it holds: two epochs after the last time, or at once from its second epoch on."""


class PoliciesSection(Section):
    """Options of policies; those of a policy that is not chosen have no effect."""

    las: LasSection = LasSection()
    tiresias: TiresiasSection = TiresiasSection()
    optimus: OptimusSection = OptimusSection()
    themis: ThemisSection = ThemisSection()
    gavel: GavelSection = GavelSection()
    gandiva: GandivaSection = GandivaSection()
    pollux: PolluxSection = PolluxSection()
    ones: OnesSection = OnesSection()


class JobMixScenario(ScenarioSection):
    """Jobs that share a cluster under a scheduling policy."""

    workload: Literal["job_mix"]
    """The kind of work: jobs that share a cluster."""
    cluster: SharedClusterSection
    jobs: JobsSection
    policy: PolicyName = "fifo"
    """The scheduling policy."""
    durations: Literal["known", "predicted"] = "known"
    """What a policy that wants durations gets: those of the jobs, or a prediction from the jobs that are done."""
    speeds: Literal["known", "observed"] = "known"
    """What a policy that wants speeds gets: those on all numbers of GPUs, or what follows from those a job had."""
    past_jobs: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Drawn jobs that were done before the first one comes: what predicts lengths has learned from them."""
    round: Duration | None = None
    """Time between decisions; left out: decide at every event."""
    whole_seconds: bool = False
    """Epochs of measured trainings end at whole seconds, as in the simulator of Pollux; rounds do, too."""
    policies: PoliciesSection = PoliciesSection()
    costs: CostsSection = CostsSection()
    failures: FailuresSection = FailuresSection()


_DRAWN, _LISTED = "failures.mtbf_per_node", "failures.list"

UNREAD = (
    Unread(("failures.repair",), "no failure is drawn", f"write {_DRAWN}, or leave it out", unless=(_DRAWN,)),
    Unread(
        ("failures.save_every",), "no node fails", f"write {_DRAWN} or list, or leave it out", unless=(_DRAWN, _LISTED)
    ),
)  # fmt: skip
"""What comes of failures, where there are none."""
