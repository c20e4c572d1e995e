"""What every scenario must obey: how its result may change when one thing about it changes.

A law takes a case and returns its violations, none where it holds or says nothing about the case. ``LAWS`` has all of
them by name. Exceptions that are real stand in ``anomalies.py``, each with its reason and its bound.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from costmodels.software import Software
from scenarios.errors import ScenarioError
from scenarios.report.words import time_parts
from scenarios.workloads.steps.running import SimulatedStep, plan_of, simulate
from scenarios.workloads.steps.scenario import StepScenario
from sim.cluster.topology.links import LinkKind, LinkTable
from sim.cluster.topology.topology import Topology
from sim.engine.folding.folding import no_fold
from sim.engine.prices.activity import Activity, Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.memory import memory_use
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import Simulation
from sim.engine.running.simulate import simulate as simulate_plan
from sim.plan.checking.check import check
from sim.plan.facts.description import describe
from sim.plan.words.buffer import Kind, Scope, Tier
from sim.plan.words.op import Op
from sim.plan.words.program import Plan, Program
from sim.training.errors import SpecError
from sim.training.spec.job import DenseTraining, ParallelSpec, split_layers
from sim.training.spec.parallelism.sharding import ShardingSpec
from tests.laws.anomalies import (
    ANOMALIES,
    casts_read_again_bytes,
    computed_for_nothing_bytes,
    shard_bytes,
    twice_made_bytes,
    update_seconds,
)
from tests.laws.random_scenarios import Data, load, random_scenario, with_keys
from tests.sim.jobs import as_array, op_times

_ROUNDING: Final = 1e-9


@dataclass
class Case:
    """A random scenario, or what a law changed it to, and what laws need of it, each made once."""

    seed: int
    data: Data
    scenario: StepScenario
    folder: Path
    is_drawn: bool = False
    of_jobs: dict[DenseTraining, "Case"] = field(default_factory=dict)
    """The cases of other jobs that laws asked for: several laws ask for the same ones."""

    @classmethod
    def of(cls, seed: int, folder: Path) -> "Case":
        """Return the case of a seed, with all that its scenario leaves open decided."""
        return cls(seed, *random_scenario(seed, folder), folder, is_drawn=True)

    @property
    def job(self) -> DenseTraining:
        """Return the decided job."""
        assert isinstance(self.scenario.job, DenseTraining)
        return self.scenario.job

    @property
    def random(self) -> Random:
        """Return a generator for what a law chooses itself."""
        return Random(self.seed)

    @cached_property
    def plan(self) -> Plan:
        """Return the plan of the scenario, which is a proper one."""
        plan = plan_of(self.scenario)
        check(plan)
        return plan

    @cached_property
    def pricing(self) -> ClusterPricing:
        """Return the prices of its cluster."""
        pricing = self.scenario.pricing()
        assert isinstance(pricing, ClusterPricing)
        return pricing

    @cached_property
    def result(self) -> SimulatedStep:
        """Return the whole result."""
        return simulate(self.scenario, plan=self.plan)

    @cached_property
    def run(self) -> SimulatedRun:
        """Return the step as the engine runs it: of the random scenario itself, of which all is asked, its result's."""
        return self.result.run if self.is_drawn else simulate_plan(self.plan, self.pricing)

    @cached_property
    def time(self) -> "Timed":
        """Return the step's time."""
        return Timed.of(self.run)

    @cached_property
    def _again(self) -> Simulation:
        return Simulation(self.plan)

    @cached_property
    def _again_alone(self) -> Simulation:
        return Simulation(self.plan)

    def under(self, pricing: ClusterPricing) -> "Timed":
        """Return the step's time under other prices."""
        return Timed.of(self._again.run(pricing))

    @cached_property
    def own_alone_s(self) -> float:
        """Return how long the step would take if every op had its resources to itself."""
        return self.alone_s(self.pricing)

    def alone_s(self, pricing: ClusterPricing) -> float:
        """Return how long it would under other prices."""
        return self._again_alone.run(Alone(pricing)).iteration_time_s

    def with_job(self, **changes: Any) -> "Case | None":
        """Return the case with another job; None where the rules refuse it. Keys: of training, parallel or pipeline."""
        job = self.job
        parts = {"training": job.training, "parallel": job.parallel, "pipeline": job.parallel.pipeline}
        try:
            new = {name: replace(part, **changes.get(name, {})) for name, part in parts.items()}
            parallel = replace(new["parallel"], pipeline=new["pipeline"])
            changed = replace(job, training=new["training"], parallel=parallel)
        except SpecError:
            return None
        if changed == job:
            return self
        if changed not in self.of_jobs:
            self.of_jobs[changed] = Case(self.seed, self.data, replace(self.scenario, job=changed), self.folder)
        return self.of_jobs[changed]

    def with_keys(self, **keys: Any) -> "Case | None":
        """Return the case with other values at dotted keys of the file; None where the loader refuses it."""
        data = with_keys(self.data, **keys)
        try:
            return Case(self.seed, data, load(data, self.folder).decided(), self.folder)
        except ScenarioError:
            return None


