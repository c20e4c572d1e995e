"""Intervals of step times: as wide as runs with drawn errors are spread."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.reading.loader import load_scenario
from scenarios.running.runner import plan_of, pricing_of
from sim.engine.activity import Activity, Pricing
from sim.engine.critical_path import CriticalPath, Step, critical_path, kind_of
from sim.engine.simulate import simulate
from sim.engine.uncertainty import ModelErrors, relative_deviation, shape_of, step_time_interval
from sim.plan.op import Op
from sim.plan.program import Plan, Program

ROOT = Path(__file__).parents[2]
SIGMA = {"gemm": 0.08, "attention": 0.1, "elementwise": 0.2, "network": 0.3, "optimizer": 0.1}


@dataclass(frozen=True)
class Erring:
    """A pricing whose every kernel on every shape, and every family, is off by a drawn factor."""

    pricing: Pricing
    errors: ModelErrors
    seed: int

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the op's demands, all of them times its factor."""
        activity, kind = self.pricing.price(plan, program, op, rank), kind_of(op)
        common, sigma = self.errors.common, self.errors.of(kind)
        own = self._normal((kind, _shape(program, op))) * math.sqrt(1.0 - common)
        factor = math.exp(sigma * (own + self._normal(kind) * math.sqrt(common)))
        demands = tuple((resource, seconds * factor) for resource, seconds in activity.demands)
        return Activity(activity.latency_s * factor, demands, activity.single_s * factor)

    def _normal(self, key: object) -> float:
        digest = sum(ord(letter) * 31 ** (i % 11) for i, letter in enumerate(repr(key))) % (1 << 32)
        return float(np.random.default_rng([self.seed, digest]).standard_normal())

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)


def _shape(program: Program, op: Op) -> object:
    run = type("Run", (), {"programs": {0: program}})()
    return shape_of(CriticalPath(run, ()), Step(0, 0, op, 0.0, 0.0))


def test_runs_with_drawn_errors_are_spread_as_the_interval_says() -> None:
    """The deviation of 100 runs' logarithms is the predicted one within its own statistical error; most lie inside."""
    scenario = load_scenario(ROOT / "scenarios" / "tiny-gpt-2x2.yaml")
    plan, pricing = plan_of(scenario), pricing_of(scenario)
    errors = ModelErrors(sigma=SIGMA, common=0.5, step=0.0)
    path = critical_path(simulate(plan, pricing))
    low_s, high_s = step_time_interval(path, errors)
    times = np.array([simulate(plan, Erring(pricing, errors, seed)).makespan_s for seed in range(100)])
    assert float(np.log(times).std()) == pytest.approx(relative_deviation(path, errors), rel=0.25)
    assert np.mean((times > low_s) & (times < high_s)) > 0.8


def test_one_family_errs_as_a_whole_or_shape_by_shape() -> None:
    """All in common the deviations of a family add up; all apart they add in squares, which is less."""
    scenario = load_scenario(ROOT / "scenarios" / "quickstart.yaml")
    path = critical_path(simulate(plan_of(scenario), pricing_of(scenario)))
    share = path.seconds["gemm"] / path.run.makespan_s
    whole = relative_deviation(path, ModelErrors(sigma={"gemm": 0.1}, common=1.0, step=0.0))
    apart = relative_deviation(path, ModelErrors(sigma={"gemm": 0.1}, common=0.0, step=0.0))
    assert whole == pytest.approx(0.1 * share)
    assert apart < 0.6 * whole


def test_what_errs_as_a_whole_widens_every_step_alike() -> None:
    """Without kernels' errors the interval is that of a normal logarithm with the step's deviation."""
    scenario = load_scenario(ROOT / "scenarios" / "textbook-1f1b.yaml")
    path = critical_path(simulate(plan_of(scenario), pricing_of(scenario)))
    low_s, high_s = step_time_interval(path, ModelErrors(sigma=SIGMA, common=0.5, step=0.02))
    assert (low_s, high_s) == pytest.approx((33 * math.exp(-0.0329), 33 * math.exp(0.0329)), rel=1e-4)
