from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.planner.all_first import Scattering, all_first_ends_s
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
    found = all_first_ends_s(padded["F"], padded["B"], ranks, ranks, np.array([t.hop_s for t in times]))[..., 1]
    for seconds, (degree, chunks, stage_times) in zip(found, given_pipelines, strict=True):
        ends_s = end_times(interleaved(degree, degree, chunks), loop(degree, chunks), stage_times)
        assert seconds[0] == pytest.approx(max(ends_s.values()))


def scattered_ends_s(ranks: int, chunks: int, times: UnlikeTimes, scatter_s: list[float], held: list[bool]) -> float:
    """When the first stage's gradients of the last micro-batch are scattered, micro-batch by micro-batch.

    A rank scatters what its backwards leave, in their order. Of stages that are held the next backward waits for that.
    """
    forward_s, backward_s = times.seconds["F"], times.seconds["B"]
    free_s, queue_s = [0.0] * ranks, [0.0] * ranks
    done_s: dict[tuple[int, int], float] = {}
    for stage in range(ranks * chunks):
        for number in range(ranks):
            ready_s = done_s[stage - 1, number] + times.hop_s if stage else 0.0
            free_s[stage % ranks] = max(ready_s, free_s[stage % ranks]) + forward_s[stage]
            done_s[stage, number] = free_s[stage % ranks]
    for stage in reversed(range(ranks * chunks)):
        rank = stage % ranks
        for number in range(ranks):
            ready_s = done_s[stage + 1, number] + times.hop_s if stage + 1 < ranks * chunks else 0.0
            if held[stage] and number:
                ready_s = max(ready_s, queue_s[rank])
            free_s[rank] = done_s[stage, number] = max(ready_s, free_s[rank]) + backward_s[stage]
            queue_s[rank] = max(queue_s[rank], free_s[rank]) + scatter_s[stage]
    return queue_s[0]


@settings(max_examples=examples(20))
@given(pipelines(), st.randoms(use_true_random=False))
def test_recurrence_scatters_gradients_one_after_the_other(
    given_pipeline: tuple[int, int, UnlikeTimes], draw: Random
) -> None:
    """With two micro-batches it is what each of them says; with more, no longer, and three quarters of it or more."""
    ranks, chunks, times = given_pipeline
    scatter_s = [float(draw.randint(1, 30)) for _ in range(ranks * chunks)]
    held = [draw.random() < 0.5 for _ in scatter_s]
    waits_s = [taken_s if held[stage] else 0.0 for stage, taken_s in enumerate(scatter_s)]
    scattering = Scattering(np.array([scatter_s]), np.array([waits_s]))
    forward_s, backward_s = (np.array([times.seconds[kind]]) for kind in "FB")
    number, hop_s = np.array([ranks]), np.array([times.hop_s])
    found = float(all_first_ends_s(forward_s, backward_s, number, number, hop_s, scattering)[0, 0, 2])
    whole_s = scattered_ends_s(ranks, chunks, times, scatter_s, held)
    assert found == pytest.approx(whole_s) if ranks == 2 else 0.75 * whole_s <= found <= whole_s * (1 + 1e-9)
