"""Failure rates, checkpoints and restarts: the typed, checked input of a reliability study.

Assumptions: failures are fail-stop, independent and exponential. One failure interrupts the whole job, because every
rank takes part in every step.
"""

from msgspec import Struct

from sim.reliability.errors import ReliabilityError


class Component(Struct, frozen=True, kw_only=True):
    """A type of component that can fail: ``num_units`` of them, each with mean time between failures ``mtbf_s``.

    ``takes_node``: a failure requires another node; false for software and the network, which only need a restart.
    """

    name: str
    num_units: int
    mtbf_s: float
    takes_node: bool

    @property
    def rate_per_s(self) -> float:
        """Return the failure rate of all units together, per second."""
        return self.num_units / self.mtbf_s


class CheckpointSpec(Struct, frozen=True, kw_only=True):
    """Checkpoints of the training state.

    Training stops for ``stall_s`` per checkpoint; the checkpoint is usable ``background_s`` after that. Synchronous
    saving has no background part.
    ``interval_s``: training time between two checkpoints; None: the best.
    """

    stall_s: float
    background_s: float
    interval_s: float | None

    def __post_init__(self) -> None:
        if self.interval_s is not None and self.interval_s + self.stall_s < self.background_s:
            raise ReliabilityError(
                "reliability.checkpoint.interval",
                f"a checkpoint every {self.interval_s:g} s begins before the one before it is saved, which takes "
                f"{self.background_s:g} s",
                f"write at least {self.background_s:g} s, or auto",
            )
        if not self.stall_s and not self.background_s:
            raise ReliabilityError(
                "reliability.checkpoint.stall",
                "a checkpoint that takes no time at all has no best interval",
                "state how long saving takes",
            )


class SpareNodes(Struct, frozen=True, kw_only=True):
    """Spare nodes. A failed node is a spare again ``repair_s`` after its failure."""

    num_nodes: int
    repair_s: float


class LongRun(Struct, frozen=True, kw_only=True):
    """A long run of one training job: all but its checkpoints.

    ``duration_s``: machine time of the job. ``num_steps``: steps to train. Exactly one of the two is given.
    ``restart_s``: from a failure until training resumes: detection, rescheduling and loading. A failure in this time
        begins it again.
    ``spares``: None if a replacement is always available.
    ``num_replications``: number of simulated runs, each with its own failures.
    """

    components: tuple[Component, ...]
    restart_s: float
    duration_s: float | None = None
    num_steps: int | None = None
    spares: SpareNodes | None = None
    num_replications: int = 100

    def __post_init__(self) -> None:
        if not self.components:
            raise ReliabilityError(
                "reliability",
                "nothing that could fail is stated",
                "add mtbf_per_device, mtbf_per_nic, mtbf_per_node or mtbf_of_job",
            )
        if (self.duration_s is None) == (self.num_steps is None):
            both = self.duration_s is not None
            raise ReliabilityError(
                "reliability.steps" if both else "reliability",
                "duration and steps are both stated" if both else "neither duration nor steps is stated",
                "write one of duration: 54 d and steps: 500000",
            )

    @property
    def mtbf_s(self) -> float:
        """Return the mean time between failures of the whole job in seconds; the rates of components add."""
        return 1.0 / sum(component.rate_per_s for component in self.components)


class ReliabilitySpec(LongRun, frozen=True, kw_only=True):
    """A long run, and how long its checkpoints take."""

    checkpoint: CheckpointSpec


class OpenReliability(LongRun, frozen=True, kw_only=True):
    """A long run whose checkpoints are written beside so many steps each: a simulation says how long they take.

    ``over_steps``: None: as few as the drives need.
    """

    interval_s: float | None
    over_steps: int | None

    def decided(self, stall_s: float, background_s: float) -> ReliabilitySpec:
        """Return the long run with checkpoints that take so long."""
        checkpoint = CheckpointSpec(stall_s=stall_s, background_s=background_s, interval_s=self.interval_s)
        run = {name: getattr(self, name) for name in LongRun.__struct_fields__}
        return ReliabilitySpec(checkpoint=checkpoint, **run)
