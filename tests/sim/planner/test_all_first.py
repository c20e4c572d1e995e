import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.planner.all_first import all_first_ends_s
from sim.training.pipeline.actions import Action
from sim.training.pipeline.evaluate import end_times
from sim.training.pipeline.placement import loop
from sim.training.pipeline.schedules import interleaved
from tests.examples import examples


class UnlikeTimes:
    """Seconds that differ from stage to stage."""

    def __init__(self, forward_s: list[float], backward_s: list[float], hop_s: float) -> None:
        self.seconds = {"F": forward_s, "B": backward_s}
        self.hop_s = hop_s

    def duration_s(self, action: Action) -> float:
        """Return the seconds of a forward or backward."""
        return self.seconds[action.kind][action.stage]


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[int, int, UnlikeTimes]:
    """Ranks, stages per rank and the times of all stages."""
    ranks, chunks = draw(st.integers(2, 5)), draw(st.integers(2, 4))
    seconds = st.lists(st.integers(1, 9).map(float), min_size=ranks * chunks, max_size=ranks * chunks)
    return ranks, chunks, UnlikeTimes(draw(seconds), draw(seconds), draw(st.integers(0, 4).map(float)))


@settings(max_examples=examples(20))
@given(st.lists(pipelines(), min_size=1, max_size=3))
def test_recurrence_is_what_the_schedule_takes(given_pipelines: list[tuple[int, int, UnlikeTimes]]) -> None:
    """Two micro-batches per stage stand for all: the recurrence gives the end of the whole schedule's last action."""
    most = max(ranks * chunks for ranks, chunks, _ in given_pipelines)
    times = [times for *_, times in given_pipelines]
    padded = {
        kind: np.array([t.seconds[kind] + [np.nan] * (most - len(t.seconds[kind])) for t in times]) for kind in "FB"
    }
    ranks = np.array([ranks for ranks, *_ in given_pipelines])
    found = all_first_ends_s(padded["F"], padded["B"], ranks, ranks, np.array([t.hop_s for t in times]))
    for seconds, (degree, chunks, stage_times) in zip(found, given_pipelines, strict=True):
        ends_s = end_times(interleaved(degree, degree, chunks), loop(degree, chunks), stage_times)
        assert seconds[0] == pytest.approx(max(ends_s.values()))
