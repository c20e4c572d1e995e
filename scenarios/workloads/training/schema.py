"""The keys of a training step's file."""

from typing import Literal

from scenarios.reading.schema.cluster import ClusterSection, NetworkSection, SoftwareSection
from scenarios.reading.schema.memory import MemorySection
from scenarios.reading.schema.model import Model
from scenarios.reading.schema.moe import MoeSection
from scenarios.reading.schema.parallel import ParallelSection
from scenarios.reading.schema.training import TrainingSection
from scenarios.reading.schema.values import ScenarioSection
from scenarios.workloads.training.long_run.schema import ReliabilitySection
from scenarios.workloads.unread import Unread


class DenseScenario(ScenarioSection):
    """Dense training of a transformer on a cluster."""

    workload: Literal["training"] = "training"
    """The kind of work: a step of training."""
    cluster: ClusterSection
    model: Model
    training: TrainingSection
    parallel: ParallelSection = ParallelSection()
    memory: MemorySection | None = None
    """State in tiers of memory; default: all of it on the devices."""
    moe: MoeSection | None = None
    """A system for mixtures of experts, whose settings are defaults; default: none."""
    network: NetworkSection = NetworkSection()
    software: SoftwareSection = SoftwareSection()
    reliability: ReliabilitySection | None = None
    """A long run on hardware that fails; default: only a step is simulated."""


_MOMENTS = tuple(f"training.adam_{key}" for key in ("beta1", "beta2", "epsilon"))

UNREAD = (Unread(_MOMENTS, "sgd has no moments", beside="training.optimizer=sgd"),)
"""Constants of an optimizer beside another one."""
