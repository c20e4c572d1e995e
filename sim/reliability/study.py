"""A reliability study: the checkpoint interval, expected values in closed form, and many simulated runs."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from sim.reliability.closed_forms import (
    ExactModel,
    best_interval_s,
    daly_interval_s,
    young_interval_s,
)
from sim.reliability.errors import ReliabilityError
from sim.reliability.expectation import Expectation, Spread
from sim.reliability.failures import Failures
from sim.reliability.run import Cycle, Outcome, run_once
from sim.reliability.spec import ReliabilitySpec

MAX_FAILURES: Final = 1_000_000
"""Largest number of expected failures over all replications; more would take minutes."""


class Study(Struct, frozen=True, kw_only=True):
    """The results of a study. ``expected`` is None with a pool of spare nodes, which has no closed form.

    ``best_s``, ``young_s``, ``daly_s``: the best training time between checkpoints in seconds, by the exact model and
        two estimates of it; ``best_s`` is not yet a whole number of steps.
    """

    cycle: Cycle
    best_s: float
    young_s: float
    daly_s: float
    expected: Expectation | None
    outcomes: tuple[Outcome, ...]

    def spread(self, values: Sequence[float]) -> Spread:
        """Return mean and percentiles of one value per replication."""
        low, high = np.quantile(values, [0.05, 0.95])
        return Spread(mean=float(np.mean(values)), low=float(low), high=float(high))

    @property
    def goodput_standard_error(self) -> float:
        """Return the standard error of the mean goodput."""
        values = [outcome.goodput for outcome in self.outcomes]
        return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def study_reliability(spec: ReliabilitySpec, step_s: float, seed: int) -> Study:
    """Return the study of a job whose training step takes ``step_s`` seconds.

        study = study_reliability(spec, step_s=4.2, seed=0)

    Raises ReliabilityError for runs that would not end, or would take too long.
    """
    cycle = choose_cycle(spec, step_s)
    _refuse_endless(spec, cycle)
    outcomes = tuple(
        run_once(spec, cycle, Failures(spec.components, seed, replication))
        for replication in range(spec.num_replications)
    )
    checkpoint, mtbf_s = spec.checkpoint, spec.mtbf_s
    return Study(
        cycle=cycle,
        best_s=_best_s(spec),
        young_s=young_interval_s(mtbf_s, checkpoint.stall_s),
        daly_s=daly_interval_s(mtbf_s, checkpoint.stall_s),
        expected=expect(spec, cycle) if spec.spares is None else None,
        outcomes=outcomes,
    )


def choose_cycle(spec: ReliabilitySpec, step_s: float) -> Cycle:
    """Return the checkpoint cycle: the stated interval as the nearest whole number of steps, or the best such number.

    A checkpoint begins only after the previous one is saved, and at most one per step.
    """
    checkpoint = spec.checkpoint
    least = max(1, math.ceil((checkpoint.background_s - checkpoint.stall_s) / step_s))
    most = max(1, spec.num_steps or 2**62)
    wanted_s = checkpoint.interval_s if checkpoint.interval_s is not None else _best_s(spec)
    candidates = [min(most, max(least, number)) for number in _whole_numbers_at(wanted_s / step_s)]
    cycles = [_cycle(spec, step_s, number) for number in candidates]
    if checkpoint.interval_s is not None:
        return min(cycles, key=lambda cycle: abs(cycle.work_s - wanted_s))
    exact = _exact_model(spec)
    return min(cycles, key=lambda cycle: exact.segment_s(cycle.work_s) / cycle.num_steps)


def expect(spec: ReliabilitySpec, cycle: Cycle) -> Expectation:
    """Return the expected values of a run without a pool of spare nodes."""
    goodput = _exact_model(spec).goodput(cycle.work_s)
    elapsed_s = spec.duration_s if spec.duration_s is not None else _expected_run_s(spec, cycle)
    return Expectation(goodput=goodput, elapsed_s=elapsed_s, interruptions=elapsed_s / spec.mtbf_s)


def _exact_model(spec: ReliabilitySpec) -> ExactModel:
    checkpoint = spec.checkpoint
    return ExactModel(
        mtbf_s=spec.mtbf_s,
        stall_s=checkpoint.stall_s,
        restart_s=spec.restart_s,
        background_s=checkpoint.background_s,
    )


def _expected_run_s(spec: ReliabilitySpec, cycle: Cycle) -> float:
    assert spec.num_steps is not None
    whole, rest = divmod(spec.num_steps, cycle.num_steps)
    intervals_s = [(cycle.work_s, whole)] if whole else []
    intervals_s += [(rest * cycle.step_s, 1)] if rest else []
    return _exact_model(spec).run_s(intervals_s)


def _best_s(spec: ReliabilitySpec) -> float:
    """Return the best training time between checkpoints in seconds, at least the time to save a checkpoint."""
    checkpoint = spec.checkpoint
    return max(best_interval_s(spec.mtbf_s, checkpoint.stall_s), checkpoint.background_s - checkpoint.stall_s)


def _whole_numbers_at(number: float) -> tuple[int, int]:
    return math.floor(number), math.floor(number) + 1


def _cycle(spec: ReliabilitySpec, step_s: float, num_steps: int) -> Cycle:
    return Cycle(
        num_steps=num_steps,
        step_s=step_s,
        stall_s=spec.checkpoint.stall_s,
        background_s=spec.checkpoint.background_s,
    )


def _refuse_endless(spec: ReliabilitySpec, cycle: Cycle) -> None:
    """Raise ReliabilityError for a job with too many expected failures to simulate."""
    per_run = (spec.duration_s if spec.duration_s is not None else _expected_run_s(spec, cycle)) / spec.mtbf_s
    if per_run * spec.num_replications <= MAX_FAILURES:
        return
    expected = f"{per_run:,.0f} interruptions" if math.isfinite(per_run) else "interruptions without end"
    rule = f"{expected} are expected per run; {spec.num_replications:,} runs of that are more than {MAX_FAILURES:,}"
    if spec.num_steps is not None and cycle.period_s + spec.restart_s > spec.mtbf_s:
        key, remedy = (
            "reliability.steps",
            "the job fails before it makes any progress: state a duration, or a larger MTBF",
        )
    else:
        fewer = int(MAX_FAILURES / per_run)
        most = f"at most {fewer:,}" if fewer > 1 else "a larger MTBF"  # a spread takes two runs
        key, remedy = "reliability.replications", f"write {most}, or less work"
    raise ReliabilityError(key, rule, remedy)
