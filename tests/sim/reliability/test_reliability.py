"""Long runs on hardware that fails: simulation against closed forms, worked examples, laws."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.special import lambertw

from sim.reliability.closed_forms import (
    ExactModel,
    best_interval_s,
    daly_interval_s,
    young_interval_s,
)
from sim.reliability.errors import ReliabilityError
from sim.reliability.failures import Failures
from sim.reliability.run import Cycle, Outcome, run_once
from sim.reliability.spec import CheckpointSpec, Component, ReliabilitySpec, SpareNodes
from sim.reliability.study import choose_cycle, expect, study_reliability
from tests.examples import examples

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0


def spec_of(
    mtbf_s: float, *, stall_s: float = 0.0, background_s: float = 0.0, interval_s: float | None = None, **keys
) -> ReliabilitySpec:
    """Return a job that fails every ``mtbf_s``, because of one kind of part."""
    part = Component(name="device", num_units=1, mtbf_s=mtbf_s, takes_node=True)
    checkpoint = CheckpointSpec(stall_s=stall_s, background_s=background_s, interval_s=interval_s)
    return ReliabilitySpec(components=(part,), checkpoint=checkpoint, **{"restart_s": 0.0, **keys})


class Scripted:
    """Failures after stated spans of exposed time, then none."""

    def __init__(self, spans_s: Sequence[float]) -> None:
        self.spans_s = list(spans_s)

    def within(self, length_s: float) -> tuple[float, int | None]:
        """Return as ``Failures.within``."""
        if not self.spans_s or self.spans_s[0] >= length_s:
            if self.spans_s:
                self.spans_s[0] -= length_s
            return length_s, None
        return self.spans_s.pop(0), 0


def run_scripted(spec: ReliabilitySpec, cycle: Cycle, spans_s: Sequence[float]) -> Outcome:
    """Return one run with stated failures."""
    return run_once(spec, cycle, Scripted(spans_s))


def run_step_by_step(spec: ReliabilitySpec, cycle: Cycle, spans_s: Sequence[float]) -> Outcome:
    """Return the run of a job of ``num_steps`` steps that takes every step and every checkpoint for itself."""
    assert spec.num_steps is not None
    script, outcome, kept = list(spans_s), Outcome([0]), 0
    while True:
        until_s = script.pop(0) if script else math.inf
        clock_s, step, saves, useful_s = 0.0, kept, [(0.0, kept)], 0.0
        stalled_s = 0.0
        while step < spec.num_steps and clock_s < until_s:
            for _ in range(min(cycle.num_steps, spec.num_steps - step)):
                span_s = min(cycle.step_s, until_s - clock_s)
                clock_s, useful_s, step = clock_s + span_s, useful_s + span_s, step + 1
            span_s = min(cycle.stall_s, until_s - clock_s)
            clock_s, stalled_s = clock_s + span_s, stalled_s + span_s
            if clock_s < until_s:
                saves.append((clock_s + cycle.background_s, step))
        if step == spec.num_steps:
            span_s = max(0.0, min(cycle.background_s, until_s - clock_s))
            clock_s, stalled_s = clock_s + span_s, stalled_s + span_s
        outcome.checkpoint_s += stalled_s
        if clock_s < until_s:
            outcome.useful_s += useful_s
            outcome.elapsed_s += clock_s
            return outcome
        usable = max(saved for at_s, saved in saves if at_s <= until_s)
        outcome.useful_s += (usable - kept) * cycle.step_s
        outcome.lost_s += useful_s - (usable - kept) * cycle.step_s
        kept, outcome.interruptions[0] = usable, outcome.interruptions[0] + 1
        outcome.elapsed_s += until_s
        while script and script[0] < spec.restart_s:
            outcome.restart_s += script[0]
            outcome.elapsed_s += script.pop(0)
            outcome.interruptions[0] += 1
        if script:
            script[0] -= spec.restart_s
        outcome.restart_s += spec.restart_s
        outcome.elapsed_s += spec.restart_s


def parts_s(outcome: Outcome) -> list[float]:
    """Return what a run's time divides into."""
    return [outcome.useful_s, outcome.lost_s, outcome.checkpoint_s, outcome.restart_s, outcome.waiting_s]


def standard_errors_off(values: Sequence[float], expected: float) -> float:
    """Return by how many standard errors the mean of a sample misses what is expected."""
    return abs(float(np.mean(values)) - expected) / (float(np.std(values, ddof=1)) / math.sqrt(len(values)))


