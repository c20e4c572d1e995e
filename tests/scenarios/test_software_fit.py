"""A framework's constants come back from step times that were simulated with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.calibration.samples import is_held_out
from costmodels.software import Software
from scenarios.calibration.software_fit import MeasuredStep, fit_software, measured_steps
from scenarios.running.intervals import STEP, errors_of
from sim.engine.simulate import simulate
from traces.published import load_table, published_tables

TABLES = {path.stem: path for path in published_tables()}
ROWS = "row,num_layers,microbatch_size,half,time\n1,2,1,fitted,1\n2,4,1,fitted,1\n3,4,8,fitted,1\n4,2,16,held out,1\n"
SIDECAR = """\
citation: Nobody
source: Arithmetic
licence: facts
row: row
group: half
base:
  name: Small
  cluster: {node: dgx-a100-80g, num_nodes: 1, devices_per_node: 1}
  model: {family: gpt, num_layers: 2, hidden_size: 2048, num_heads: 16, sequence_length: 512, vocab_size: 50257}
  training: {global_batch_size: 16, microbatch_size: 1, precision: fp16}
  software: {launch: 100 us, native_launch: 50 us, unaligned_slowdown: 2.0}
columns: {model.num_layers: num_layers, training.microbatch_size: microbatch_size}
measured: {prediction: iteration_time_s, unit: s, columns: [{column: time}]}
thresholds: {mean: 0.05, worst: 0.12}
"""


@pytest.fixture
def steps(tmp_path: Path) -> list[MeasuredStep]:
    """Return four steps, one of them held out."""
    (tmp_path / "small.yaml").write_text(SIDECAR, encoding="utf-8")
    (tmp_path / "small.csv").write_text(ROWS, encoding="utf-8")
    return measured_steps([tmp_path / "small.yaml"])


def test_constants_come_back(steps: list[MeasuredStep]) -> None:
    """Steps simulated with known constants give them back; the row that is held out is predicted as well."""
    truth = {"launch_s": 130e-6, "unaligned_slowdown": 2.5}
    measured = [replace(step, measured_s=step.predicted_s(truth)) for step in steps]
    fit = fit_software(measured, list(truth))
    assert fit.constants == pytest.approx(truth, rel=0.02)
    assert np.abs(fit.residuals).max() < 0.01


@pytest.mark.parametrize(("name", "message"), [("speed", "no constant speed"), ("rank_skew_s", "a start above 0")])
def test_constants_that_cannot_be_fitted_are_refused(steps: list[MeasuredStep], name: str, message: str) -> None:
    """A constant that no framework has, or that the scenario starts at 0, is refused."""
    with pytest.raises(ValueError, match=message):
        fit_software(steps, [name])


def test_a_constant_that_a_scenario_leaves_out_stays_out(steps: list[MeasuredStep]) -> None:
    """Tables share only what all of them have: a constant of others changes nothing."""
    step = steps[0]
    assert step.predicted_s({"memory_bound_slowdown": 3.0, "rank_skew_s": 1e-3}) == step.predicted_s({})


def test_fast_path_equals_the_scenario(steps: list[MeasuredStep]) -> None:
    """Prices with other constants are those of a scenario that has them."""
    step = steps[0]
    assert step.pricing.software.unaligned_slowdown == 2.0
    assert step.predicted_s({}) == simulate(step.plan, step.pricing).iteration_time_s
    assert step.predicted_s({"launch_s": 1e-3}) > step.predicted_s({})


def test_what_constants_leave_widens_the_interval(steps: list[MeasuredStep]) -> None:
    """Errors of whole steps are those that the constants leave, and no less than is assumed of every step."""
    wide = steps[0].pricing.with_software(Software(step_spread=0.1))
    assert errors_of(wide).step == 0.1
    assert errors_of(steps[0].pricing).step == STEP


@pytest.mark.parametrize("name", [name for name in sorted(TABLES) if name.startswith("megatron_deepspeed_a100")])
def test_halves_of_the_packaged_rows_are_those_of_the_hash(name: str) -> None:
    """No row was moved from one half to the other."""
    for row in load_table(TABLES[name]).rows:
        assert (row.group == "held out") is is_held_out(f"{name} {row.name}", 2)
