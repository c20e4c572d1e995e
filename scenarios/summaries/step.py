"""summary.json: the answer of a simulation, in documented, versioned keys (see docs/results.md)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from costmodels.hardware import DeviceSpec
from scenarios.reading.loader import Scenario
from scenarios.summaries.algorithm import algorithm_of
from scenarios.summaries.links import summarise_links
from sim.engine.findings.breakdown import BUBBLE, Breakdown, breakdown
from sim.engine.findings.computing import computing_seconds
from sim.engine.findings.critical_path import CriticalPath, critical_path
from sim.engine.findings.link_use import LinkUse
from sim.engine.running.memory import peak_live_chunks
from sim.engine.running.run import SimulatedRun
from sim.engine.uncertainty.errors import ModelErrors
from sim.engine.uncertainty.interval import step_time_interval
from sim.plan.facts.description import describe
from sim.plan.facts.work_shares import work_shares
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Program
from sim.training.data.axes import SAMPLE_AXES
from sim.training.spec.job import DenseTraining
from sim.training.spec.precision import PRECISIONS

SCHEMA = "meshtwin.summary/1"


def summarise(
    scenario: Scenario,
    run: SimulatedRun,
    devices: Sequence[tuple[DeviceSpec, int]],
    use: LinkUse | None = None,
    errors: ModelErrors | None = None,
) -> dict[str, Any]:
    """Return the summary of a run; rates and memory verdicts only where there are devices.

    ``devices``: those of the ranks, in rank order, each with how many ranks have it. ``use``: that of their links.
    ``errors``: those of the cost models, None where times are stated.
    """
    path = critical_path(run)
    parts = {rank: breakdown(run, rank) for rank in run.programs}
    shares = dict(zip(map(id, run.plan.programs), work_shares(run.plan, SAMPLE_AXES), strict=True))
    roles = [
        _role(run, rank, parts[rank], devices) | {"computing_s": computing_seconds(run, rank, shares[id(program)])}
        for rank, program in run.programs.items()
    ]
    return {
        "schema": SCHEMA,
        "scenario": scenario.name,
        "seed": scenario.seed,
        "algorithm": algorithm_of(scenario.job),
        "world_size": run.plan.mesh.size,
        "iteration_time_s": run.iteration_time_s,
        **_interval(path, errors),
        "makespan_s": run.makespan_s,
        "max_rank_span_s": run.max_rank_span_s,
        **rates(scenario, run, devices),
        "bubble_fraction": _mean(run, {r: p.exposed_s[BUBBLE] for r, p in parts.items()}) / run.iteration_time_s,
        "exposed_communication_fraction": _mean(
            run, {r: sum(v for cause, v in p.exposed_s.items() if cause != BUBBLE) for r, p in parts.items()}
        )
        / run.iteration_time_s,
        "critical_path_s": dict(sorted(path.seconds.items(), key=lambda part: (-part[1], part[0]))),
        **_memory(scenario, roles, devices),
        **_token_slices(scenario),
        "roles": roles,
        **summarise_links(use, run.plan.mesh.size),
        "fold": {"ranks": run.plan.mesh.size, "simulated": len(run.programs)},
        "engine": {"events": run.num_events, "wall_time_s": run.wall_time_s},
    }


def _interval(path: CriticalPath, errors: ModelErrors | None) -> dict[str, Any]:
    """Return from where to where the step time lies in 90 % of cases, its median, and how they were found."""
    found = None if errors is None else step_time_interval(path, errors)
    return {
        "iteration_time_interval_s": list(found.bounds) if found else None,
        "iteration_time_median_s": found.median_s if found else None,
        "iteration_time_interval_method": found.method if found else None,
    }


def _token_slices(scenario: Scenario) -> dict[str, Any]:
    """Return the slices in which sequences go through the pipeline, where they are sliced."""
    job = scenario.job
    pipeline = job.parallel.pipeline if isinstance(job, DenseTraining) else job.pipeline
    return {"token_slices": list(pipeline.token_slices)} if pipeline.token_slices else {}


def _mean(run: SimulatedRun, per_rank: dict[int, float]) -> float:
    """Return the mean over all ranks, each simulated one counted as often as it stands for."""
    return sum(value * run.folding.multiplicity[rank] for rank, value in per_rank.items()) / run.plan.mesh.size


def rates(scenario: Scenario, run: SimulatedRun, devices: Sequence[tuple[DeviceSpec, int]]) -> dict[str, float | None]:
    """Return tokens/s, FLOP/s per device and their share of the mean device's peak; None for textbook jobs."""
    job = scenario.job
    if not isinstance(job, DenseTraining) or not devices:
        keys = ("tokens_per_s", "model_flop_per_s_per_device", "hardware_flop_per_s_per_device", "mfu", "hfu")
        return dict.fromkeys(keys)
    time_s, world = run.iteration_time_s, run.plan.mesh.size
    model_rate = job.model_flop / time_s / world
    flop_of = {id(program): _program_flop(program) for program in run.plan.programs}
    flop = _mean(run, {rank: flop_of[id(program)] for rank, program in run.programs.items()})
    hardware_rate = flop / run.plan.num_steps / time_s
    dtype = PRECISIONS[job.training.precision].product
    peak = sum(device.peak(dtype) * count for device, count in devices) / world
    return {
        "tokens_per_s": job.training.global_batch_size * job.model.sequence_length / time_s,
        "model_flop_per_s_per_device": model_rate,
        "hardware_flop_per_s_per_device": hardware_rate,
        "mfu": model_rate / peak,
        "hfu": hardware_rate / peak,
    }