# --- the best interval ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mtbf_s", "published_min"), [(24 * HOUR_S, 117), (6 * HOUR_S, 57), (15 * MINUTE_S, 9.1)])
def test_dalys_published_optima_are_met(mtbf_s: float, published_min: float) -> None:
    """Daly 2006, figures 3 to 5 (saves of 5 min): his estimate to his digits, the exact optimum within 2 %."""
    digits = 1 if published_min < 10 else 0
    assert round(daly_interval_s(mtbf_s, 5 * MINUTE_S) / MINUTE_S, digits) == published_min
    assert best_interval_s(mtbf_s, 5 * MINUTE_S) / MINUTE_S == pytest.approx(published_min, rel=0.02)


@given(mtbf_s=st.floats(10, 1e7), ratio=st.floats(1e-3, 20))
def test_best_interval_is_lamberts(mtbf_s: float, ratio: float) -> None:
    """The best interval is M (1 + W(-exp(-1 - C/M))), with Lambert's W."""
    exact_s = mtbf_s * (1.0 + lambertw(-math.exp(-1.0 - ratio)).real)
    assert best_interval_s(mtbf_s, ratio * mtbf_s) == pytest.approx(exact_s, rel=1e-9)


@given(mtbf_s=st.floats(10, 1e7), ratio=st.floats(1e-12, 50), factor=st.floats(0.05, 20))
def test_no_other_interval_is_better(mtbf_s: float, ratio: float, factor: float) -> None:
    """Expected goodput is greatest at the best interval."""
    stall_s = ratio * mtbf_s
    exact = ExactModel(mtbf_s=mtbf_s, stall_s=stall_s, restart_s=0.1 * mtbf_s)
    best_s = best_interval_s(mtbf_s, stall_s)
    assert exact.goodput(best_s) >= exact.goodput(factor * best_s) * (1 - 1e-12)


@given(mtbf_s=st.floats(10, 1e7), ratio=st.floats(1e-10, 1.0))
def test_estimates_approach_the_best(mtbf_s: float, ratio: float) -> None:
    """Daly's estimate is nearer than Young's; for C <= M/10 they are off by less than 1 % and than sqrt(C/2M)."""
    stall_s = ratio * mtbf_s
    best_s = best_interval_s(mtbf_s, stall_s)
    young = abs(young_interval_s(mtbf_s, stall_s) / best_s - 1)
    daly = abs(daly_interval_s(mtbf_s, stall_s) / best_s - 1)
    assert daly <= young + 1e-12
    if ratio <= 0.1:
        assert young <= math.sqrt(ratio / 2)
        assert daly <= 0.01


def test_daly_gives_the_mtbf_for_slow_saves() -> None:
    """Saves of twice the MTBF and more: Daly's estimate is the MTBF; the exact optimum comes near it."""
    assert daly_interval_s(100.0, 200.0) == 100.0
    assert best_interval_s(100.0, 1000.0) == pytest.approx(100.0, rel=1e-4)
    assert best_interval_s(100.0, 1e6) == 100.0


@given(
    step_s=st.floats(0.1, 100), mtbf_s=st.floats(1e3, 1e6), stall_s=st.floats(0.1, 100), background_s=st.floats(0, 300)
)
def test_auto_takes_the_best_whole_number_of_steps(
    step_s: float, mtbf_s: float, stall_s: float, background_s: float
) -> None:
    """``auto``: no other number of steps that leaves time to save is expected to be better; it is never 0."""
    spec = spec_of(mtbf_s, stall_s=stall_s, background_s=background_s, duration_s=DAY_S)
    cycle = choose_cycle(spec, step_s)
    least = max(1, math.ceil((background_s - stall_s) / step_s))

    def goodput(num_steps: int) -> float:
        return expect(spec, replace(cycle, num_steps=num_steps)).goodput

    assert cycle.num_steps >= least
    others = {max(least, cycle.num_steps + change) for change in (-2, -1, 1, 2)}
    assert max(goodput(other) for other in others) <= goodput(cycle.num_steps) * (1 + 1e-12)


@pytest.mark.parametrize(("interval_s", "num_steps"), [(100.0, 10), (104.0, 10), (106.0, 11), (3.0, 1), (1e9, 500)])
def test_stated_interval_becomes_whole_steps(interval_s: float, num_steps: int) -> None:
    """The nearest number of steps, at least one and at most all."""
    spec = spec_of(1e6, stall_s=1.0, interval_s=interval_s, num_steps=500)
    assert choose_cycle(spec, 10.0).num_steps == num_steps