@dataclass(frozen=True, slots=True)
class Timed:
    """How long a step takes. ``shares``: whether any of its ops share a resource with others."""

    seconds: float
    shares: bool

    @classmethod
    def of(cls, run: SimulatedRun) -> "Timed":
        """Return the time of a run."""
        graph = run.graph
        shares = any(activity.demands for activity in graph.shared) or any(joint.shared for joint in graph.joints)
        return cls(run.iteration_time_s, shares)


@dataclass(frozen=True)
class Alone:
    """Another pricing's times with nothing shared."""

    pricing: Pricing

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return an op as long as it lasts alone."""
        return Activity(self.pricing.price(plan, program, op, rank).duration_s)

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)


Law = Callable[[Case], Iterator[str]]


def _no_more(small: float, large: float, words: str) -> Iterator[str]:
    """Yield a violation where what should be no more is more, beyond rounding."""
    if small > large + _ROUNDING * abs(large):
        yield f"{words}: {small:.9g} against {large:.9g} ({small / large - 1:+.4%})"


def _no_longer(small: Timed, large: Timed, words: str, spare_s: float = 0.0) -> Iterator[str]:
    """Yield a violation where a step that should take no longer does, beyond what sharing explains."""
    bound = ANOMALIES["ops that share a resource"].bound if small.shares or large.shares else 0.0
    yield from _no_more(small.seconds, large.seconds * (1 + bound) + spare_s, words)


# --- the same plan under other prices ------------------------------------------------------------------------------

_INSIDE: Final = (LinkKind.NVLINK, LinkKind.NVSWITCH)


def faster_links(case: Case) -> Iterator[str]:
    """More bandwidth, or less latency, of all links never makes a step longer."""
    factor, topology = case.random.choice([1.1, 1.5, 2.0, 4.0]), case.pricing.cluster.topology
    if case.seed % 2:
        yield from _better(case, rewired(topology, bandwidth=factor), f"bandwidth {factor} times as high")
    else:
        yield from _better(case, rewired(topology, latency=1 / factor), f"latency {factor} times lower")


def faster_nvlink(case: Case) -> Iterator[str]:
    """More bandwidth of the links inside nodes never makes a step longer."""
    factor = case.random.choice([1.1, 1.5, 2.0, 4.0])
    better = rewired(case.pricing.cluster.topology, bandwidth=factor, kinds=_INSIDE)
    yield from _better(case, better, f"NVLink {factor} times as fast")


def slower_devices(case: Case) -> Iterator[str]:
    """A straggler among devices or links, or slower devices throughout, never makes a step shorter."""
    topology, factor = case.pricing.cluster.topology, case.random.choice([1.05, 1.3, 2.0, 5.0])
    if case.random.random() < 0.5:
        yield from _worse(case, topology.slowed(dict.fromkeys(range(topology.num_devices), factor)), "all devices")
    else:
        device = case.random.randrange(topology.num_devices)
        yield from _worse(case, topology.slowed({device: factor}), f"device {device}")
    if topology.num_links:
        link = topology.name_of(case.random.randrange(topology.num_links))
        yield from _worse(case, topology.slowed(links={link: factor}), f"{link}")


def framework_costs(case: Case) -> Iterator[str]:
    """Nothing that the framework adds makes a step shorter."""
    plain = case.pricing.under(Software())
    yield from _no_longer(case.under(plain), case.time, "without the framework's costs")
    if case.time.shares:
        yield from _no_more(case.alone_s(plain), case.own_alone_s, "the same with nothing shared")


def _better(case: Case, topology: Topology, words: str) -> Iterator[str]:
    other = on_topology(case.pricing, topology)
    yield from _no_longer(case.under(other), case.time, words)
    if case.time.shares:
        yield from _no_later(case, case.alone_s(other), case.own_alone_s, f"{words}, with nothing shared")


def _worse(case: Case, topology: Topology, words: str) -> Iterator[str]:
    other = on_topology(case.pricing, topology)
    yield from _no_longer(case.time, case.under(other), f"{words} slower")
    if case.time.shares:
        words = f"{words} slower, with nothing shared"
        yield from _no_later(case, case.own_alone_s, case.alone_s(other), words)


def _no_later(case: Case, small_s: float, large_s: float, words: str) -> Iterator[str]:
    """Yield a violation where a step of ops alone takes longer, beyond what waiting for launches explains."""
    launches = case.pricing.software.launches
    yield from _no_more(small_s, large_s * (1 + (ANOMALIES["waits for launches"].bound if launches else 0.0)), words)


def on_topology(pricing: ClusterPricing, topology: Topology) -> ClusterPricing:
    """Return the same prices on other links and devices."""
    cluster = replace(pricing.cluster, wiring=topology)
    return ClusterPricing(
        cluster, pricing.profile, pricing.profiles, pricing.algorithms, pricing.variation, pricing.software
    )


def rewired(
    topology: Topology, *, bandwidth: float = 1.0, latency: float = 1.0, kinds: tuple[LinkKind, ...] = tuple(LinkKind)
) -> Topology:
    """Return a topology whose links of some kinds have so many times the bandwidth and latency.

    Its islands' links, by which a library chooses its algorithms, change as well.
    """

    def better(links: LinkTable) -> LinkTable:
        chosen = np.isin(links.kind, kinds)
        return replace(
            links,
            bandwidth_bytes_per_s=links.bandwidth_bytes_per_s * np.where(chosen, bandwidth, 1.0),
            latency_s=links.latency_s * np.where(chosen, latency, 1.0),
        )

    has_adapters = LinkKind.NIC in kinds
    islands = tuple(
        replace(
            island,
            links=better(island.links),
            nic=replace(island.nic, bandwidth_bytes_per_s=island.nic.bandwidth_bytes_per_s * bandwidth)
            if island.nic and has_adapters
            else island.nic,
        )
        for island in topology.islands
    )
    return replace(topology, links=better(topology.links), islands=islands)


# --- other plans ---------------------------------------------------------------------------------------------------


def recomputation(case: Case) -> Iterator[str]:
    """Full recomputation takes as long as selective at least, selective as none; memory the other way around."""
    cases = {
        kind: case.with_job(training=_recomputing(kind), pipeline={"recompute_per_stage": ()})
        for kind in ("none", "selective", "full")
    }
    for few, many in pairwise(cases):
        less, more, words = cases[few], cases[many], f"{few} against {many}"
        if less is None or more is None:
            continue
        yield from _no_longer(less.time, more.time, f"time, {words}")
        yield from _takes_no_more(more, less, words)


def recomputed_layers(case: Case) -> Iterator[str]:
    """The more of a stage's layers are recomputed, the less memory and the more FLOP: from none of them to all."""
    most = max(split_layers(case.job.model.num_layers, case.job.parallel.pipeline))
    keys = [_recomputing("none"), *(_recomputing("full", num) for num in range(1, most + 1)), _recomputing("full")]
    cases = [case.with_job(training=training, pipeline={"recompute_per_stage": ()}) for training in keys]
    for num, (less, more) in enumerate(pairwise(cases)):
        if less is not None and more is not None:
            words = f"{num} layers against {num + 1} of {most}"
            yield from _takes_no_more(more, less, words)
            for few, many in zip(less.plan.programs, more.plan.programs, strict=True):
                yield from _no_more(flop_of(few), flop_of(many), f"FLOP, {words}")


