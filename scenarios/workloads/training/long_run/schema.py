"""A long run on hardware that fails."""

from typing import Annotated

from msgspec import Meta

from scenarios.reading.quantities import Duration, DurationOrZero, IntervalOrAuto, LongDuration, StepsOrAuto
from scenarios.reading.schema.memory import DrivesSection
from scenarios.reading.sections.section import Section


class CheckpointSection(Section):
    """How the state of a long run is saved."""

    save: Duration | None = None
    """From the beginning of a save until it can be restarted from. Left out with over_steps."""
    over_steps: StepsOrAuto | None = None
    """In place of save: state goes to the host, and beside so many steps to the node's drives; times are simulated.

    `auto`: as few steps as the drives need.
    """
    drives: DrivesSection | None = None
    """over_steps: the drives of every node; left out where memory.tiers.nvme states them."""
    interval: IntervalOrAuto = "auto"
    """Training time between two saves; `auto`: the best. Rounded to whole steps."""
    stall: DurationOrZero | None = None
    """Asynchronous saving: how long training stands still for a save; default all of it."""


class SparesSection(Section):
    """Nodes that stand by."""

    num_nodes: Annotated[int, Meta(ge=0, le=1_000_000)]
    """Number of nodes that wait to replace a failed one."""
    repair: LongDuration
    """From a node's failure until it stands by again."""


class ReliabilitySection(Section):
    """A long run of the training job on hardware that fails. At least one MTBF, and one of duration and steps."""

    mtbf_per_device: LongDuration | None = None
    """Mean time between failures of one device."""
    mtbf_per_nic: LongDuration | None = None
    """Mean time between failures of one network adapter."""
    mtbf_per_node: LongDuration | None = None
    """Mean time between failures of one node, its devices and adapters not counted."""
    mtbf_of_job: LongDuration | None = None
    """Mean time between interruptions that no node is to blame for: software, the network."""
    checkpoint: CheckpointSection
    restart: DurationOrZero
    """From a failure until training goes on: detection, rescheduling, loading."""
    duration: LongDuration | None = None
    """How long the job has the machine."""
    steps: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    """How many training steps the job has to do."""
    spares: SparesSection | None = None
    """Default: a replacement is always at hand."""
    replications: Annotated[int, Meta(ge=2, le=10_000)] = 100
    """Runs that are simulated, each with failures of its own."""
