"""Reading of the keys that training steps and textbook schedules share: pipeline, method, limits."""

from typing import Any, Final, Literal

from scenarios.errors import ScenarioError
from scenarios.reading import actions, token_slices
from scenarios.reading.documents import named_file
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.schema.parallel import DelayPipelineSection, PipelineSection
from scenarios.reading.schema.training import DelayTrainingSection, TrainingSection
from scenarios.reading.schema.values import MAX_MICROBATCHES
from scenarios.reading.sections.section import values_of, written_keys
from sim.training.pipeline.rules import SLICED_SCHEDULES
from sim.training.pipeline.spec import PipelineSpec
from sim.training.spec.method import LOCAL_SCHEDULE, Method

MAX_PIPELINE_CALLS: Final = 1_000_000
_ACTIONS: Final = ("parallel", "pipeline", "actions")


def method_of(training: TrainingSection | DelayTrainingSection, schedule: str) -> Method:
    """Return the method that is written, or that the schedule belongs to."""
    if "method" not in written_keys(training) and schedule == LOCAL_SCHEDULE:
        return "local"
    return training.method


def unless_auto(value: float | Literal["auto"]) -> float | None:
    """Return a stated value, None for ``auto``."""
    return None if value == "auto" else value


def pipeline_spec(
    document: Document,
    section: PipelineSection | DelayPipelineSection,
    degree: int,
    method: Method,
    tokens: tuple[int, int] | None,
) -> PipelineSpec:
    """Return the pipeline, with its actions read from their file, and with defaults for omitted keys.

    ``tokens``: of a sequence, and what slices must be multiples of; None: only the slices' ratios count.
    """
    keys: dict[str, Any] = {key: value for key, value in values_of(section).items() if value is not None}
    if method == "local" and "schedule" not in written_keys(section):
        keys["schedule"] = LOCAL_SCHEDULE
    if "actions" in keys:
        file = named_file.named_file(document, _ACTIONS, keys["actions"], actions.ACTIONS_HINT)
        keys["actions"] = actions.read_actions(file)
    stated = keys.pop("token_slices", None)
    if stated == "auto":
        stated = None if section.schedule in SLICED_SCHEDULES else 1  # of which the specification says that it has none
    if stated is not None:
        length, multiple = tokens or (stated, 1)
        keys["token_slices"] = token_slices.stated_slices(stated, length, multiple)
    return PipelineSpec(**keys | {"degree": degree})


def refuse_many_calls(document: Document, key: str, num_stages: int, num_microbatches: int) -> None:
    """Raise ScenarioError for pipelines that no computer could hold; ``key`` of ``training`` says how many passes."""
    origin = document.origin(("training", key))
    if num_microbatches > MAX_MICROBATCHES:
        rule = f"{num_microbatches:,} micro-batches per replica are more than {MAX_MICROBATCHES:,}"
        raise ScenarioError(origin, f"training.{key}", rule, "write a smaller number")
    if num_stages * num_microbatches > MAX_PIPELINE_CALLS:
        rule = (
            f"{num_microbatches:,} micro-batches x {num_stages:,} virtual stages are more than "
            f"{MAX_PIPELINE_CALLS:,} passes"
        )
        most = MAX_PIPELINE_CALLS // num_stages
        remedy = f"write a smaller number, for at most {most:,} micro-batches, or use fewer stages"
        raise ScenarioError(origin, f"training.{key}", rule, remedy)
