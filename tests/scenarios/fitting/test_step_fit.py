"""Constants of a framework and a profile come back from step times that were simulated with them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from costmodels.calibration.samples import is_held_out
from costmodels.profile import load_profile
from costmodels.software import Software
from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.fitting.constants import applied, parse_constant
from scenarios.fitting.measured_steps import MeasuredStep, StepsHere, measured_steps
from scenarios.fitting.step_fit import fit_steps
from scenarios.fitting.step_workers import steps_in_processes
from scenarios.workloads.steps.intervals import errors_of
from sim.engine.running.simulate import simulate
from tests.scenarios.calibration.measured_tables import table_of_steps
from traces.published import load_table, published_tables

PROFILE = load_profile("a100")
TABLES = {path.stem: path for path in published_tables()}
TIMES = "prediction: iteration_time_s, unit: s"
ROWS = "1,2,1,fitted,1\n2,4,1,fitted,1\n3,4,8,fitted,1\n4,2,16,held out,1\n"


@pytest.fixture
def steps(tmp_path: Path) -> list[MeasuredStep]:
    """Return four steps, one of them held out."""
    return measured_steps([table_of_steps(tmp_path, ROWS)])


@pytest.mark.parametrize(
    "truth",
    [
        {"software.launch": 130e-6, "software.unaligned_slowdown": 2.5},
        {"profile.sustained.clock_fraction": 0.8, "software.unaligned_slowdown": 2.5},
    ],
    ids=["framework", "both"],
)
def test_constants_come_back(steps: list[MeasuredStep], truth: dict[str, float]) -> None:
    """Steps simulated with known constants give them back; the row that is held out is predicted as well."""
    known = {parse_constant(name): value for name, value in truth.items()}
    measured = [dataclasses.replace(s, facts=replace(s.facts, measured_s=s.predicted_s(known))) for s in steps]
    fit = fit_steps(StepsHere(measured), list(truth))
    assert {c.name: estimate.value for c, estimate in fit.found.items()} == pytest.approx(truth, rel=0.02)
    assert np.abs(fit.residuals).max() < 0.01
    assert (len(fit.errors(fitted=True)), len(fit.errors(fitted=False))) == (3, 1)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["software.speed"], "there is no constant 'software.speed'"),
        (["profile.gemm.tiles"], "there is no constant"),
        (["software.rank_skew"], "a start above 0"),
        (["software.launch", "software.native_launch", "profile.gemm.step"], "3 rows to fit to cannot settle 3"),
    ],
)
def test_constants_that_cannot_be_fitted_are_refused(steps: list[MeasuredStep], names: list[str], message: str) -> None:
    """A constant that there is not, that starts at 0, and as many of them as there are rows are refused."""
    with pytest.raises(ScenarioError, match=message):
        fit_steps(StepsHere(steps), names)


def test_a_constant_that_a_scenario_leaves_out_stays_out(steps: list[MeasuredStep]) -> None:
    """Tables share only what all of them have: a constant of others changes nothing."""
    others = {parse_constant("software.memory_bound_slowdown"): 3.0, parse_constant("software.rank_skew"): 1e-3}
    assert steps[0].predicted_s(others) == steps[0].predicted_s({})


def test_fast_path_equals_the_scenario(steps: list[MeasuredStep]) -> None:
    """Prices with other constants are those of a scenario that has them."""
    step = steps[0]
    assert step.pricing.software.unaligned_slowdown == 2.0
    assert step.predicted_s({}) == simulate(step.plan, step.pricing).iteration_time_s
    assert step.predicted_s({parse_constant("software.launch"): 1e-3}) > step.predicted_s({})


def test_rates_are_taken_as_the_times_they_stand_for(tmp_path: Path) -> None:
    """A table of rates gives the step times that have these rates."""
    rates = (TIMES, "prediction: tokens_per_s, unit: tokens/s")
    for step in measured_steps([table_of_steps(tmp_path, ROWS.replace(",1\n", ",2048\n"), rates)]):
        assert step.facts.measured_s == pytest.approx(16 * 512 / 2048)


def test_the_command_prints_what_it_found(tmp_path: Path) -> None:
    """`simulate fit --json` tells constants, errors of both halves and rows; a table of memory is refused with 2."""
    words = ["fit", str(table_of_steps(tmp_path, ROWS)), "--constant", "software.launch", "--jobs", "1"]
    answer = CliRunner().invoke(group, [*words, "--json"])
    found = json.loads(answer.output)
    assert [constant["name"] for constant in found["constants"]] == ["software.launch"]
    assert (found["fitted"]["rows"], found["held_out"]["rows"], len(found["rows"])) == (3, 1, 4)
    shown = CliRunner().invoke(group, words)
    assert "held out: 1 row, " in shown.output
    assert "nothing was written; to use them, write software.KEY into" in shown.output
    assert "none, so nothing judges the fit" not in shown.output
    table_of_steps(tmp_path, ROWS.replace("held out", "fitted"))
    assert "held out: none, so nothing judges the fit" in CliRunner().invoke(group, words).output
    assert "fitted: 3 rows, " in shown.output
    table_of_steps(tmp_path, ROWS, (TIMES, "prediction: peak_memory_bytes, unit: GiB"))
    refused = CliRunner().invoke(group, words)
    assert refused.exit_code == 2
    assert "but peak_memory_bytes" in refused.output


def test_what_constants_leave_widens_the_interval(steps: list[MeasuredStep]) -> None:
    """Errors of whole steps are those that the constants leave, and no less than is assumed of every step."""
    wide = steps[0].pricing.under(Software(step_spread=0.1))
    assert errors_of(wide).step == 0.1
    assert errors_of(steps[0].pricing).step == steps[0].pricing.profile.step_spread


@pytest.mark.parametrize("name", [name for name in sorted(TABLES) if name.startswith("megatron_deepspeed_a100")])
def test_halves_of_the_packaged_rows_are_those_of_the_hash(name: str) -> None:
    """No row was moved from one half to the other."""
    for row in load_table(TABLES[name]).rows:
        assert (row.group == "held out") is is_held_out(f"{name} {row.name}", 2)


def test_processes_predict_what_one_predicts(tmp_path: Path, steps: list[MeasuredStep]) -> None:
    """Steps that are spread over processes have the facts and, to the last bit, the times of steps in this one."""
    here, places = StepsHere(steps), [3, 0, 2]
    with steps_in_processes([table_of_steps(tmp_path, ROWS)], 2) as there:
        assert [replace(f, profile=PROFILE) for f in there.facts] == [replace(f, profile=PROFILE) for f in here.facts]
        for launch_s in (1e-4, 1e-3):
            constants = {parse_constant("software.launch"): launch_s}
            assert there.predicted_s(constants, places).tolist() == here.predicted_s(constants, places).tolist()


def test_processes_refuse_what_one_refuses(tmp_path: Path) -> None:
    """A row that is no scenario is refused with the same words, however many processes read it."""
    table, messages = table_of_steps(tmp_path, ROWS, ("num_heads: 16", "num_heads: 17")), []
    for num_jobs in (1, 2):
        with pytest.raises(ScenarioError) as caught, steps_in_processes([table], num_jobs):
            pass
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_trying_constants_gives_what_their_scenario_gives(steps: list[MeasuredStep]) -> None:
    """Tried one after the other, constants give to the last bit what a fresh simulation gives."""
    step, launch, peak = steps[3], parse_constant("software.launch"), parse_constant("profile.sustained.clock_fraction")
    latency = parse_constant("profile.network.point_to_point_latency")
    for constants in ({launch: 1e-4}, {launch: 2e-3, peak: 0.5}, {launch: 1e-4, latency: 1e-4}, {launch: 1e-4}):
        assert step.predicted_s(constants) == simulate(step.plan, applied(step.pricing, constants)).iteration_time_s
