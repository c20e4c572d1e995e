"""Record the routing of experts of an executed step, so that it can be simulated and executed again."""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from backends.execution.result import Execution, RankResult
from scenarios.errors import Origin, ScenarioError
from scenarios.workloads.steps.scenario import StepScenario
from sim.moe.routing import Routing
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute
from sim.plan.words.program import Plan
from sim.training.data.axes import SAMPLE_AXES
from sim.training.spec.job import TrainingJob
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.parallelism.mesh_axes import PIPELINE_AXIS

OPTION: Final = "--record-routing"
_ROUTING_KERNELS: Final = (
    "route", "route_exact", "choose_exact", "route_k_top_1", "route_group_limited", "route_gshard", "route_hash",
    "route_biased", "route_base", "route_near", "route_mixed",
)  # fmt: skip
_CHOSEN: Final = re.compile(r"layer(\d+)\.route\.experts")


def check_recordable(scenario: StepScenario) -> None:
    """Raise ScenarioError where tokens choose no experts, or where several ranks have tokens of one source."""
    job = scenario.job
    rule = remedy = ""
    if not isinstance(job, TrainingJob) or job.model.experts is None:
        rule, remedy = "the scenario has no experts", "leave it out, or write model.experts"
    elif not job.model.experts.gating.tokens_choose:
        rule = f"with gate {job.model.experts.gate} a token has any number of experts, not top_k"
        remedy = "leave it out, or write another gate"
    elif job.parallel.context_degree > 1:
        rule, remedy = "ranks share sequences, and a file has one source per replica", "write context.degree: 1"
    if rule:
        raise ScenarioError(Origin(option=OPTION), "", rule, remedy)


def chosen_experts(plan: Plan) -> frozenset[str]:
    """Return the buffers that hold the experts that tokens chose, one per layer with experts."""
    ops = (op for program in plan.programs for task in program.tasks.values() for op in task.ops)
    written = (op.writes[1] for op in ops if isinstance(op, Compute) and op.kernel in _ROUTING_KERNELS)
    return frozenset(name for name in written if _CHOSEN.fullmatch(name))


def routings_of(execution: Execution, experts: ExpertsSpec, num_layers: int) -> list[Routing]:
    """Return the choices of the last step that was run, by micro-batch.

    ``num_layers``: of the model, with and without experts.
    """
    mesh, first = execution.plan.mesh, experts.first_dense_layers
    shape = (num_layers - first, mesh.degree(*SAMPLE_AXES), experts.num_experts)
    by_microbatch: dict[int, np.ndarray] = {}
    for result in execution.ranks:
        if not _is_first_of_its_tokens(mesh, result.rank):
            continue
        for microbatch, layer, counts in _choices(result, experts.num_experts):
            table = by_microbatch.setdefault(microbatch, np.zeros(shape, dtype=np.int64))
            table[layer - first, mesh.index(result.rank, SAMPLE_AXES)] = counts
    return [Routing(by_microbatch[number]) for number in sorted(by_microbatch)]


def _is_first_of_its_tokens(mesh: Mesh, rank: int) -> bool:
    """Return whether a rank is the first of those that route the same tokens."""
    places = mesh.coordinates(rank)
    return not any(place for axis, place in places.items() if axis not in (*SAMPLE_AXES, PIPELINE_AXIS))


def _choices(result: RankResult, num_experts: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield micro-batch, layer and the choices by expert of a rank."""
    for (name, microbatch), chosen in result.values.items():
        if found := _CHOSEN.fullmatch(name):
            yield microbatch or 0, int(found[1]), np.bincount(chosen.astype(np.int64).ravel(), minlength=num_experts)
