"""Simulate a step."""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from msgspec import structs

from backends.simulated import SimulatedBackend, repriced
from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.located import located
from scenarios.report import blocks as report
from scenarios.report.pages import run_page
from scenarios.summaries.steps.advice import AdviceSummary
from scenarios.summaries.steps.step import StepSummary
from scenarios.summaries.steps.step_row import StepRow
from scenarios.workloads.effort import Announce
from scenarios.workloads.steps import last_plan
from scenarios.workloads.steps.effort import effort_of
from scenarios.workloads.steps.findings.tensor_axes import tensor_axes_of
from scenarios.workloads.steps.intervals import errors_of
from scenarios.workloads.steps.pricing import locating_algorithms
from scenarios.workloads.steps.row import row_of
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.steps.summarise import summarise
from scenarios.workloads.workload import Compared, Detail, Outcome
from sim.abstract import AbstractStruct
from sim.engine.findings import timeline as run_timeline
from sim.engine.findings.link_use import LinkUse, link_use
from sim.engine.folding.folding import Folding
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.collector import collector_paused
from sim.engine.running.run import SimulatedRun
from sim.engine.running.shorter import Shorter
from sim.plan.words.calls import num_ops_of
from sim.plan.words.program import Plan
from traces import timeline as timelines

MAX_UNFOLDED_OPS: Final = 15_000_000


class SimulatedStep(AbstractStruct, Outcome, frozen=True, dict=True):
    """A simulated step; the timeline is made on first use. ``links``: how full they are, None without a cluster."""

    scenario: StepScenario
    run: SimulatedRun
    pricing: Pricing
    summary: StepSummary
    detail: Detail | None = None
    links: LinkUse | None = None

    @cached_property
    def timeline(self) -> "timelines.Timeline":
        """Return the timeline: every op or task in the detail asked for; where none was, what repeats once."""
        if self.detail is None:
            return run_timeline.folded_timeline(self.run)
        return run_timeline.timeline(self.run, self.detail)

    def with_advice(self, advice: AdviceSummary) -> "SimulatedStep":
        """Return the step with advice in its summary."""
        return structs.replace(self, summary=structs.replace(self.summary, advice=advice))

    def blocks(self, *, drawn: bool = True) -> "Sequence[report.Block]":
        """Return the report of the step."""
        return self.scenario.blocks(run_page.FoundStep(self.summary, self.timeline if drawn else None, self.links))

    def closing(self) -> "Sequence[report.Block]":
        """Return the advice, and the size of the simulation."""
        return (run_page.closing_block(self.summary),)

    def row(self) -> StepRow:
        """Return the results that a sweep lays beside those of other steps."""
        placement, reliability = self.summary.placement, self.summary.reliability
        return structs.replace(
            row_of(self.scenario, self.run, self.pricing),
            mean_iteration_time_s=None if placement is None else placement.mean_time_s,
            goodput=None if reliability is None else reliability.goodput.mean,
        )


@collector_paused()
def simulate(
    scenario: StepScenario,
    *,
    detail: Detail | None = None,
    fold: bool = True,
    plan: Plan | None = None,
    announce: Announce | None = None,
) -> SimulatedStep:
    """Return the simulation of a step. ``plan``: in the place of the scenario's own.

    ``announce``: called with what the simulation will take.

    Raises ScenarioError for ranks without folding that cannot be simulated in bounded time.
    """
    pricing = scenario.pricing()
    scenario = scenario.decided(pricing)
    plan = plan or simulated_plan_of(scenario)
    if not fold:
        refuse_many_ops(plan)
    run = run_plan(scenario, plan, pricing, fold=fold, announce=announce)
    links = link_use(run, pricing) if isinstance(pricing, ClusterPricing) else None
    errors = errors_of(pricing) if isinstance(pricing, ClusterPricing) else None
    found = scenario.with_findings(summarise(scenario, run, links, errors), plan)
    found = structs.replace(found, tensor_axes=tensor_axes_of(run, pricing, found.roles))
    return SimulatedStep(scenario, run, pricing, found, detail, links)


@collector_paused()
def compared(last: "last_plan.LastPlan", scenario: StepScenario, *, drawn: bool) -> Compared:
    """Return the row of one of several steps, to the last bit that of ``simulate``; ``last``: of the plan before it.

    Raises as ``simulate``, but for what a scenario says beside its step (``StepScenario.says_more``).
    """
    scenario = scenario.decided()
    pricing = last.pricing(scenario)
    with locating_algorithms(scenario.document, scenario.algorithms):
        run = repriced(last.simulation(scenario), pricing)
    return Compared(row_of(scenario, run, pricing), run_timeline.timeline(run, "task") if drawn else None)


def step_found(found: Outcome) -> SimulatedStep:
    """Return an outcome as a simulated step. Raises TypeError for what another kind of work found."""
    if not isinstance(found, SimulatedStep):
        message = f"a simulated step is needed, not {type(found).__name__}"
        raise TypeError(message)
    return found


@collector_paused()
def run_step(scenario: StepScenario) -> SimulatedRun:
    """Return one step of a scenario as the engine runs it, without a summary.

    Raises ScenarioError if no choice for an open decision fits, or if an algorithm cannot serve a group.
    """
    scenario = scenario.decided()
    return run_plan(scenario, simulated_plan_of(scenario))


@collector_paused()
def run_plan(
    scenario: StepScenario,
    plan: Plan,
    pricing: Pricing | None = None,
    *,
    fold: bool = True,
    announce: Announce | None = None,
) -> SimulatedRun:
    """Return the run of a decided scenario's plan. ``pricing``: None for the scenario's own.

    Raises ScenarioError if an algorithm cannot serve a group.
    """

    def notice(shorter: Shorter, folding: Folding, *, whole: bool) -> None:
        if announce is not None:
            announce(effort_of(shorter, folding, scenario.pipeline.schedule, whole=whole))

    pricing = pricing or scenario.pricing()
    with locating_algorithms(scenario.document, scenario.algorithms):
        return SimulatedBackend(pricing, fold, notice=None if announce is None else notice).simulate(plan)


def refuse_many_ops(plan: Plan) -> None:
    """Raise ScenarioError for a plan with more ops, over all ranks, than a computer simulates one by one."""
    num_ops = sum(plan.num_ranks_of(program) * num_ops_of(program) for program in plan.programs)
    if num_ops > MAX_UNFOLDED_OPS:
        rule = f"{plan.mesh.size:,} ranks have {num_ops:,} ops in all, more than {MAX_UNFOLDED_OPS:,}"
        raise ScenarioError(Origin(option="--no-fold"), "", rule, "leave it out, or use fewer ranks")


@collector_paused()
def plan_of(scenario: StepScenario) -> Plan:
    """Return the plan of one step of a scenario. Raises ScenarioError for one of more bytes than can be counted."""
    scenario = scenario.decided()
    with located(scenario.document):
        return scenario.build()


@collector_paused()
def simulated_plan_of(scenario: StepScenario) -> Plan:
    """Return the same for a simulation alone: programs that are equal but for names may share tasks."""
    scenario = scenario.decided()
    with located(scenario.document):
        return scenario.build_simulated()
