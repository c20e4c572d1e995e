"""The content of a pipeline rank: all that its program follows from, but for names.

Ranks of equal content have programs that are equal but for names and calls, and of these one is written.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from msgspec import Struct

from sim.plan.words.calls import Calls
from sim.training.pipeline.placement import Placement
from sim.training.pipeline.spec import Recompute
from sim.training.spec.job import DenseTraining, split_layers
from sim.training.spec.models.model import LayerKind


class LayerContent(Struct, frozen=True):
    """A layer's kind, and whether it is named among those that are recomputed."""

    kind: LayerKind
    is_named: bool


class StageContent(Struct, frozen=True):
    """What the tasks of a virtual stage follow from.

    ``before``, ``after``: ranks to the neighbouring stages; None: it begins or ends the model.
    """

    before: int | None
    after: int | None
    recompute: Recompute
    layers: tuple[LayerContent, ...]


class CalledTask(Struct, frozen=True):
    """A task's name without the number of its stage: what it does, the stage's place in its rank, and a slice."""

    kind: str
    place: int
    part: str


class RankContent(Struct, frozen=True):
    """What the program of a pipeline rank follows from; ``called``: tasks in the order of their first calls."""

    stages: tuple[StageContent, ...]
    called: tuple[CalledTask, ...]


def tells_programs(job: DenseTraining, place: Placement) -> bool:
    """Return whether programs follow from the contents of their ranks.

    They do not where ops name ranks of the pipeline (blocking messages, two copies of the model), where operators have
    choices of their own by name, and where tasks are changed by the calls around them.
    """
    parallel, pipeline = job.parallel, job.parallel.pipeline
    names_ranks = place.num_copies > 1 or pipeline.blocking_messages
    changes_with_calls = pipeline.overlap_exchanges or job.training.set_gradients_to_none
    return not (names_ranks or changes_with_calls or parallel.osdp is not None)


def rank_contents(
    job: DenseTraining, place: Placement, ranks: Iterable[int], calls: Iterable[Calls]
) -> Iterator[RankContent]:
    """Yield the contents of pipeline ranks with these calls of forwards, backwards and messages."""
    bounds = [0, *accumulate(split_layers(job.model.num_layers, job.parallel.pipeline))]
    for rank, of_rank in zip(ranks, calls, strict=True):
        contents = []
        for stage in place.stages[rank]:
            before = None if place.is_first(stage) else place.hop(stage - 1)
            after = None if place.is_last(stage) else place.hop(stage)
            layers = tuple(_of_layers(job, range(bounds[stage], bounds[stage + 1])))
            contents.append(StageContent(before, after, job.recompute_of(stage), layers))
        yield RankContent(tuple(contents), tuple(_called(of_rank, place.stages[rank])))


def _of_layers(job: DenseTraining, layers: Iterable[int]) -> Iterator[LayerContent]:
    named = job.training.recompute_layers or ()
    return (LayerContent(job.model.kind_of(layer), layer in named) for layer in layers)


def _called(calls: Calls, stages: tuple[int, ...]) -> Iterator[CalledTask]:
    for name in calls.first_calls:
        kind, _, rest = name.partition(".")
        stage, _, part = rest.partition("@")
        yield CalledTask(kind, stages.index(int(stage)), part)