def _program_flop(program: Program) -> float:
    """Return the FLOP that one rank's program spends, recomputation included."""
    per_task = {n: sum(describe(program, t, op).flop for op in t.ops) for n, t in program.tasks.items()}
    return sum(per_task[call.task] for call in program.calls)


def _role(run: SimulatedRun, rank: int, parts: Breakdown, devices: Sequence[tuple[DeviceSpec, int]]) -> dict[str, Any]:
    program = run.programs[rank]
    use = run.memory_of(rank)
    return {
        "role": program.role_name,
        "first_rank": rank,
        "num_ranks": run.folding.multiplicity[rank],
        "peak_memory_bytes": use.peak_bytes,
        "memory_capacity_bytes": _capacity_bytes(devices, rank),
        "memory_by_kind_bytes": dict(use.peak_by_kind_bytes),
        "peak_host_memory_bytes": run.memory_of(rank, Tier.HOST).peak_bytes,
        "peak_live_microbatches": peak_live_chunks(program),
        "busy_s": dict(parts.busy_s),
        "exposed_s": dict(parts.exposed_s),
    }


def _memory(
    scenario: Scenario, roles: list[dict[str, Any]], devices: Sequence[tuple[DeviceSpec, int]]
) -> dict[str, Any]:
    """Return whether every row fits on the device that its ranks have, and on the host if it takes memory there, and
    what the smallest device has.
    """
    if not devices:
        return {"fits_memory": None, "memory_capacity_bytes": None}
    fits = all(role["peak_memory_bytes"] <= role["memory_capacity_bytes"] for role in roles)
    host = _host_memory(scenario, roles)
    return {
        "fits_memory": fits and all(memory["fits"] for memory in host.values()),
        "memory_capacity_bytes": min(device.memory_bytes for device, _ in devices),
        **host,
    }


def _host_memory(scenario: Scenario, roles: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the most that a node's ranks take of its own memory, where they take some, and what it has."""
    most = max(role["peak_host_memory_bytes"] for role in roles)
    if not most or scenario.cluster is None:
        return {}
    per_node, host = scenario.cluster.devices_per_node, scenario.cluster.node_spec.host
    peak = most * min(per_node, sum(role["num_ranks"] for role in roles))
    return {
        "host_memory": {
            "peak_bytes": peak, "capacity_bytes": host.memory_bytes, "fits": peak <= host.memory_bytes,
        }
    }  # fmt: skip


def _capacity_bytes(devices: Sequence[tuple[DeviceSpec, int]], rank: int) -> int | None:
    """Return the memory of a rank's device; all ranks of a class have alike ones."""
    ends = accumulate(count for _, count in devices)
    return next((device.memory_bytes for (device, _), end in zip(devices, ends, strict=True) if rank < end), None)
