"""The keys of a textbook schedule's file."""

from typing import Literal

from scenarios.reading.schema.model import DelayModel
from scenarios.reading.schema.parallel import DelayParallelSection
from scenarios.reading.schema.training import DelayTrainingSection
from scenarios.reading.schema.values import ScenarioSection


class DelayScenario(ScenarioSection):
    """A textbook workload on ranks without hardware."""

    workload: Literal["textbook"] = "textbook"
    """The kind of work: a pipeline schedule with stated times."""
    model: DelayModel
    training: DelayTrainingSection
    parallel: DelayParallelSection = DelayParallelSection()