# --- the simulation against the closed form ---------------------------------------------------------------------


@pytest.mark.parametrize(("restart_s", "stall_s", "background_s", "interval_s", "num_steps"), [
    (0.0, 30.0, 0.0, 300.0, 3_000),
    (300.0, 30.0, 0.0, 300.0, 3_000),
    (300.0, 30.0, 0.0, 300.0, 3_007),  # the last segment is shorter
    (4_000.0, 30.0, 0.0, 300.0, 1_000),  # restarts fail more often than not
    (300.0, 30.0, 0.0, 6_000.0, 3_000),  # segments fail more often than not
    (300.0, 600.0, 0.0, 300.0, 3_000),  # failures strike most saves
    (300.0, 2.0, 250.0, 300.0, 3_000),  # asynchronous
    (300.0, 0.0, 300.0, 300.0, 3_001),  # asynchronous without a stall, always saving
])  # fmt: skip
def test_time_of_a_job_is_the_expected_one(
    restart_s: float, stall_s: float, background_s: float, interval_s: float, num_steps: int
) -> None:
    """The mean time to do a number of steps is the exact model's within 4 standard errors of 2,000 runs."""
    spec = spec_of(
        3_000.0, stall_s=stall_s, background_s=background_s, interval_s=interval_s, restart_s=restart_s,
        num_steps=num_steps, num_replications=2_000,
    )  # fmt: skip
    study = study_reliability(spec, 10.0, seed=1)
    assert study.expected is not None
    elapsed_s = [outcome.elapsed_s for outcome in study.outcomes]
    assert standard_errors_off(elapsed_s, study.expected.elapsed_s) < 4
    assert np.std(elapsed_s) / math.sqrt(2_000) < 0.02 * study.expected.elapsed_s  # the test can tell 8 % apart
    interruptions = [sum(outcome.interruptions) for outcome in study.outcomes]
    assert standard_errors_off(interruptions, study.expected.interruptions) < 4


@given(
    restart=st.floats(0, 0.5), stall=st.floats(1e-3, 0.3), background=st.floats(0, 0.2),
    num_cycle=st.integers(1, 40), num_steps=st.integers(1, 400),
)  # fmt: skip
@settings(max_examples=examples(12), derandomize=True)
def test_closed_form_holds_over_parameters(
    restart: float, stall: float, background: float, num_cycle: int, num_steps: int
) -> None:
    """For any times, in units of the MTBF, the mean of 400 runs is within 4.5 standard errors of the exact model."""
    mtbf_s, step_s = 1_000.0, 20.0
    spec = spec_of(
        mtbf_s, stall_s=stall * mtbf_s, background_s=min(background * mtbf_s, num_cycle * step_s),
        interval_s=num_cycle * step_s, restart_s=restart * mtbf_s, num_steps=num_steps, num_replications=400,
    )  # fmt: skip
    study = study_reliability(spec, step_s, seed=2)
    assert study.expected is not None
    elapsed_s = [outcome.elapsed_s for outcome in study.outcomes]
    if len(set(elapsed_s)) > 50:  # else hardly a run fails, and the sample says nothing about its error
        assert standard_errors_off(elapsed_s, study.expected.elapsed_s) < 4.5


@pytest.mark.parametrize("background_s", [0.0, 250.0])
def test_goodput_of_a_long_run_is_the_expected_one(background_s: float) -> None:
    """Over 1,500 MTBF, the mean goodput is the exact model's within 4 standard errors; failures are Poisson."""
    duration_s, mtbf_s = 4.5e6, 3_000.0
    spec = spec_of(
        mtbf_s, stall_s=30.0, background_s=background_s, restart_s=200.0, duration_s=duration_s, num_replications=60
    )
    study = study_reliability(spec, 10.0, seed=3)
    assert study.expected is not None
    assert standard_errors_off([o.goodput for o in study.outcomes], study.expected.goodput) < 4
    interruptions = [sum(o.interruptions) for o in study.outcomes]
    assert standard_errors_off(interruptions, duration_s / mtbf_s) < 4
    assert np.var(interruptions, ddof=1) == pytest.approx(duration_s / mtbf_s, rel=4 * math.sqrt(2 / 59))
    assert study.goodput_standard_error < 0.001


