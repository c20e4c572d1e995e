"""Calibration of this machine: sessions of measurements, each planned from the last fit, and the fitted profile."""

import dataclasses
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain, zip_longest
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from backends.execution.measuring.benchmarks import Benchmark, CollectiveBenchmark, HandoffBenchmark, WindowBenchmark
from backends.execution.measuring.cases import kernel_sample, kernel_steps, network_benchmarks, network_sample
from backends.execution.measuring.concerning import concerning_network, concerning_steps
from backends.execution.measuring.rounds import Run, figures_of, quiet
from backends.execution.measuring.steps import KernelCall, StepBenchmark, StepKernels, kernel_calls
from backends.execution.measuring.storage import measure_storage
from backends.execution.request import ExecutionRequest
from backends.execution.result import Execution
from backends.registry import load_torch_backend
from costmodels.calibration.jitter import device_jitter
from costmodels.calibration.kernels import Fitted, predict_kernels
from costmodels.calibration.samples import KernelSample, Sample, is_held_out
from costmodels.hardware import NodeSpec
from costmodels.kernels import KERNELS
from costmodels.profile import load_profile
from scenarios.calibration.calibration import Calibration, calibrated, fit_sections
from scenarios.summaries.measured.calibration import CountedRuns, MachineOrigin, MeasuredDrive, MeasuredMachine
from scenarios.this_computer import physical_memory_bytes
from sim.training.spec.job import Precision

Device = Literal["cpu", "cuda"]
HELD_OUT_MEASURED: Final = 5
"""Of the machine's own measurements, one in this many is held out of the fit."""
_STORAGE_SHARE: Final = 0.05
_MOST_STORAGE_S: Final = 6.0
"""Limit of the drive's part of the budget, in seconds."""


class MachineRequest(Struct, frozen=True, kw_only=True):
    """The measurements to make on this machine.

    ``processes``: number that measure at the same time.
    ``sessions``: number of restarts of the processes; between sessions the fit decides the next measurements.
    ``precisions``: empty: all for which the device is calibrated.
    ``steps``: plans that run in every round, between the measurements.
    ``folder``: a folder on a drive to measure too.
    ``beside``: an execution that is repeated now and then between the measurements, which then concern its plan alone.
    """

    device: Device
    budget_s: float
    processes: int
    seed: int = 0
    sessions: int = 2
    precisions: tuple[Precision, ...] = ()
    steps: tuple[StepBenchmark, ...] = ()
    folder: Path | None = None
    beside: ExecutionRequest | None = None


class Named(NamedTuple):
    """The benchmarks behind the keys of figures."""

    calls: Mapping[str, KernelCall]
    network: Mapping[str, WindowBenchmark]


def calibrate_machine(
    node: NodeSpec, request: MachineRequest, *, measuring: Callable[[float], Any] = nullcontext
) -> Calibration:
    """Return a profile fitted to this machine, measured with as many processes at once as a job has.

    Sessions share the budget. The first measures the smallest and the largest training steps of all kinds, and all
    communication. Later sessions measure steps near the largest misfit so far. On a CPU the node's rates are fitted
    too; on a GPU those of the data sheet hold.
    ``measuring``: a function from a session's seconds to the context in which it runs.

    Raises ScenarioError for too few measurements, ExecutionError if a process fails.
    """
    backend, device, processes = load_torch_backend(), request.device, request.processes
    network = network_benchmarks(device, processes)
    jobs = kernel_steps(device, processes, request.precisions)
    if request.beside is not None:
        network = concerning_network(request.beside.plan, network)
        jobs = concerning_steps(request.beside.plan, jobs)
    start, fit_rates = Fitted(load_profile(node.device.profile), node), device == "cpu"
    named = Named(kernel_calls(jobs), {benchmark.key: benchmark for benchmark in network})
    drive = _drive(request)
    runs, executions = list[Run](), list[Execution]()
    for session in range(request.sessions):
        samples = [s for s in _samples(figures_of(runs), named) if not _is_kept(s.key)]
        fitted = fit_sections(samples, start, fit_rates=fit_rates)
        chosen = refined(jobs, samples, fitted) if session else coarse(jobs)
        steps = sorted(request.steps, key=lambda step: step.key in figures_of(runs))
        share_s = (request.budget_s - _storage_budget_s(request)) / request.sessions
        with measuring(share_s):
            found = backend.measure(
                _in_turn([*network, *steps, *chosen]), processes=processes, budget_s=share_s,
                seed=request.seed + session, device=device, beside=request.beside,
            )  # fmt: skip
        runs += found.runs
        executions += found.beside
    figures = figures_of(runs)
    samples = _samples(figures, named)
    origin = MachineOrigin(
        measured=f"{len(samples)} benchmarks, medians of {_usual_count(figures)} runs in {request.budget_s:g} s",
        runs=CountedRuns(all=len(runs), quiet=len(quiet(runs))),
        processes=processes,
        machine=machine(device),
        host_copy_bytes_per_s={name: _short(rate) for name, rate in backend.copy_bandwidths().items()},
        handoff_us=_short(1e6 * _handoff_s(figures)),
        drive=drive,
    )
    start = replace(start, profile=replace(start.profile, jitter=device_jitter(_by_family(runs, named))))
    calibration = calibrated(samples, start, HELD_OUT_MEASURED, request.seed, origin, fit_rates=fit_rates)
    step_times_s = {benchmark.key: tuple(figures.get(benchmark.key, ())) for benchmark in request.steps}
    return dataclasses.replace(calibration, step_times_s=step_times_s, executions=tuple(executions))


