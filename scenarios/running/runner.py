"""Simulate a scenario, and write what comes out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal

from backends.simulated import SimulatedBackend
from costmodels.errors import AlgorithmError
from costmodels.hardware import DeviceSpec, load_node
from scenarios.choices.decide import decided
from scenarios.choices.operators import summarise_choice
from scenarios.errors import Origin, ScenarioError
from scenarios.reading.loader import Scenario, located
from scenarios.report.words import Advice
from scenarios.results.files import write_all
from scenarios.running.intervals import errors_of
from scenarios.running.pricing import cluster_pricing
from scenarios.summaries.step import summarise
from scenarios.summaries.study import summarise_study
from sim.engine.findings.link_use import LinkUse, link_use
from sim.engine.findings.timeline import timeline
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.run import SimulatedRun
from sim.plan.words.program import Plan
from sim.reliability.study import study_reliability
from sim.training.local.builder import build_local_training
from sim.training.local.textbook import build_local_textbook
from sim.training.spec.job import DenseTraining, TextbookTraining
from sim.training.steps.builder import build_dense_training
from sim.training.steps.delayed import build_delayed_textbook, build_delayed_training
from sim.training.steps.textbook import build_textbook
from traces.timeline import Timeline

MAX_UNFOLDED_OPS: Final = 15_000_000


@dataclass
class Result:
    """A simulated scenario; the timeline is made on first use. ``links``: how full they are, None without a cluster."""

    scenario: Scenario
    run: SimulatedRun
    summary: dict[str, Any]
    detail: Literal["op", "task"] | None
    links: LinkUse | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """Return the timeline in the detail asked for."""
        return timeline(self.run, self.detail)


def simulate(
    scenario: Scenario, *, detail: Literal["op", "task"] | None = None, fold: bool = True, plan: Plan | None = None
) -> Result:
    """Return the simulation of one step of a scenario, and of the long run of such steps if it asks for one.

    ``plan``: in the place of the scenario's own.
    Raises ScenarioError for a long run, or for ranks without folding, that cannot be simulated in bounded time.
    """
    scenario = with_choices(scenario)
    plan = plan or plan_of(scenario)
    if not fold:
        refuse_many_ops(plan)
    pricing = pricing_of(scenario)
    run = _run(scenario, plan, pricing, fold=fold)
    links = link_use(run, pricing) if isinstance(pricing, ClusterPricing) else None
    errors = errors_of(pricing) if isinstance(pricing, ClusterPricing) else None
    summary = summarise(scenario, run, devices_of(scenario), links, errors)
    if isinstance(scenario.job, DenseTraining) and scenario.job.parallel.osdp is not None:
        summary["osdp"] = summarise_choice(scenario.job, plan)
    if scenario.reliability is not None:
        with located(scenario.document):
            study = study_reliability(scenario.reliability, run.iteration_time_s, scenario.seed)
        summary["reliability"] = summarise_study(scenario.reliability, study)
    return Result(scenario, run, summary, detail, links)


def run_step(scenario: Scenario) -> SimulatedRun:
    """Return one step of a scenario as the engine runs it, without what a result says of it beside.

    Raises ScenarioError where no choice that the scenario leaves fits, or an algorithm cannot serve a group.
    """
    scenario = with_choices(scenario)
    return _run(scenario, plan_of(scenario), pricing_of(scenario), fold=True)


def _run(scenario: Scenario, plan: Plan, pricing: Pricing, *, fold: bool) -> SimulatedRun:
    with _locating_algorithms(scenario):
        return SimulatedBackend(pricing, fold).simulate(plan)


@contextmanager
def _locating_algorithms(scenario: Scenario) -> Iterator[None]:
    """Give an algorithm that cannot serve a group of the plan the origin of the key that names it."""
    try:
        yield
    except AlgorithmError as error:
        if error.kind not in scenario.algorithms:
            raise
        key = f"network.algorithm.{error.kind}"
        remedy = "write auto, or an algorithm that serves all groups that do so"
        raise ScenarioError(scenario.document.origin(key.split(".")), key, str(error), remedy) from error


def refuse_many_ops(plan: Plan) -> None:
    """Raise ScenarioError for a plan with more ops, over all ranks, than a computer simulates one by one."""
    num_ops = sum(
        len(plan.ranks_of(program)) * sum(len(program.tasks[call.task].ops) for call in program.calls)
        for program in plan.programs
    )
    if num_ops > MAX_UNFOLDED_OPS:
        rule = f"{plan.mesh.size:,} ranks have {num_ops:,} ops in all, more than {MAX_UNFOLDED_OPS:,}"
        raise ScenarioError(Origin(option="--no-fold"), "", rule, "leave it out, or use fewer ranks")


def with_choices(scenario: Scenario) -> Scenario:
    """Return the scenario with what it leaves to its cluster chosen (see ``scenarios.choices``).

    Raises ScenarioError where no choice fits.
    """
    job, device = scenario.job, device_of(scenario)
    if device is None or not isinstance(job, DenseTraining):
        return scenario
    with located(scenario.document), _locating_algorithms(scenario):
        job = decided(job, partial(pricing_of, scenario), device.memory_bytes)
    return replace(scenario, job=job)


def plan_of(scenario: Scenario) -> Plan:
    """Return the plan of one step of a scenario. Raises ScenarioError for one of more bytes than can be counted."""
    scenario = with_choices(scenario)
    with located(scenario.document):
        return _plan(scenario)


def _plan(scenario: Scenario) -> Plan:
    job, name = scenario.job, scenario.name
    if isinstance(job, TextbookTraining):
        if job.method == "local":
            return build_local_textbook(job, name)
        return (build_delayed_textbook if job.pipeline.gradient_delay else build_textbook)(job, name)
    if job.training.method == "local":
        return build_local_training(job, name)
    return (build_delayed_training if job.parallel.pipeline.gradient_delay else build_dense_training)(job, name)


def pricing_of(scenario: Scenario) -> Pricing:
    """Return the prices of a scenario's cluster, or of its textbook."""
    if scenario.cluster is None:
        assert isinstance(scenario.job, TextbookTraining)
        return TextbookPricing(scenario.job.model.hop_s)
    return cluster_pricing(scenario.cluster, scenario.algorithms, scenario.seed, scenario.software)


def devices_of(scenario: Scenario) -> list[tuple[DeviceSpec, int]]:
    """Return the devices of the ranks, in rank order, each with how many ranks have it; none for textbook jobs."""
    if scenario.cluster is None:
        return []
    cluster = scenario.cluster
    if not cluster.node_types:
        return [(cluster.node_spec.device, cluster.world_size)]
    return [(load_node(name).device, count * cluster.devices_per_node) for name, count in cluster.node_types]


def device_of(scenario: Scenario) -> DeviceSpec | None:
    """Return the device that a scenario runs on, of several types the one with the least memory; None: textbook."""
    if scenario.cluster is None:
        return None
    return min((device for device, _ in devices_of(scenario)), key=lambda device: device.memory_bytes)


def write_outputs(result: Result, out: Path, advice: Advice | None = None) -> None:
    """Write summary.json, timeline.json.gz, timeline.parquet and report.html, which names ``advice``, into a folder."""
    write_all(result.summary, result.timeline, out, links=result.links, advice=advice)