def test_waiting_without_spares_is_a_downtime() -> None:
    """With no spare node, each failure waits for its repair: the exact model with that downtime, and failures per
    exposed second as ever."""
    mtbf_s, stall_s, restart_s, repair_s, interval_s = 3_000.0, 30.0, 200.0, 1_500.0, 400.0
    spec = spec_of(
        mtbf_s, stall_s=stall_s, interval_s=interval_s, restart_s=restart_s, num_steps=2_000,
        spares=SpareNodes(num_nodes=0, repair_s=repair_s), num_replications=1_000,
    )  # fmt: skip
    study = study_reliability(spec, 10.0, seed=4)
    exact = ExactModel(mtbf_s=mtbf_s, stall_s=stall_s, restart_s=restart_s, wait_s=repair_s)
    segment_s = exact.segment_s(interval_s)
    assert study.expected is None
    assert standard_errors_off([o.elapsed_s for o in study.outcomes], 50 * segment_s) < 4
    for outcome in study.outcomes[:20]:
        assert outcome.waiting_s == pytest.approx(sum(outcome.interruptions) * repair_s)


def test_closed_form_knows_its_limits() -> None:
    """Without failures a segment takes interval and stall; a segment that never ends takes infinitely long."""
    reliable = ExactModel(mtbf_s=1e15, stall_s=10.0, restart_s=5.0)
    assert reliable.segment_s(90.0) == pytest.approx(100.0)
    assert reliable.goodput(90.0) == pytest.approx(0.9)
    hopeless = ExactModel(mtbf_s=1.0, stall_s=1.0, restart_s=1.0)
    assert hopeless.segment_s(1e6) == math.inf
    assert hopeless.goodput(1e6) == 0.0


# --- worked examples and laws -----------------------------------------------------------------------------------

CYCLE = Cycle(num_steps=3, step_s=10.0, stall_s=5.0, background_s=0.0)


@pytest.mark.parametrize(("spans_s", "elapsed_s", "lost_s", "checkpoint_s", "restart_s", "num_failures"), [
    ([], 105, 0, 15, 0, 0),
    ([50], 50 + 20 + 70, 15, 5 + 10, 20, 1),  # one checkpoint at 35, then 15 s of work
    ([33], 33 + 20 + 105, 30, 3 + 15, 20, 1),  # the failure strikes while the first checkpoint is saved
    ([35.5], 35.5 + 20 + 70, 0.5, 15, 20, 1),  # just after it
    ([50, 8], 50 + 8 + 20 + 70, 15, 15, 28, 2),  # again, while the job restarts
    ([50, 8, 19, 21], 50 + 8 + 19 + 20 + 1 + 20 + 70, 16, 15, 67, 4),
])  # fmt: skip
def test_worked_example(
    spans_s: list[float], elapsed_s: float, lost_s: float, checkpoint_s: float, restart_s: float, num_failures: int
) -> None:
    """Nine steps of 10 s, a save of 5 s after every three, restarts of 20 s, failures as stated."""
    spec = spec_of(1e9, stall_s=5.0, restart_s=20.0, num_steps=9)
    outcome = run_scripted(spec, CYCLE, spans_s)
    assert outcome.elapsed_s == pytest.approx(elapsed_s)
    assert parts_s(outcome) == pytest.approx([90, lost_s, checkpoint_s, restart_s, 0])
    assert outcome.interruptions == [num_failures]


def test_asynchronous_save_counts_when_it_is_there() -> None:
    """A failure while a save is on its way goes back to the save before it."""
    cycle = replace(CYCLE, stall_s=1.0, background_s=12.0)
    spec = spec_of(1e9, stall_s=1.0, background_s=12.0, restart_s=20.0, num_steps=9)
    early, late = run_scripted(spec, cycle, [42.0]), run_scripted(spec, cycle, [44.0])
    assert early.lost_s == pytest.approx(41.0)  # the first save is usable at 31 + 12 = 43 s
    assert late.lost_s == pytest.approx(13.0)
    assert run_scripted(spec, cycle, []).elapsed_s == pytest.approx(90 + 3 + 12)