def _storage_budget_s(request: MachineRequest) -> float:
    return 0.0 if request.folder is None else min(_STORAGE_SHARE * request.budget_s, _MOST_STORAGE_S)


def _drive(request: MachineRequest) -> MeasuredDrive | None:
    """Return the measured rates of the drive, None if they are not asked for."""
    if request.folder is None:
        return None
    found = measure_storage(request.folder, _storage_budget_s(request))
    if found is None:
        return MeasuredDrive(storage=None)
    written, read = _short(found.write_bytes_per_s), _short(found.read_bytes_per_s)
    return MeasuredDrive(storage=replace(found, write_bytes_per_s=written, read_bytes_per_s=read))


def _short(value: float) -> float:
    """Return a figure with the three digits of a profile."""
    return float(f"{value:.3g}")


def coarse(jobs: Iterable[StepKernels]) -> list[StepKernels]:
    """Return the smallest and the largest step of every kind; ``jobs`` are sorted by size, smallest first."""
    kinds: dict[tuple[Hashable, ...], list[StepKernels]] = defaultdict(list)
    for job in jobs:
        kinds[job.kind].append(job)
    ends = [ours[place] for place in (0, -1) for ours in kinds.values()]
    return list(dict.fromkeys(ends))


def refined(jobs: Sequence[StepKernels], samples: Iterable[Sample], fitted: Fitted) -> list[StepKernels]:
    """Return all steps: unmeasured ones first, and among both those with the worst fit nearby.

    A step's misfit is the mean over its fitted kernels of |log(predicted/measured)|; an unmeasured step has the misfit
    of the nearest of its kind.
    """
    kernels = [s for s in samples if isinstance(s, KernelSample)]
    predicted = predict_kernels(kernels, fitted.node, fitted.profile)
    errors = {s.key: abs(log(p / s.seconds)) for s, p in zip(kernels, predicted, strict=True)}
    known = {}
    for place, job in enumerate(jobs):
        calls = [key for key in job.calls() if not _is_kept(key)]
        if all(key in errors for key in calls):
            known[place] = fmean(errors[key] for key in calls)

    def misfit(place: int) -> float:
        near = [other for other in known if jobs[other].kind == jobs[place].kind]
        return known[min(near, key=lambda other: abs(other - place))] if near else 1.0

    return [jobs[p] for p in sorted(range(len(jobs)), key=lambda place: (place in known, -misfit(place)))]


def _by_family(runs: Sequence[Run], named: Named) -> Iterable[Mapping[str, Sequence[float]]]:
    """Yield, for every quiet run of a training step, the seconds of each rank's kernels by family."""
    for run in quiet(runs):
        families: dict[str, list[float]] = {}
        for key in (key for key in run.figures if key in named.calls):
            before_s = families.get(family := KERNELS[named.calls[key].op.kernel].family, [0.0] * len(run.by_rank))
            families[family] = [one_s + figures[key] for one_s, figures in zip(before_s, run.by_rank, strict=True)]
        yield families


def _is_kept(key: str) -> bool:
    """Return whether a measurement is held out of the fit and of its decisions."""
    return is_held_out(key, HELD_OUT_MEASURED)


def _in_turn(benchmarks: Iterable[Benchmark]) -> list[Benchmark]:
    """Return benchmarks of all kinds in turn, so that a lack of time does not hit one kind alone."""
    kinds: dict[str, list[Benchmark]] = defaultdict(list)
    for benchmark in benchmarks:
        if isinstance(benchmark, CollectiveBenchmark):
            kinds[f"{benchmark.kind} {benchmark.group}"].append(benchmark)
        else:
            kinds[type(benchmark).__name__].append(benchmark)
    first = kinds.pop(HandoffBenchmark.__name__)
    turns = chain.from_iterable(zip_longest(*kinds.values()))
    return [*first, *(benchmark for benchmark in turns if benchmark is not None)]


def _handoff_s(figures: Mapping[str, Sequence[float]]) -> float:
    over, plain = (figures[HandoffBenchmark(hands_over=flag).key] for flag in (True, False))
    return max(median(over) - median(plain), 0.0)


def _usual_count(figures: Mapping[str, Sequence[float]]) -> int:
    return round(median(len(values) for values in figures.values()))


def _samples(figures: Mapping[str, Sequence[float]], named: "Named") -> list[Sample]:
    """Return the measurements as samples for the fit."""
    if not figures:
        return []
    handoff_s, found = _handoff_s(figures), list[Sample | None]()
    for key, values in figures.items():
        if key in named.calls:
            found.append(kernel_sample(named.calls[key], median(values)))
        elif key in named.network:
            share = median(figures[named.network[key].share_key])
            found.append(network_sample(named.network[key], median(values), handoff_s, share))
    return [sample for sample in found if sample is not None]


def machine(device: Device) -> MeasuredMachine:
    """Return this machine's description of itself: processor, usable cores, memory."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    memory_gib = physical_memory_bytes() / 2**30
    return MeasuredMachine(device=device, processor=model, cores=num_cores(), memory=f"{memory_gib:.1f} GiB")


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