def _recomputing(kind: str, num_layers: int | None = None) -> dict[str, Any]:
    return {"recompute": kind, "recompute_num_layers": num_layers, "recompute_method": None}


def _takes_no_more(more: Case, less: Case, words: str) -> Iterator[str]:
    """Yield a violation where more recomputation takes more memory, beyond what anomalies explain."""
    for kept, again in zip(less.plan.programs, more.plan.programs, strict=True):
        spare = computed_for_nothing_bytes(again) + casts_read_again_bytes(again) + twice_made_bytes(again)
        yield from _no_more(peak_bytes(again), peak_bytes(kept) + spare, f"memory, {words}")


def flop_of(program: Program) -> float:
    """Return the FLOP of a program's step."""
    tasks = {name: sum(describe(program, task, op).flop for op in task.ops) for name, task in program.tasks.items()}
    return sum(tasks[call.task] for call in program.calls)


def zero_stages(case: Case) -> Iterator[str]:
    """Each ZeRO stage holds no more than the one before it, and the shards that it adds."""
    parallel = case.job.parallel
    if parallel.osdp is not None or parallel.sharding.offload is not None:
        return
    found = {stage: case.with_job(parallel=_of_stage(parallel, stage)) for stage in range(4)}
    cases = {stage: other for stage, other in found.items() if other is not None}
    for few, many in pairwise(cases):
        programs = zip(cases[few].plan.programs, cases[many].plan.programs, strict=True)
        for whole, sharded in programs:
            spare = max(0, shard_bytes(sharded) - shard_bytes(whole))
            yield from _no_more(peak_bytes(sharded), peak_bytes(whole) + spare, f"memory, stage {many} against {few}")