def test_run_ends_with_its_time() -> None:
    """A job that has the machine for 100 s trains, saves, restarts and waits for 100 s in all."""
    spec = spec_of(1e9, stall_s=5.0, restart_s=20.0, duration_s=100.0)
    assert parts_s(run_scripted(spec, CYCLE, [])) == pytest.approx([90, 0, 10, 0, 0])
    assert parts_s(run_scripted(spec, CYCLE, [50.0])) == pytest.approx([30 + 30, 15, 5, 20, 0])
    assert parts_s(run_scripted(spec, CYCLE, [90.0])) == pytest.approx([60, 20, 10, 10, 0])
    waiting = replace(spec, spares=SpareNodes(num_nodes=0, repair_s=500.0))
    assert parts_s(run_scripted(waiting, CYCLE, [90.0])) == pytest.approx([60, 20, 10, 0, 10])


@given(
    num_cycle=st.integers(1, 7), num_steps=st.integers(1, 40), stall_s=st.floats(0.1, 20),
    background=st.floats(0, 1), restart_s=st.floats(0, 50), spans_s=st.lists(st.floats(0.01, 300), max_size=12),
)  # fmt: skip
def test_counting_by_division_is_exact(
    num_cycle: int, num_steps: int, stall_s: float, background: float, restart_s: float, spans_s: list[float]
) -> None:
    """A run in one event per failure has the times of one that takes each step and save for itself."""
    cycle = Cycle(
        num_steps=num_cycle, step_s=7.31, stall_s=stall_s, background_s=background * (num_cycle * 7.31 + stall_s)
    )
    spec = spec_of(1e9, stall_s=stall_s, background_s=cycle.background_s, restart_s=restart_s, num_steps=num_steps)
    slow, fast = run_step_by_step(spec, cycle, spans_s), run_scripted(spec, cycle, spans_s)
    assert parts_s(fast) == pytest.approx(parts_s(slow), rel=1e-9, abs=1e-6)
    assert fast.elapsed_s == pytest.approx(slow.elapsed_s, rel=1e-9)
    assert fast.interruptions == slow.interruptions


@given(
    mtbf_s=st.floats(50, 1e5), stall_s=st.floats(0.1, 100), background_s=st.floats(0, 100),
    restart_s=st.floats(0, 500), repair_s=st.floats(1, 5_000), num_spares=st.integers(0, 4),
)  # fmt: skip
def test_parts_add_up(
    mtbf_s: float, stall_s: float, background_s: float, restart_s: float, repair_s: float, num_spares: int
) -> None:
    """Useful, lost, checkpoint, restart and waiting time are the whole run's time, and none is negative."""
    spec = spec_of(
        mtbf_s, stall_s=stall_s, background_s=background_s, restart_s=restart_s, duration_s=20_000.0,
        spares=SpareNodes(num_nodes=num_spares, repair_s=repair_s),
    )  # fmt: skip
    outcome = run_once(spec, choose_cycle(spec, 3.0), Failures(spec.components, 0, 0))
    assert outcome.elapsed_s == pytest.approx(20_000.0, rel=1e-12)
    assert sum(parts_s(outcome)) == pytest.approx(20_000.0, rel=1e-9)
    assert min(parts_s(outcome)) >= -1e-6


def test_spares_bring_waiting_down() -> None:
    """The more nodes stand by, the shorter the wait; with enough of them it is as if one were always at hand."""
    spec = spec_of(3_000.0, stall_s=30.0, restart_s=200.0, duration_s=1e6)
    waits = []
    for num_nodes in (0, 1, 2, 4, 8, 1_000):
        pool = replace(spec, spares=SpareNodes(num_nodes=num_nodes, repair_s=6_000.0))
        outcome = run_once(pool, choose_cycle(pool, 10.0), Failures(spec.components, 0, 0))
        waits.append(outcome.waiting_s)
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > waits[2] > 0 == waits[-1]
    assert outcome == run_once(spec, choose_cycle(spec, 10.0), Failures(spec.components, 0, 0))


def test_software_takes_no_node() -> None:
    """A failure that no node is to blame for waits for none."""
    spec = spec_of(3_000.0, stall_s=30.0, duration_s=1e6, spares=SpareNodes(num_nodes=0, repair_s=6_000.0))
    software = replace(spec, components=(replace(spec.components[0], takes_node=False),))
    outcome = run_once(software, choose_cycle(spec, 10.0), Failures(software.components, 0, 0))
    assert sum(outcome.interruptions) > 100
    assert outcome.waiting_s == 0


# --- failures ---------------------------------------------------------------------------------------------------


