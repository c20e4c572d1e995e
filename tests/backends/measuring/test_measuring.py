"""What is measured: valid plans that cover every kernel, and sessions that answer within their budget."""

import random
from dataclasses import dataclass

import pytest

from backends.execution.measuring.benchmarks import HandoffBenchmark
from backends.execution.measuring.cases import kernel_sample, kernel_steps, network_benchmarks, network_sample
from backends.execution.measuring.rounds import QUIET, Run, figures_of, quiet
from backends.execution.measuring.steps import StepBenchmark, StepKernels, kernel_calls
from backends.execution.request import ExecutionRequest
from backends.torch.measuring.session import measure
from costmodels.kernels import KERNELS
from sim.plan.checking.check import check
from sim.plan.words.op import Compute


@pytest.fixture(scope="module")
def cpu_steps() -> list[StepKernels]:
    """Return all steps that are measured on two processes."""
    return kernel_steps("cpu", 2)


@dataclass(frozen=True)
class Known:
    """A result whose ops take as long as they are told to, one after the other with a pause before each."""

    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    step_s: float
    cpu_s: float = 0.0


def test_every_family_and_type_is_measured(cpu_steps: list[StepKernels]) -> None:
    """Steps cover all families that training plans use and that have an efficiency, in three types."""
    samples = [kernel_sample(call, 1.0) for call in kernel_calls(cpu_steps).values()]
    assert {s.family for s in samples} == {k.family for k in KERNELS.values()} - {"delay", "none", "decode"}
    assert {s.dtype for s in samples} == {"float32", "float64", "bfloat16"}
    assert len({s.key for s in samples}) == len(samples)


def test_precisions_can_be_chosen_and_processes_bound_the_group(cpu_steps: list[StepKernels]) -> None:
    """Only the precisions named are measured, and no step needs more ranks than there are processes."""
    chosen = kernel_steps("cpu", 1, ("fp64",))
    assert {kernel_sample(call, 1.0).dtype for call in kernel_calls(chosen).values()} == {"float64"}
    assert {step.plan.mesh.size for step in chosen} == {1}
    assert {step.plan.mesh.size for step in cpu_steps} == {1, 2}


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_plans_are_valid(cpu_steps: list[StepKernels], processes: int) -> None:
    """Every benchmark gives a plan that passes all checks, on no more ranks than there are processes."""
    for benchmark in [*cpu_steps[:4], *cpu_steps[-4:], *network_benchmarks("cpu", processes)]:
        plan = benchmark.request(processes, 3).plan
        check(plan)
        assert plan.mesh.size <= processes
        assert plan.mesh.size > processes // 2


def test_collectives_are_charged_two_handoffs() -> None:
    """A collective's time has the two changes of thread around it added; a handoff alone is no sample."""
    for benchmark in network_benchmarks("cpu", 2):
        sample = network_sample(benchmark, 1e-3, 1e-5)
        if isinstance(benchmark, HandoffBenchmark):
            assert sample is None
        else:
            assert sample is not None
            assert sample.seconds == pytest.approx(1e-3 if sample.kind == "send_recv" else 1.02e-3)


def test_window_gives_the_mean_of_all_repeats_but_the_first() -> None:
    """A window of repeats after a first one: seconds of one op, and the part of a core that the rank used meanwhile."""
    message = next(b for b in network_benchmarks("cpu", 2) if b.key.startswith("message"))
    ends_s = (9.0, 10.0, *(10.0 + 0.5 * place for place in range(1, 7)))
    figures = message.figures(Known((), ends_s, step_s=13.0, cpu_s=6.5), 3)
    assert figures == {message.key: pytest.approx(0.5), message.share_key: pytest.approx(0.5)}