def _of_stage(parallel: ParallelSpec, stage: int) -> dict[str, Any]:
    """Return the keys of a ZeRO stage that shards over all replicas, with what else a job says that goes with it."""
    known = parallel.sharding
    sharding = ShardingSpec(
        gradient_sync=known.gradient_sync if stage > 1 else None, prefetch=known.prefetch if stage == 3 else None
    )
    return {"zero_stage": stage, "sharding": sharding, "bucket_bytes": 0, "overlap_gradient_sync": True,
            "overlap_parameter_gather": False}  # fmt: skip


def larger_batches(case: Case) -> Iterator[str]:
    """More sequences never take less time, and k times the micro-batches at most k times as long."""
    training, times = case.job.training, case.random.choice([2, 3])
    size, batch = training.microbatch_size, training.global_batch_size
    if case.seed % 2:
        larger = case.with_job(training={"global_batch_size": batch * 2, "microbatch_size": size * 2})
        if larger is not None:
            yield from _no_longer(case.time, larger.time, "micro-batches twice as large")
        return
    more = case.with_job(training={"global_batch_size": batch * times})
    if more is not None and case.job.parallel.pipeline.schedule != "custom":
        yield from _no_longer(case.time, more.time, f"{times} times the micro-batches")
        linear = Timed(times * case.time.seconds, case.time.shares)
        yield from _no_longer(more.time, linear, f"{times} times the micro-batches, {times} times as long")


def more_replicas(case: Case) -> Iterator[str]:
    """Twice the replicas with twice the batch take as long at least: no better than linear scaling.

    The replicas lie one after the other, so that those which are added change nothing of where the others lie.
    """
    parallel, cluster = case.job.parallel, case.data["cluster"]
    if parallel.osdp is not None or cluster.get("stragglers"):
        return
    order = ["dp", *(axis for axis in case.data["parallel"]["axis_order"] if axis != "dp")]
    once = case if list(parallel.axis_order) == order else case.with_keys(parallel__axis_order=order)
    batch = 2 * case.job.training.global_batch_size
    twice = case.with_keys(
        parallel__axis_order=order, parallel__data__degree=2 * parallel.data_degree,
        cluster__num_nodes=2 * cluster["num_nodes"], training__global_batch_size=batch,
    )  # fmt: skip
    if once is not None and twice is not None:
        spare_s = update_seconds(once.run) if parallel.zero_stage else 0.0
        yield from _no_longer(once.time, twice.time, "twice the replicas", spare_s)


def one_device_per_node(case: Case) -> Iterator[str]:
    """Devices of one node, each moved to a node of its own, work no faster: the links between nodes are slower."""
    cluster = case.data["cluster"]
    is_plain = {"node", "num_nodes", "devices_per_node"} == cluster.keys() and cluster["num_nodes"] == 1
    if not is_plain or case.job.parallel.sharding.offload is not None or "network" in case.data:
        return
    apart = case.with_keys(cluster__num_nodes=cluster["devices_per_node"], cluster__devices_per_node=1)
    if apart is not None:
        is_v100 = case.pricing.cluster.node.device.generation == "v100"
        spare = ANOMALIES["a chain inside a node"].bound if is_v100 else 0.0
        yield from _no_longer(case.time, apart.time, "one device per node", spare * apart.time.seconds)


def peak_bytes(program: Program) -> int:
    """Return the peak memory of a program on its device."""
    return memory_use(program).peak_bytes


# --- the same result -----------------------------------------------------------------------------------------------