def table_5() -> tuple[Component, ...]:
    """Return the Llama 3 report's interruptions by what had to be replaced (arXiv 2407.21783, table 5).

    device: GPU, HBM3, SRAM, system processor, silent corruption, thermal (148 + 72 + 19 + 17 + 6 + 6); node: host
    maintenance, SSD, power supply, chassis, IO board, CPU, memory (32 + 3 + 3 + 2 + 2 + 2 + 2); nic: 7; job: software,
    network, watchdog, dependency (54 + 35 + 7 + 2).
    """
    found = {"device": (268, 16_384), "node": (46, 2_048), "nic": (7, 16_384), "job": (98, 1)}
    return tuple(
        Component(name=name, num_units=units, mtbf_s=units * 54 * DAY_S / number, takes_node=name != "job")
        for name, (number, units) in found.items()
    )


def test_rates_of_parts_add() -> None:
    """The parts of the Llama 3 report's table 5 together fail 419 times in 54 days, and each as often as stated."""
    spec = replace(spec_of(1.0, stall_s=10.0, restart_s=300.0, duration_s=54 * DAY_S), components=table_5())
    assert spec.mtbf_s == pytest.approx(54 * DAY_S / 419)
    study = study_reliability(spec, 8.0, seed=0)
    for index, number in enumerate((268, 46, 7, 98)):
        assert standard_errors_off([o.interruptions[index] for o in study.outcomes], number) < 4


def test_each_part_has_its_own_failures() -> None:
    """Another part, or another split of the time, leaves a part's failures where they are; seed and run do not."""
    device, nic = table_5()[0], table_5()[2]

    def instants(components: Sequence[Component], name: str, seed: int = 0, run: int = 0) -> list[float]:
        failures, now_s, found = Failures(components, seed, run), 0.0, []
        while len(found) < 5:
            span_s, index = failures.within(5_000.0)
            now_s += span_s
            found += [now_s] if index is not None and components[index].name == name else []
        return found

    alone = instants([device], "device")
    assert instants([nic, device], "device") == pytest.approx(alone)
    assert instants([device], "device") == alone
    assert instants([device], "device", seed=1) != alone
    assert instants([device], "device", run=1) != alone


def test_studies_repeat() -> None:
    """The same seed gives the same runs, another seed gives others."""
    spec = spec_of(3_000.0, stall_s=30.0, restart_s=200.0, duration_s=1e5, num_replications=5)
    first = study_reliability(spec, 10.0, seed=0)
    assert study_reliability(spec, 10.0, seed=0) == first
    assert study_reliability(spec, 10.0, seed=1) != first


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "key", "rule"), [
    ({"components": ()}, "reliability", "nothing that could fail"),
    ({"num_steps": 5}, "reliability.steps", "duration and steps are both stated"),
    ({"duration_s": None}, "reliability", "neither duration nor steps"),
])  # fmt: skip
def test_bad_specification_is_refused(change: dict, key: str, rule: str) -> None:
    """What contradicts itself names the key and the rule."""
    with pytest.raises(ReliabilityError, match=rule) as caught:
        replace(spec_of(3_000.0, stall_s=30.0, duration_s=1e5), **change)
    assert caught.value.key == key


def test_bad_checkpoint_is_refused() -> None:
    """Saves may not overlap, and must take some time."""
    with pytest.raises(ReliabilityError, match="begins before the one before it is saved"):
        CheckpointSpec(stall_s=1.0, background_s=100.0, interval_s=50.0)
    with pytest.raises(ReliabilityError, match="takes no time at all"):
        CheckpointSpec(stall_s=0.0, background_s=0.0, interval_s=None)


@pytest.mark.parametrize(("keys", "key"), [
    ({"num_steps": 1_000, "interval_s": 1e6, "mtbf_s": 100.0}, "reliability.steps"),
    ({"num_steps": 10**9, "interval_s": 100.0, "mtbf_s": 1e4}, "reliability.replications"),
    ({"duration_s": 1e9, "mtbf_s": 10.0}, "reliability.replications"),
])  # fmt: skip
def test_endless_runs_are_refused(keys: dict, key: str) -> None:
    """A job that would fail too often to be simulated is refused before it starts."""
    with pytest.raises(ReliabilityError, match="are expected per run") as caught:
        study_reliability(spec_of(stall_s=10.0, **keys), 10.0, seed=0)
    assert caught.value.key == key
