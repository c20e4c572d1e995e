"""A plan is measured by what concerns it: its kernels in sizes near its own, and its communication."""

import pytest

from backends.execution.measuring.benchmarks import CollectiveBenchmark, HandoffBenchmark, MessageBenchmark
from backends.execution.measuring.cases import kernel_steps, network_benchmarks
from backends.execution.measuring.concerning import FEWEST, concerning_network, concerning_steps
from backends.execution.measuring.steps import StepKernels, timed_kernels
from scenarios.library.shipped import FOLDER
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of
from sim.plan.words.program import Plan

NETWORK = network_benchmarks("cpu", 4)
TENSOR = ("parallel.tensor.degree=2", "parallel.pipeline.degree=1", "parallel.tensor.sequence_parallel=true")


@pytest.fixture(scope="module")
def steps() -> list[StepKernels]:
    """Return all steps of one precision that are measured on four processes."""
    return kernel_steps("cpu", 4, ("fp64",))


def plan_with(*settings: str) -> Plan:
    """Return the plan of two processes, with other keys."""
    return plan_of(load_step(FOLDER / "tiny-gpt-two-stages.yaml", settings).decided())


def kernels_of(*plans: Plan) -> set[str]:
    """Return the names of all kernels with a measured time."""
    return {op.kernel for plan in plans for program in plan.programs for op in timed_kernels(program)}


@pytest.mark.parametrize("settings", [(), TENSOR, ("parallel.pipeline.schedule=zb_h1",)])
def test_steps_have_the_kernels_of_the_plan_that_any_step_has(
    steps: list[StepKernels], settings: tuple[str, ...]
) -> None:
    """Fewer steps are measured, and none of the plan's kernels is lost by that."""
    plan = plan_with(*settings)
    chosen = concerning_steps(plan, steps)
    assert 0 < len(chosen) < len(steps)
    known = kernels_of(*(step.plan for step in steps))
    assert kernels_of(plan) & known <= kernels_of(*(step.plan for step in chosen))


def test_steps_grow_with_the_plan(steps: list[StepKernels]) -> None:
    """A wider model is measured by wider steps too."""
    small, large = (concerning_steps(plan_with(f"model.hidden_size={size}"), steps) for size in (64, 512))
    assert {step.key for step in small} < {step.key for step in large}


def test_network_has_the_kinds_of_the_plan() -> None:
    """Messages of a pipeline, the all_reduce of its tied embedding, and handoffs; no group that the plan has not."""
    found = concerning_network(plan_with(), NETWORK)
    kinds = {(b.kind, b.group) for b in found if isinstance(b, CollectiveBenchmark)}
    assert {(str(kind), group) for kind, group in kinds} == {("all_reduce", 2)}
    assert any(isinstance(b, MessageBenchmark) for b in found)
    assert sum(isinstance(b, HandoffBenchmark) for b in found) == 2
    assert FEWEST <= len(found) < len(NETWORK)


def test_little_communication_is_measured_as_a_whole() -> None:
    """Where a plan concerns too few benchmarks for a fit, all are measured."""
    alone = plan_with("parallel.pipeline.degree=1", "cluster.devices_per_node=1")
    assert concerning_network(alone, NETWORK) == NETWORK
