"""What a simulation takes is said before it begins."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from scenarios.command_line import group
from scenarios.workloads import effort
from scenarios.workloads.effort import Effort
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.cost import num_nodes, num_task_ops
from scenarios.workloads.steps.effort import effort_of
from scenarios.workloads.steps.running import simulate
from scenarios.workloads.steps.scenario import step_of
from sim.engine.findings.timeline import timeline
from sim.engine.folding.folding import Folding
from sim.engine.running import simulate as simulation
from sim.engine.running.shorter import Shorter
from sim.plan.words.calls import Calls, num_ops_of
from tests.sim.jobs import GPT, dense_plan, pricing_on

TINY = Path(__file__).parents[3] / "scenarios" / "library" / "tiny-gpt-2x2.yaml"


def efforts_of(*overrides: str, fold: bool = True) -> tuple[list[Effort], int]:
    """Return what was announced of a step, and how many ops its simulated ranks ran."""
    efforts = list[Effort]()
    found = simulate(step_of(load_scenario(TINY, overrides)), fold=fold, announce=efforts.append)
    return efforts, len(timeline(found.run, "op"))


def announced(*overrides: str, fold: bool = True) -> tuple[Effort, int]:
    """Return what was announced last of a step, and how many ops its simulated ranks ran."""
    efforts, num_ops = efforts_of(*overrides, fold=fold)
    return efforts[-1], num_ops


@pytest.mark.parametrize(("overrides", "fold", "simulated"), [
    ((), True, 2), ((), False, 4), (("cluster.jitter.gemm=0.1",), True, 4),
])  # fmt: skip
def test_ranks_and_ops_are_counted(overrides: tuple[str, ...], fold: bool, simulated: int) -> None:
    """The ranks that differ, and every op that these run."""
    said, num_ops = announced(*overrides, fold=fold)
    assert (said.num_ranks, said.num_simulated) == (4, simulated)
    assert said.num_ops == num_ops


def test_more_work_takes_longer() -> None:
    """Ranks that differ, and micro-batches that do not repeat, add to time and memory."""
    few, _ = announced()
    ranks, _ = announced("cluster.jitter.gemm=0.1")
    batches, _ = announced("training.global_batch_size=256", "parallel.pipeline.schedule=gpipe")
    assert min(ranks.time_s, batches.time_s) > 1.5 * few.time_s
    assert min(ranks.memory_bytes, batches.memory_bytes) > few.memory_bytes


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_repetitions_take_no_time(schedule: str) -> None:
    """However many micro-batches repeat themselves; also where it takes several tries to see that they do."""
    change = f"parallel.pipeline.schedule={schedule}"
    said = [announced(f"training.global_batch_size={number}", change)[0] for number in (512, 1024)]
    assert (said[0].time_s, said[0].memory_bytes) == (said[1].time_s, said[1].memory_bytes)


def test_recurrences_of_sections_take_no_time() -> None:
    """Stages that repeat with periods of their own are announced as they are simulated: for few micro-batches."""
    options = ("parallel.pipeline.schedule=gpipe", "parallel.tensor.degree=1", "cluster.num_nodes=2",
               "cluster.devices_per_node=1")  # fmt: skip
    said = [efforts_of(f"training.global_batch_size={number}", *options)[0] for number in (512, 992)]
    assert [found[0].num_ops for found in said] == [said[0][0].num_ops] * 2
    assert said[0][-1].num_ops > 3 * said[0][0].num_ops  # a timeline has all micro-batches


def test_a_last_step_that_is_only_begun_counts_as_far_as_it_is() -> None:
    """Steps without a barrier are announced as they are run: two of them, and the begin of a third."""
    keys = {"schedule": "aiao", "virtual_stages": 2, "deferred_sync": 0.6, "model": GPT | {"num_layers": 6}}
    plan = dense_plan(pp=3, dp=2, m=90, **keys)
    said = list[tuple[Effort, Effort]]()

    def notice(shorter: Shorter, folding: Folding, *, whole: bool) -> None:
        assert not whole
        said.append((effort_of(shorter, folding, "aiao"), effort_of(shorter, folding, "aiao", whole=True)))

    run = simulation.simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=1), notice=notice)
    assert run.begun
    ((form, whole),) = said
    assert form.num_ops == sum(map(num_ops_of, run.programs.values()))
    steps = run.programs.items()
    begun = [program.calling(Calls.of(program.calls)[: run.begun[rank]]) for rank, program in steps]
    two_and_begun = 2 * num_nodes(run.programs.values()) + num_nodes(begun)
    own = [plan.program_of(rank) for rank in run.programs]
    three, num_ops = 3 * num_nodes(own), num_task_ops(own)
    assert form.time_s / whole.time_s == pytest.approx((num_ops + two_and_begun) / (num_ops + three), rel=1e-9)
    assert form.memory_bytes < whole.memory_bytes


def test_a_timeline_of_ranks_with_own_paces_is_announced_anew() -> None:
    """Replicas of which one is slow have periods of their own: a part is simulated, and for a timeline all."""
    many = ("training.global_batch_size=512", "parallel.tensor.degree=1", "parallel.data.degree=2")
    even, _ = efforts_of(*many)
    uneven, _ = efforts_of(*many, "cluster.stragglers=[{device: 1, slowdown: 1.3}]")
    assert [len(even), len(uneven)] == [1, 2]
    assert uneven[1].time_s > 2 * uneven[0].time_s
    assert uneven[1].num_ops > 2 * uneven[0].num_ops


def test_only_long_simulations_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, before the answer; the answer itself is as it was."""
    command = [str(TINY), "--json"]
    short = CliRunner().invoke(group, ["simulate", *command])
    assert short.stderr == ""
    monkeypatch.setattr(effort, "LONG_S", 0.0)
    long = CliRunner().invoke(group, ["simulate", *command])
    assert long.exit_code == 0
    assert long.stderr.startswith("simulating 2 of 4 ranks, ")
    assert long.stderr.count("\n") == 1
    assert long.stdout.splitlines()[:5] == short.stdout.splitlines()[:5]


@pytest.mark.parametrize(("time_s", "memory_bytes", "words"), [
    (41.3, 2e9, "about 41 s and 1.86 GiB of memory"),
    (700.0, 2e9, "about 12 minutes and"),
    (90_000.0, 2e9, "about 25 hours and"),
    (20.0, 1e15, "of this computer"),
])  # fmt: skip
def test_words_have_no_digits_that_a_prediction_lacks(time_s: float, memory_bytes: float, words: str) -> None:
    """Seconds, minutes or hours; and whether the memory is there."""
    assert words in Effort(1536, 1536, 44_584_320, time_s, memory_bytes).words
