"""An inference run with torch, beside the simulation of the same plan."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from backends.execution.request import ExecutionRequest
from backends.execution.result import Execution
from backends.registry import load_torch_backend
from backends.simulated import SimulatedBackend
from backends.torch.launching.environment import job_member
from costmodels.units import format_bytes, format_time
from scenarios.errors import ScenarioError
from scenarios.report.blocks import Block, Fact
from scenarios.report.pages.executed import executed_blocks
from scenarios.results.registry import load_writer
from scenarios.summaries.measured.execution import CheckedNumbers
from scenarios.this_computer import physical_memory_bytes
from scenarios.workloads.executing import Executed, ExecutionOptions, refuse_options, silence_s
from scenarios.workloads.inference.scenario import InferenceScenario
from scenarios.workloads.inference.summary import pass_ends_s
from scenarios.workloads.steps.executing.execution import checked_numbers, refuse_too_large
from sim.engine.running.run import SimulatedRun
from sim.inference.builder import CHOSEN
from sim.plan.facts.rank_work import RankWork, program_work
from sim.plan.words.program import Phase, Plan
from sim.training.spec.parallelism.mesh_axes import PIPELINE_AXIS
from traces.timeline import Timeline

_MOST_SHOWN = 4
"""Sequences whose tokens are part of the summary."""


class ExecutedInferenceSummary(Struct, frozen=True, kw_only=True):
    """What a run took and chose, of the step with the median time; ``simulated_``: the same of the simulation.

    ``prefill_time_s``: until every sequence has its first token. ``time_per_output_token_s``: the mean of the later
    ones, None where there are none. Both are None where ops were not timed. ``tokens``: that the first sequences got,
    each a list. ``same_work``, ``same_peak_memory``: on every rank, the ops, the bytes of messages and collectives, and
    the peak are those of the simulation.
    """

    schema: str = "meshtwin.inference_execution/1"
    scenario: str
    seed: int
    device: str
    num_ranks: int
    total_time_s: float
    simulated_total_time_s: float
    prefill_time_s: float | None
    simulated_prefill_time_s: float
    time_per_output_token_s: float | None
    simulated_time_per_output_token_s: float | None
    peak_memory_bytes: int
    tokens: Sequence[Sequence[int]]
    same_work: bool
    same_peak_memory: bool
    check: CheckedNumbers | None
    passed: bool


@dataclass(frozen=True, slots=True)
class ExecutedInference(Executed):
    """A run of prompts and decoding. ``timeline``: no rows where ops were not timed."""

    summary: ExecutedInferenceSummary
    timeline: Timeline

    def blocks(self) -> Sequence[Block]:
        """Return the report."""
        found = self.summary
        facts = [
            _times("first token", found.prefill_time_s, found.simulated_prefill_time_s),
            _times("per output token", found.time_per_output_token_s, found.simulated_time_per_output_token_s),
            _times("all tokens", found.total_time_s, found.simulated_total_time_s),
            Fact("peak memory", format_bytes(found.peak_memory_bytes) + _agrees(same=found.same_peak_memory)),
            Fact("ops and messages", "counted" + _agrees(same=found.same_work)),
        ]
        if found.tokens:
            facts.append(Fact("first answer", " ".join(map(str, found.tokens[0]))))
        if found.check is not None:
            error = found.check.max_relative_error
            worst = "no number" if error is None else f"{error:.1e}"
            facts.append(Fact("check", f"logits off by at most {worst}, {found.check.tolerance:g} are allowed"))
        return executed_blocks(found.scenario, f"{found.num_ranks:,} ranks, run with torch", facts)

    def write(self, out: Path) -> None:
        """Write summary.json, report.html and, where ops were timed, the timeline into a folder."""
        timeline = self.timeline if len(self.timeline) else None
        load_writer()(self.as_json(), timeline, self.blocks(), out)


def execute(scenario: InferenceScenario, options: ExecutionOptions) -> ExecutedInference | None:
    """Return what a run found; None in a process that is not rank 0 of a running job.

    Raises ScenarioError if the scenario cannot be executed here, ExecutionError if a rank fails.
    """
    refuse_options(options, "inference", but=("device", "check", "timing", "steps", "timeout"))
    if options.check:
        scenario = _checkable(scenario, options)
    plan = scenario.build()
    if job_member(os.environ, [plan]) is None and options.device == "cpu":
        refuse_too_large(plan, physical_memory_bytes())
    backend = load_torch_backend().backend(options.device, silence_s(options))
    chosen = frozenset(f"{CHOSEN}@{tokens.index}" for tokens in scenario.job.passes)
    request = ExecutionRequest(
        plan=plan, check_against=scenario.job if options.check else None, keep=chosen, iterations=options.steps,
        timing=options.timing,
    )  # fmt: skip
    execution = backend.execute(request)
    if execution is None:
        return None
    run = SimulatedBackend(scenario.pricing(), fold=False).simulate(plan)
    timeline = backend.timeline(execution)
    return ExecutedInference(_summary(scenario, options, execution, run), timeline)


def _checkable(scenario: InferenceScenario, options: ExecutionOptions) -> InferenceScenario:
    """Return the scenario with the numbers of a check. Raises ScenarioError where experts may drop choices."""
    job = scenario.job
    experts = job.model.experts
    if experts is not None and any(experts.capacity(p.num_tokens) < p.num_tokens for p in job.passes):
        rule = "with a check experts must have a slot for every token: the dense model drops no choice"
        factor = f"write {experts.num_experts / experts.top_k:g}"
        origin = scenario.document.origin(("model", "experts", "capacity_factor"))
        raise ScenarioError(origin, "model.experts.capacity_factor", rule, factor)
    if experts is not None and experts.routing != "learned":
        origin = scenario.document.origin(("model", "experts", "routing"))
        rule = "a check needs the experts that tokens choose"
        raise ScenarioError(origin, "model.experts.routing", rule, "leave it out")
    return scenario.in_double_precision() if options.device == "cpu" else scenario


def _summary(
    scenario: InferenceScenario, options: ExecutionOptions, execution: Execution, run: SimulatedRun
) -> ExecutedInferenceSummary:
    job, plan = scenario.job, execution.plan
    ends_s, expected_s = _pass_ends_s(execution), pass_ends_s(run.whole)
    same_work = all(result.work == _work_of(plan, result.rank) for result in execution.ranks)
    same_peak = all(result.memory.peak_bytes == run.memory_of(result.rank).peak_bytes for result in execution.ranks)
    check = None if execution.check is None else checked_numbers(execution.check)
    per_token = (job.output_tokens - 1) if job.num_steps else 0
    return ExecutedInferenceSummary(
        scenario=scenario.name,
        seed=scenario.seed,
        device=options.device,
        num_ranks=plan.mesh.size,
        total_time_s=execution.iteration_time_s,
        simulated_total_time_s=run.makespan_s,
        prefill_time_s=ends_s[0] if ends_s else None,
        simulated_prefill_time_s=expected_s[0],
        time_per_output_token_s=(ends_s[-1] - ends_s[0]) / per_token if ends_s and per_token else None,
        simulated_time_per_output_token_s=(expected_s[-1] - expected_s[0]) / per_token if per_token else None,
        peak_memory_bytes=max(result.memory.peak_bytes for result in execution.ranks),
        tokens=_tokens(scenario, execution),
        same_work=same_work,
        same_peak_memory=same_peak,
        check=check,
        passed=same_work and same_peak and (check is None or check.check_passed),
    )


def _pass_ends_s(execution: Execution) -> list[float]:
    """Return when each pass has gone through all stages; nothing where ops were not timed."""
    ends_s: dict[int, float] = {}
    for result in execution.ranks:
        instances = execution.plan.program_of(result.rank).instances()
        for (_, _, task, _), end_s in zip(instances, result.ends_s, strict=False):
            if task.phase in {Phase.PREFILL, Phase.DECODE}:
                index = int(task.name.rpartition("@")[2])
                ends_s[index] = max(ends_s.get(index, 0.0), end_s)
    return [ends_s[index] for index in range(len(ends_s))]


def _work_of(plan: Plan, rank: int) -> RankWork:
    """Return the work that a rank has by the plan."""
    program = plan.program_of(rank)
    return program_work(plan, program, Counter(call.task for call in program.calls))


def _tokens(scenario: InferenceScenario, execution: Execution) -> list[list[int]]:
    """Return the tokens that the first sequences of the first replica got, from the first rank with a head."""
    job, mesh, last = scenario.job, execution.plan.mesh, scenario.job.parallel.pipeline.degree - 1
    head = next(result for result in execution.ranks if mesh.coordinate(result.rank, PIPELINE_AXIS) == last)
    found = []
    for index in range(min(len(job.prompt_tokens), _MOST_SHOWN)):
        answer: list[int] = []
        for tokens in job.passes:
            count = job.tokens_per_step if tokens.index else 1
            ids = head.values[f"{CHOSEN}@{tokens.index}", 0].ravel()
            answer += [int(token) for token in ids[index * count : (index + 1) * count]]
        found.append(answer)
    return found


def _times(name: str, executed_s: float | None, simulated_s: float | None) -> Fact:
    """Return a time beside its simulation."""
    executed, simulated = ("none" if s is None else format_time(s) for s in (executed_s, simulated_s))
    return Fact(name, f"{executed}, simulated {simulated}")


def _agrees(*, same: bool) -> str:
    return ", as simulated" if same else ", not as simulated"
