"""Choices that follow from prices: the part that aiao defers, the order of zb_auto, token slices."""

from typing import Any

import pytest

from scenarios.choices.decide import decided
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import plan_of, simulate
from scenarios.workloads.steps.schedule import schedule_text
from scenarios.workloads.training.scenario import TrainingScenario
from sim.engine.findings.alone import tasks_alone_s
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.memory import peak_live_chunks
from sim.training.pipeline.actions import parse_orders
from sim.training.pipeline.rules import check_actions
from sim.training.spec.job import DenseTraining, OpenTraining
from sim.training.spec.openings import Opening

SCENARIO = """\
name: two passes
cluster: {node: dgx-a100-80g, num_nodes: 2}
model:
  {family: gpt, num_layers: 9, hidden_size: 4096, num_heads: 32, sequence_length: 2048, vocab_size: 1024, dropout: 0.0}
training: {global_batch_size: 24, microbatch_size: 1}
parallel:
  tensor: {degree: 2}
  pipeline: {degree: 4, schedule: zb_auto}
  data: {degree: 2}
"""
SLICES = ("schedule: zb_auto", "schedule: terapipe")
AIAO = ("degree: 4, schedule: zb_auto", "degree: 4, schedule: aiao, virtual_stages: 2")


def job_of(scenario: Any) -> DenseTraining:
    """Return the job of a scenario with its choices made."""
    job = scenario.decided().job
    assert isinstance(job, DenseTraining)
    return job


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [
        (["training.recompute=none"], 0.3, 0.37),
        (["training.recompute=full"], 0.22, 0.28),
        (["cluster.num_nodes=4", "parallel.context.degree=2", "model.attention=flash"], 0.3, 0.37),
        (
            ["training.recompute=none", "model.num_layers=16", "cluster.stragglers=[{device: 5, slowdown: 3}]"],
            0.3,
            0.37,
        ),
    ],
)
def test_aiao_defers_the_forwards_part_of_all_passes(write, changes: list[str], least: float, most: float) -> None:
    """About a third, or a quarter where forwards are run again; exactly F/(F+B) of the times of the plan itself."""
    scenario = load_scenario(write(SCENARIO, AIAO), changes)
    part = job_of(scenario).parallel.deferred_sync
    assert part is not None
    assert least < part < most
    times_s = tasks_alone_s(plan_of(scenario), scenario.pricing())
    ways = ("forward.", "backward.")
    forward_s, backward_s = (sum(s for name, s in times_s.items() if name.startswith(way)) for way in ways)
    assert part == pytest.approx(forward_s / (forward_s + backward_s), rel=1e-12)
    stated = load_scenario(write(SCENARIO, AIAO), ["parallel.data.deferred_sync=0.5"])
    assert job_of(stated).parallel.deferred_sync == 0.5


@pytest.mark.parametrize(
    ("replacement", "opening"),
    [(("", ""), Opening.ORDER), (AIAO, Opening.DEFERRED_SYNC), (SLICES, Opening.TOKEN_SLICES)],
)
def test_a_run_decides_once(
    write, monkeypatch: pytest.MonkeyPatch, replacement: tuple[str, str], opening: Opening
) -> None:
    """A scenario says what it leaves open; simulating it decides that once, and what is decided is decided for good."""
    small = ["training.global_batch_size=8", "model.sequence_length=256", "model.hidden_size=512"]
    scenario = load_scenario(write(SCENARIO, replacement), small)
    assert isinstance(scenario.job, OpenTraining)
    assert scenario.job.opening is opening
    asked: list[Opening] = []

    def counted(job: OpenTraining, *rest: Any) -> DenseTraining:
        asked.append(job.opening)
        return decided(job, *rest)

    monkeypatch.setattr("scenarios.choices.decide.decided", counted)
    simulate(scenario)
    assert asked == [opening]
    closed = scenario.decided()
    assert isinstance(closed.job, DenseTraining)
    assert closed.decided() is closed


@pytest.mark.parametrize("replacement", [("", ""), AIAO, SLICES])
def test_a_run_goes_on_with_the_prices_that_decide(
    write, monkeypatch: pytest.MonkeyPatch, replacement: tuple[str, str]
) -> None:
    """Prices are made once, and what they found out for the decision changes no digit of the step."""
    small = ["training.global_batch_size=8", "model.sequence_length=256", "model.hidden_size=512"]
    scenario = load_scenario(write(SCENARIO, replacement), small)
    apart = simulate(scenario.decided())
    made, pricing = list[TrainingScenario](), TrainingScenario.pricing

    def counted(priced: TrainingScenario) -> ClusterPricing:
        made.append(priced)
        return pricing(priced)

    monkeypatch.setattr(TrainingScenario, "pricing", counted)
    found = simulate(scenario)
    assert len(made) == 1
    assert found.scenario.job == apart.scenario.job
    assert found.run.loop.ends_s == apart.run.loop.ends_s


@pytest.mark.parametrize("limit", [4, 6, 8])
def test_zb_auto_orders_a_transformer_within_its_memory(write, limit: int) -> None:
    """The order is whole, every rank keeps at most so many micro-batches, and no laid-down order is faster."""
    keys = [f"parallel.pipeline.max_live_microbatches={limit}"]
    scenario = load_scenario(write(SCENARIO), keys)
    check_actions(job_of(scenario).parallel.pipeline.actions, 4, 1, 12)
    result = simulate(scenario)
    assert max(peak_live_chunks(program) for program in result.run.plan.programs) <= limit
    other = "zb_h2" if limit >= 7 else "zb_h1"
    laid_down = simulate(load_scenario(write(SCENARIO, ("zb_auto", other))))
    assert result.as_json()["iteration_time_s"] <= 1.01 * laid_down.as_json()["iteration_time_s"]


def test_zb_auto_makes_use_of_memory_and_of_the_times(write) -> None:
    """More memory makes it faster, and with uneven stages the order is another one."""

    def found(*keys: str) -> tuple[Any, float]:
        scenario = load_scenario(write(SCENARIO), list(keys))
        return job_of(scenario).parallel.pipeline.actions, simulate(scenario).as_json()["iteration_time_s"]

    small, little_s = found()
    _, much_s = found("parallel.pipeline.max_live_microbatches=8")
    assert much_s < little_s
    uneven, _ = found("parallel.pipeline.layers_per_stage=[1,6,1,1]")
    assert uneven != small


def test_schedule_prints_the_order_of_zb_auto(write) -> None:
    """The text holds the order that is simulated."""
    scenario = load_scenario(write(SCENARIO))
    orders = parse_orders(schedule_text(scenario))
    assert tuple(tuple(order) for order in orders) == job_of(scenario).parallel.pipeline.actions