def test_kernels_of_a_step_get_their_mean_and_the_usual_pause(cpu_steps: list[StepKernels]) -> None:
    """A call's figure is the mean over its instances in the step plus the pause that most kernels have before them."""
    step = cpu_steps[0]
    shuffler, clock_s, starts_s, ends_s, pause_s = random.Random(0), 0.0, [], [], 5e-6
    names = [op.kernel if isinstance(op, Compute) else "" for _, _, _, op in step.plan.program_of(0).instances()]
    for name in names:
        starts_s.append(clock_s + pause_s)
        clock_s = starts_s[-1] + shuffler.choice([1e-3, 3e-3]) * (name == "gelu") + 1e-4
        ends_s.append(clock_s)
    figures = step.figures(Known(tuple(starts_s), tuple(ends_s), clock_s), 1)
    spent_s = [end - start for name, start, end in zip(names, starts_s, ends_s, strict=True) if name == "gelu"]
    ours = {key: value for key, value in figures.items() if key.startswith("gelu ")}
    assert list(ours.values()) == [pytest.approx(sum(spent_s) / len(spent_s) + pause_s)]
    assert figures.keys() == step.calls().keys()


def test_quiet_runs_are_those_with_the_most_processor_time() -> None:
    """Of each benchmark the runs near its best one count, and at least half; what one waits for does not count."""
    shares = [0.99, 0.5, 0.99 * QUIET, 0.7]
    steady = [Run("steady", {"x": float(place)}, share) for place, share in enumerate(shares)]
    waiting = [Run("waiting", {"y": float(place)}, 0.3) for place in range(3)]
    assert [run.figures["x"] for run in quiet(steady)] == [0.0, 2.0]
    assert quiet([*waiting, *steady]) == [*waiting, steady[0], steady[2]]
    worse = [Run("worse", {}, share) for share in (1.0, 0.1, 0.2, 0.3, 0.4)]
    assert [run.cpu_share for run in quiet(worse)] == [1.0, 0.3, 0.4]
    assert quiet([]) == []


def test_figures_are_of_quiet_runs() -> None:
    """A disturbed run gives no figure, where the benchmark has better ones."""
    runs = [Run("a", {"a": 1.0, "b": 5.0}, 1.0), Run("a", {"a": 9.0, "b": 7.0}, 0.3), Run("a", {"a": 3.0}, 0.99)]
    assert figures_of([*runs, Run("c", {"c": 4.0}, 0.1)]) == {"a": [1.0, 3.0], "b": [5.0], "c": [4.0]}


def test_session_runs_benchmarks_and_plans_in_every_round(cpu_steps: list[StepKernels]) -> None:
    """Two processes measure communication, kernels and a plan together; each round has each of them once.

    An execution runs between them.
    """
    network, kernels = network_benchmarks("cpu", 2)[:4], cpu_steps[0]
    plan = StepBenchmark("a plan", cpu_steps[1].plan)
    benchmarks = [*network, kernels, plan]
    beside = ExecutionRequest(plan=cpu_steps[1].request(2, 1).plan, iterations=2)
    runs, executions = measure(benchmarks, processes=2, budget_s=2.0, seed=1, beside=beside)
    names = [benchmark.key for benchmark in benchmarks]
    assert [run.benchmark for run in runs[: len(names)]] == names
    for start in range(0, len(runs) - len(names) + 1, len(names)):
        assert sorted(run.benchmark for run in runs[start : start + len(names)]) == sorted(names)
    assert len(runs) >= 2 * len(names)
    assert executions
    for execution in executions:
        assert [result.rank for result in execution.ranks] == [0, 1]
        assert execution.step_times_s == (execution.iteration_time_s,)
        assert all(len(result.ends_s) > 0 for result in execution.ranks)
    figures = {run.benchmark: set(run.figures) for run in runs}
    assert figures == {b.key: {b.key, b.share_key} for b in network} | {
        kernels.key: set(kernels.calls()), "a plan": {"a plan"}
    }  # fmt: skip
    assert all(0 < value < 10 for run in runs for value in run.figures.values())
    assert all(0 < run.cpu_share < 2.5 for run in runs)
