"""Changes of a scenario that advice knows, and counterfactuals: the same step without a cause of lost time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from sim.training.pipeline.spec import PipelineSpec

Overrides = tuple[str, ...]
"""Overrides, ``key=value``, that go together."""

BUBBLE: Final = "bubble"
RECOMPUTED: Final = "recomputed"
COMPUTING: Final = "computing"

MOST_FINER: Final = 2
"""Numbers of virtual stages that are tried with interleaving."""


class Change(Struct, frozen=True):
    """Overrides, and the part of each loss that they may remove: by the purpose of a stream, or by the names above.

    The parts are rough; they decide only which change is tried first. ``above``: overrides that take less memory than
    these, and are tried before; empty: none are known.
    """

    overrides: Overrides
    removes: Mapping[str, float] = field(default_factory=dict)
    above: Overrides = ()

    def expected(self, losses: Mapping[str, float]) -> float:
        """Return the fraction of the step that the change may remove. ``losses``: fractions of the step by name."""
        return sum(part * losses.get(name, 0.0) for name, part in self.removes.items())


class Counterfactual(Struct, frozen=True):
    """A cause of lost time in words, and overrides that take it away."""

    cause: str
    overrides: Overrides


def merged(*changes: Overrides) -> Overrides:
    """Return the overrides of several changes together; of one key the last value."""
    values: dict[str, str] = {}
    for override in (override for overrides in changes for override in overrides):
        key, _, value = override.partition("=")
        values.pop(key, None)
        values[key] = value
    return tuple(f"{key}={value}" for key, value in values.items())


def schedule_changes(pipeline: PipelineSpec, finer: Sequence[int], slices: Sequence[int]) -> Iterator[Change]:
    """Yield other schedules that compute the same gradients, and other numbers of virtual stages.

    ``finer``: numbers of virtual stages, from 2, into which a rank's layers divide. ``slices``: of tokens.
    """
    now = pipeline.virtual_stages
    yield Change(_scheduled("1f1b", 1), {"pp": 0.5})
    yield Change(_scheduled("gpipe", 1), {"pp": 0.1, "dp": 0.1})
    for stages in finer[:1]:
        yield Change(_scheduled("breadth_first", stages), {BUBBLE: 0.4 * max(0.05, 1.0 - now / stages), "dp": 0.1})
    if pipeline.degree == 1:
        return
    for stages in finer[:MOST_FINER]:
        part = max(0.05, 1.0 - now / stages)
        yield Change(_scheduled("interleaved_1f1b", stages), {BUBBLE: part})
    yield Change(_scheduled("zb_v", 2), {BUBBLE: 0.7})
    yield Change(_scheduled("zb_h1", 1), {BUBBLE: 0.5})
    yield Change(_scheduled("zb_h2", 1), {BUBBLE: 0.6})
    yield Change(_scheduled("dualpipe_v", 2), {BUBBLE: 0.4})
    yield Change(_scheduled("zb_auto", 1), {BUBBLE: 0.4})
    for number in slices:
        sliced = f"parallel.pipeline.token_slices={number}"
        yield Change((*_scheduled("seq_1f1b", 1), sliced), {BUBBLE: 0.4})


def _scheduled(schedule: str, stages: int) -> Overrides:
    return (f"parallel.pipeline.schedule={schedule}", f"parallel.pipeline.virtual_stages={stages}")
