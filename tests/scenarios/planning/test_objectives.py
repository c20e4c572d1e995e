from pathlib import Path

import pytest
from click.testing import CliRunner

from costmodels.hardware import load_device
from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.planning.files import write_plan
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import Found, search
from scenarios.summaries.planning import ProvedPlan
from scenarios.sweep.workers import ThisProcess
from scenarios.workloads.loading import point_of
from scenarios.workloads.steps.running import plan_of
from scenarios.workloads.steps.scenario import step_of
from sim.plan.facts.description import kernel_work
from sim.plan.words.op import Compute

HERE = Resources(ThisProcess())
"""This process simulates."""

SMALL = """
name: small
seed: 0
cluster: {node: hgx-h100, num_nodes: 1, devices_per_node: 4}
model: {family: gpt, num_layers: 4, hidden_size: 1024, num_heads: 8, vocab_size: 8000, sequence_length: 512}
training: {global_batch_size: 16, microbatch_size: 1, recompute: none}
parallel: {tensor: {degree: 1}, pipeline: {schedule: 1f1b}}
"""
SIZES = (1, 2)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose degrees of pipeline and data parallelism are open."""
    path = tmp_path_factory.mktemp("plan") / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cheapest(scenario: Path) -> Found:
    """The search for the cheapest plan on one or two nodes."""
    return search(scenario, [], Request(goal="cost", num_proofs=2, num_nodes=SIZES), HERE)


def _values(plan: ProvedPlan) -> tuple[float, float, float]:
    assert plan.cost_usd is not None
    return plan.iteration_time_s, plan.peak_memory_bytes, plan.cost_usd


def test_plans_of_several_clusters_are_ordered_by_what_is_asked_for(scenario: Path, cheapest: Found) -> None:
    """The cheapest plan rents one node, the fastest two; dollars are those of all devices for the time of a step."""
    plans = cheapest.summary.plans
    costs = [plan.cost_usd for plan in plans if plan.cost_usd is not None]
    assert costs == sorted(costs)
    assert len(costs) == len(plans)
    assert plans[0].set["cluster.num_nodes"] == 1
    assert {plan.set["cluster.num_nodes"] for plan in plans} == set(SIZES)
    for plan in plans:
        devices = 4 * plan.set["cluster.num_nodes"]
        assert plan.cost_usd == pytest.approx(plan.iteration_time_s * devices * 6.88 / 3600)
        assert plan.cost_usd_per_million_tokens == pytest.approx(plan.cost_usd / (16 * 512) * 1e6)
        assert plan.tokens_per_s == pytest.approx(16 * 512 / plan.iteration_time_s)
    fastest = search(scenario, [], Request(goal="throughput", num_proofs=1, num_nodes=SIZES), HERE).summary
    assert fastest.plans[0].set["cluster.num_nodes"] == 2
    assert fastest.plans[0].tokens_per_s == max(plan.tokens_per_s for plan in fastest.plans)


def test_the_front_is_of_time_memory_and_money(cheapest: Found, tmp_path: Path) -> None:
    """A plan is on the front exactly where no other is as good in all three and better in one; the page draws it."""
    plans = cheapest.summary.plans
    for plan in plans:
        mine = _values(plan)
        beaten = [o for o in plans if _values(o) != mine and all(a <= b for a, b in zip(_values(o), mine, strict=True))]
        assert plan.on_front == (not beaten)
    write_plan(cheapest, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Money against time" in page
    least_usd = min(plan.cost_usd_per_million_tokens or 0.0 for plan in plans)
    assert f">{least_usd:.3g}<" in page
    assert 10 * max(plan.peak_memory_bytes for plan in plans) < cheapest.summary.memory_room_bytes
    assert "far above the picture" in page
    assert "num_nodes: 1" in (tmp_path / "out" / "best.yaml").read_text(encoding="utf-8")


def test_cost_needs_a_price(scenario: Path) -> None:
    """Where the catalogue lists no price of a device, the error names the key that states one."""
    with pytest.raises(ScenarioError, match=r"no price .* is known.*\n.*as in 2.50 USD/h") as found:
        search(scenario, ["cluster.node=dgx-1-v100-16g"], Request(goal="cost", num_proofs=1), HERE)
    assert found.value.key == "cluster.device_price"


def test_plans_of_least_energy_come_first(scenario: Path) -> None:
    """One node takes less energy than two; joules lie between idle power and the limit of all devices."""
    found = search(scenario, [], Request(goal="energy", num_proofs=1, num_nodes=SIZES), HERE).summary.plans
    joules = [plan.energy_j for plan in found if plan.energy_j is not None]
    assert joules == sorted(joules)
    assert len(joules) == len(found)
    assert found[0].set["cluster.num_nodes"] == 1
    for plan in found:
        assert plan.energy_j is not None
        limit_j = plan.iteration_time_s * 4 * plan.set["cluster.num_nodes"] * 700.0
        assert 116 / 700 * limit_j < plan.energy_j <= limit_j * (1 + 1e-9)
        assert plan.energy_j_per_token == pytest.approx(plan.energy_j / (16 * 512))
    with pytest.raises(ScenarioError, match="the power of quadro-rtx-5000 is not known"):
        search(scenario, ["cluster.node=frontera-rtx"], Request(goal="energy"), HERE)


def test_energy_is_that_of_all_kernels(scenario: Path) -> None:
    """One device that computes takes idle power all the time, and for every FLOP and byte its part, counted by op."""
    keys = ["cluster.devices_per_node=1", "training.global_batch_size=1", "model.hidden_size=256", "model.num_heads=2"]
    found = search(scenario, keys, Request(num_proofs=1), HERE)
    plan, best = found.summary.plans[0], step_of(point_of(found.best, ()))
    (program,) = plan_of(best).programs
    ops = [op for call in program.calls for op in program.tasks[call.task].ops if isinstance(op, Compute)]
    works = [kernel_work(program, op) for op in ops]
    device = load_device("h100-sxm5-80gb")
    joules = 116.0 * plan.iteration_time_s
    joules += 1140.0 * sum(work.executed_flop for work in works) / device.peak("bfloat16")
    joules += 556.0 * sum(work.num_bytes for work in works) / device.memory_bandwidth_bytes_per_s
    assert plan.energy_j == pytest.approx(joules, rel=1e-9)
    assert joules < 700.0 * plan.iteration_time_s


def test_sizes_of_clusters_are_numbers(scenario: Path) -> None:
    """A list that is none is refused where the option is read."""
    result = CliRunner().invoke(group, ["plan", str(scenario), "--num-nodes", "4,x"])
    assert result.exit_code == 2
    assert "not a list of numbers of nodes" in result.output


def test_precision_is_searched_where_it_is_left_open(scenario: Path) -> None:
    """Plans in bf16 and fp8 are in one table, each as a search of its precision finds it; A100 know no fp8."""
    keys = ["training.precision=auto", "parallel.tensor.degree=2", "training.recompute=none"]
    found = search(scenario, keys, Request(num_proofs=1), HERE).summary
    assert found.searched[0] == "training.precision"
    times_s: dict[str, float] = {}
    for plan in found.plans:
        times_s.setdefault(plan.set["training.precision"], plan.iteration_time_s)
    for precision, time_s in times_s.items():
        alone = search(scenario, [f"training.precision={precision}", *keys[1:]], Request(num_proofs=1), HERE).summary
        assert alone.plans[0].iteration_time_s == time_s
    assert set(times_s) == {"bf16", "fp8"}
    old = search(scenario, ["cluster.node=dgx-a100-80g", *keys], Request(num_proofs=1), HERE).summary
    assert {plan.set["training.precision"] for plan in old.plans} == {"bf16"}
    assert any("fp8" in lost.reason for lost in old.lost)


def test_tensor_methods_and_meshes_are_searched_where_they_are_left_open(scenario: Path) -> None:
    """All methods on the meshes that fill the node are in one table, each as a search of its mesh finds it."""
    keys = ["cluster.devices_per_node=8", "training.microbatch_size=8", "parallel.pipeline.degree=1"]
    found = search(scenario, ["parallel.tensor={method: auto}", *keys], Request(num_proofs=1), HERE).summary
    times_s: dict[str, float] = {}
    for plan in found.plans:
        times_s.setdefault(str(plan.set["parallel.tensor"]), plan.iteration_time_s)
    meshes = {"2d": [2, 2], "2.5d": [2, 2, 2], "3d": [2, 2, 2]}
    sections = [{"method": "1d"}, *({"method": method, "mesh": mesh} for method, mesh in meshes.items())]
    assert set(times_s) == set(map(str, sections))
    for section, time_s in times_s.items():
        alone = search(scenario, [f"parallel.tensor={section}", *keys], Request(num_proofs=1), HERE).summary
        assert alone.plans[0].iteration_time_s == time_s