def folding(case: Case) -> Iterator[str]:
    """Each op of each rank has the same times whether alike ranks are simulated once or all."""
    folded, every = case.run, Simulation(case.plan, no_fold).run(case.pricing)
    mine, whole = op_times(folded), op_times(every)
    stands_for, ranks = folded.folding.stands_for, list(whole)
    partners = as_array(mine, [(stands_for[rank], call, j) for rank, call, j in ranks])
    off_s = float(abs(as_array(whole, ranks) - partners).max())
    if off_s > _ROUNDING * every.makespan_s:
        yield f"an op is {off_s:.3g} s off of {every.makespan_s:.3g} s"


def determinism(case: Case) -> Iterator[str]:
    """Reading and simulating a scenario again gives the same summary, byte for byte."""
    again = simulate(load(case.data, case.folder))
    texts = [json.dumps(_without_wall_time(result.as_json())) for result in (case.result, again)]
    if texts[0] != texts[1]:
        yield "two summaries differ"


def _without_wall_time(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**summary, "engine": {**summary["engine"], "wall_time_s": 0}}


# --- within one result ---------------------------------------------------------------------------------------------


def interval(case: Case) -> Iterator[str]:
    """The 90 % interval lies around the predicted step time."""
    summary = case.result.as_json()
    low, high = summary["iteration_time_interval_s"]
    time_s = summary["iteration_time_s"]
    yield from _no_more(low, time_s, "the interval's lower end against the time")
    yield from _no_more(time_s, high, "the time against the interval's upper end")


def shares(case: Case) -> Iterator[str]:
    """The parts of the step add up to it, and each is between nothing and all of it; so is what links are used."""
    summary = case.result.as_json()
    total_s = summary["iteration_time_s"]
    parts = [seconds / total_s for _, seconds in time_parts(case.result.summary)]
    if abs(sum(parts) - 1) > 1e-6:
        yield f"parts of the step add up to {sum(parts):.6%}"
    named = {
        "mfu": summary["mfu"], "hfu": summary["hfu"], "bubble": summary["bubble_fraction"],
        "exposed": summary["exposed_communication_fraction"],
        **{f"part {i}": part for i, part in enumerate(parts)},
        **{f"{row['kind']} {key}": row["busiest"][key] for row in summary["links"] or ()
           for key in ("busy_fraction", "peak_fraction")},
    }  # fmt: skip
    for name, share in named.items():
        if not -_ROUNDING <= share <= 1 + _ROUNDING:
            yield f"{name} is {share:.4%}"
    if summary["mfu"] > summary["hfu"] * (1 + _ROUNDING):
        yield f"MFU {summary['mfu']:.4%} is more than HFU {summary['hfu']:.4%}"
    path_s = sum(summary["critical_path_s"].values())
    if abs(path_s - total_s) > 1e-6 * total_s:
        yield f"the critical path adds up to {path_s:.6g} of {total_s:.6g} s"


def memory_holds_states(case: Case) -> Iterator[str]:
    """All ranks together hold each parameter and its optimizer state once at least, each of them what never leaves."""
    job, total = case.job, 0
    for program in case.plan.programs:
        peak = peak_bytes(program)
        lasting = [b for b in program.buffers.values() if b.scope is Scope.PERSISTENT and b.tier is Tier.DEVICE]
        held = sum(b.num_bytes for b in lasting if b.kind in {Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER})
        if peak < held:
            yield f"{program.role_name}: a peak of {peak} bytes, below the {held} of parameters and states"
        total += len(case.plan.ranks_of(program)) * (peak + memory_use(program, Tier.HOST).peak_bytes)
    states = {"fp32": 4, "fp64": 8}.get(job.training.precision, 6) + _moment_bytes(job)
    least = job.model.num_parameters * states
    if total < least:
        yield f"all ranks hold {total} bytes, below the {least} of one model's parameters and states"


def _moment_bytes(job: DenseTraining) -> int:
    size = 8 if job.training.precision == "fp64" else 4
    return 2 * size if job.training.optimizer == "adam" else 0


LAWS: Final[Mapping[str, Law]] = {
    law.__name__: law
    for law in (
        faster_links, faster_nvlink, slower_devices, framework_costs, recomputation, recomputed_layers, zero_stages,
        larger_batches, more_replicas, one_device_per_node, folding, determinism, interval, shares, memory_holds_states,
    )
}  # fmt: skip
