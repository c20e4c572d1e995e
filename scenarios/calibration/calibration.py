"""Measure a machine or read measured tables, fit a profile, and say how well it fits."""

import os
import platform
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain, zip_longest
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, Literal, NamedTuple

from backends.registry import load_torch_backend
from backends.torch.measuring.benchmarks import Benchmark, CollectiveBenchmark, HandoffBenchmark, WindowBenchmark
from backends.torch.measuring.cases import kernel_sample, kernel_steps, network_benchmarks, network_sample
from backends.torch.measuring.rounds import Run, figures_of, quiet
from backends.torch.measuring.steps import KernelCall, StepBenchmark, StepKernels, kernel_calls
from costmodels.calibration.document import profile_entry
from costmodels.calibration.fitting import Residuals
from costmodels.calibration.kernels import Fitted, fit_kernels, predict_kernels, section_of
from costmodels.calibration.network import MESSAGE, fit_network, predict_collectives
from costmodels.calibration.samples import CollectiveSample, KernelSample, Sample, is_held_out
from costmodels.collectives.traffic import TRAFFIC
from costmodels.hardware import NodeSpec
from costmodels.profile import SECTIONS, load_profile, packaged_entry
from scenarios.calibration.tables import describe_tables, read_samples
from scenarios.errors import Origin, ScenarioError
from sim.training.spec import Precision

Device = Literal["cpu", "cuda"]
HELD_OUT_MEASURED: Final = 5
"""Of our own measurements, one in so many is kept from the fit."""
HELD_OUT_TABLES: Final = 2
MAX_FIT_ROWS: Final = 2000
"""Rows of one table that a fit takes, of those not held out: more settle no parameter better."""
_LEAST_POINTS: Final = 10
"""Measurements that a section is fitted from, at least; with fewer it keeps what it started from."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement beside what the fitted profile predicts."""

    family: str
    key: str
    measured_s: float
    predicted_s: float
    held_out: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile as the mapping that its file holds, and every measurement beside its prediction.

    ``step_times_s``: of plans that ran between the measurements, a figure per quiet round.
    """

    entry: Mapping[str, Any]
    points: tuple[Point, ...] = field(repr=False)
    step_times_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRequest:
    """What to measure of this machine.

    ``processes``: how many measure at the same time. ``sessions``: how often processes are started anew; between them
    the fit decides what is measured next. ``precisions``: those wanted; none: all that the device is calibrated for.
    ``steps``: plans that run in every round, between the measurements.
    """

    device: Device
    budget_s: float
    processes: int
    seed: int = 0
    sessions: int = 2
    precisions: tuple[Precision, ...] = ()
    steps: tuple[StepBenchmark, ...] = ()


class Named(NamedTuple):
    """What the keys of figures stand for."""

    calls: Mapping[str, KernelCall]
    network: Mapping[str, WindowBenchmark]


def calibrate_machine(
    node: NodeSpec, request: MachineRequest, *, measuring: Callable[[float], Any] = nullcontext
) -> Calibration:
    """Return a profile fitted to what this machine does, measured with as many processes at once as a job has.

    Sessions share the budget: the first takes the smallest and the largest training steps of all kinds, and all
    communication; later ones the steps nearest to where the fit so far is worst. On a CPU the node's rates are fitted
    too, on a GPU the data sheet's hold. ``measuring``: of its seconds, makes a context in which a session runs.
    Raises ScenarioError where too little was measured, ExecutionError where a process fails.
    """
    backend, device, processes = load_torch_backend(), request.device, request.processes
    network = network_benchmarks(device, processes)
    jobs = kernel_steps(device, processes, request.precisions)
    start, fit_rates = Fitted(load_profile(node.device.generation), node), device == "cpu"
    named = Named(kernel_calls(jobs), {benchmark.key: benchmark for benchmark in network})
    runs: list[Run] = []
    for session in range(request.sessions):
        samples = _samples(figures_of(runs), named)
        fitted = _fit([s for s in samples if not is_held_out(s.key, HELD_OUT_MEASURED)], start, fit_rates=fit_rates)
        chosen = refined(jobs, samples, fitted) if session else coarse(jobs)
        steps = sorted(request.steps, key=lambda step: step.key in figures_of(runs))
        share_s = request.budget_s / request.sessions
        with measuring(share_s):
            runs += backend.measure(
                _in_turn([*network, *steps, *chosen]), processes=processes, budget_s=share_s,
                seed=request.seed + session, device=device,
            )  # fmt: skip
    figures = figures_of(runs)
    samples = _samples(figures, named)
    about = {
        "measured": f"{len(samples)} benchmarks, medians of {_usual_count(figures)} runs in {request.budget_s:g} s",
        "runs": {"all": len(runs), "quiet": len(quiet(runs))},
        "processes": processes,
        "machine": machine(device),
        "host_copy_bytes_per_s": {name: float(f"{rate:.3g}") for name, rate in backend.copy_bandwidths().items()},
        "handoff_us": float(f"{1e6 * _handoff_s(figures):.3g}"),
    }
    calibration = _calibrated(samples, start, HELD_OUT_MEASURED, request.seed, about, fit_rates=fit_rates)
    return replace(calibration, step_times_s={b.key: tuple(figures.get(b.key, ())) for b in request.steps})


def calibrate_tables(
    node: NodeSpec, tables: Sequence[Path], *, system: str | None, seed: int, source: str = ""
) -> Calibration:
    """Return a profile of a node fitted to one half of measured tables, checked on the other.

    Sections that no table speaks of stay as they are. ``source``: where the tables come from.
    Raises ScenarioError for tables that cannot be used.
    """
    samples = list(chain.from_iterable(read_samples(path, system) for path in tables))
    start = Fitted(load_profile(node.device.generation), node)
    about = describe_tables(tables, system) | ({"source": source} if source else {})
    return _calibrated(samples, start, HELD_OUT_TABLES, seed, about, fit_rates=False)


# --- what to measure ---------------------------------------------------------------------------------------


def coarse(jobs: Iterable[StepKernels]) -> list[StepKernels]:
    """Return the smallest and the largest step of every kind; ``jobs`` come with smaller ones first."""
    kinds: dict[tuple[Hashable, ...], list[StepKernels]] = defaultdict(list)
    for job in jobs:
        kinds[job.kind].append(job)
    ends = [ours[place] for place in (0, -1) for ours in kinds.values()]
    return list(dict.fromkeys(ends))


def refined(jobs: Sequence[StepKernels], samples: Iterable[Sample], fitted: Fitted) -> list[StepKernels]:
    """Return all steps: those not measured yet first, and of both those whose neighbours are fitted worst.

    A step's misfit is the mean over its kernels of |log(predicted/measured)|; one that was not measured has that of
    the nearest of its kind.
    """
    kernels = [s for s in samples if isinstance(s, KernelSample)]
    predicted = predict_kernels(kernels, fitted.node, fitted.profile)
    errors = {s.key: abs(log(p / s.seconds)) for s, p in zip(kernels, predicted, strict=True)}
    known = {}
    for place, job in enumerate(jobs):
        calls = job.calls()
        if all(key in errors for key in calls):
            known[place] = fmean(errors[key] for key in calls)

    def misfit(place: int) -> float:
        near = [other for other in known if jobs[other].kind == jobs[place].kind]
        return known[min(near, key=lambda other: abs(other - place))] if near else 1.0

    return [jobs[p] for p in sorted(range(len(jobs)), key=lambda place: (place in known, -misfit(place)))]


def _in_turn(benchmarks: Iterable[Benchmark]) -> list[Benchmark]:
    """Return benchmarks of all kinds by turns, so that whatever time is too short for is not of one kind."""
    kinds: dict[str, list[Benchmark]] = defaultdict(list)
    for benchmark in benchmarks:
        if isinstance(benchmark, CollectiveBenchmark):
            kinds[f"{benchmark.kind} {benchmark.group}"].append(benchmark)
        else:
            kinds[type(benchmark).__name__].append(benchmark)
    first = kinds.pop(HandoffBenchmark.__name__)
    turns = chain.from_iterable(zip_longest(*kinds.values()))
    return [*first, *(benchmark for benchmark in turns if benchmark is not None)]


# --- from figures to a profile -----------------------------------------------------------------------------


def _handoff_s(figures: Mapping[str, Sequence[float]]) -> float:
    over, plain = (figures[HandoffBenchmark(hands_over=flag).key] for flag in (True, False))
    return max(median(over) - median(plain), 0.0)


def _usual_count(figures: Mapping[str, Sequence[float]]) -> int:
    return round(median(len(values) for values in figures.values()))


def _samples(figures: Mapping[str, Sequence[float]], named: "Named") -> list[Sample]:
    """Return the measurements as the fit takes them."""
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


def _fit(samples: Sequence[Sample], start: Fitted, *, fit_rates: bool) -> Fitted:
    """Return the fit of all sections with enough samples."""
    sections: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        sections[_section(sample)].append(sample)
    enough = [s for ours in sections.values() if len(ours) >= _LEAST_POINTS for s in ours]
    kernels = [s for s in enough if isinstance(s, KernelSample)]
    collectives = [s for s in enough if isinstance(s, CollectiveSample)]
    fitted = fit_kernels(kernels, start, fit_rates=fit_rates) if kernels else start
    return fit_network(collectives, fitted, fit_rates=fit_rates) if collectives else fitted


def _section(sample: Sample) -> str:
    if isinstance(sample, CollectiveSample):
        return "network"
    return section_of(sample)


def _calibrated(
    samples: Sequence[Sample], start: Fitted, one_in: int, seed: int, about: Mapping[str, Any], *, fit_rates: bool
) -> Calibration:
    fitted = _fit(_thinned(samples, one_in), start, fit_rates=fit_rates)
    if not fitted.sections:
        rule = f"{len(samples)} measurements are too few for any section of a profile, each needs {_LEAST_POINTS}"
        raise ScenarioError(Origin(option="calibrate"), "", rule, "give it a longer --budget, or a larger table")
    points = tuple(_points(samples, fitted, one_in))
    families = residuals(points)
    fitted = replace(fitted, profile=replace(fitted.profile, sigma=_sigma(families, fitted.profile.sigma)))
    calibration = {
        **about,
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "fitted_sections": list(fitted.sections),
        "held_out": f"one of {one_in}, by a hash",
        "residuals": families,
    }
    packaged = packaged_entry(start.profile.name)
    kept = {} if fit_rates else {name: packaged[name] for name in SECTIONS if name not in fitted.sections}
    sources = {name: _source(name, fitted, families, about.get("source", "")) for name in (*SECTIONS, "kernels")}
    sources["sigma"] = (
        "Root mean square of log(measured/predicted), weighted by seconds, over the rows that nothing was fitted to"
    )
    entry = profile_entry(
        fitted.profile, fitted.node, sources=sources, measured=fit_rates, calibration=calibration, kept=kept
    )
    return Calibration(entry, points)


def _thinned(samples: Sequence[Sample], one_in: int) -> list[Sample]:
    """Return what is fitted: nothing that is held out, and at most MAX_FIT_ROWS of each section, spread evenly."""
    sections: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if not is_held_out(sample.key, one_in):
            sections[_section(sample)].append(sample)
    return [s for ours in sections.values() for s in ours[:: -(-len(ours) // MAX_FIT_ROWS)]]


def _points(samples: Sequence[Sample], fitted: Fitted, one_in: int) -> Iterable[Point]:
    kernels = [s for s in samples if isinstance(s, KernelSample)]
    predicted = dict(zip((s.key for s in kernels), predict_kernels(kernels, fitted.node, fitted.profile), strict=True))
    for sample in samples:
        if isinstance(sample, KernelSample):
            family, predicted_s = str(sample.family), predicted[sample.key]
        else:
            family, (predicted_s,) = sample.kind, predict_collectives([sample], fitted.node, fitted.profile)
        yield Point(family, sample.key, sample.seconds, predicted_s, is_held_out(sample.key, one_in))


def _sigma(families: Mapping[str, Mapping[str, float]], before: Mapping[str, float]) -> dict[str, float]:
    """Return how far what was held out lies from its prediction, beside that of families not measured now.

    Collectives and messages have one for all: their root mean square.
    """
    found = {name: row["held_out_sigma"] for name, row in families.items() if "held_out_sigma" in row}
    network = [found.pop(name) for name in (*TRAFFIC, MESSAGE) if name in found]
    if network:
        found["network"] = fmean(value**2 for value in network) ** 0.5
    return {**before, **found}


def residuals(points: Sequence[Point]) -> dict[str, dict[str, float]]:
    """Return per family how far the fit is from what it was fitted to, and from what was held out."""
    found: dict[str, dict[str, float]] = {}
    for family in dict.fromkeys(p.family for p in points):
        row: dict[str, float] = {}
        for prefix, held_out in (("", False), ("held_out_", True)):
            ours = [p for p in points if p.family == family and p.held_out is held_out]
            errors = Residuals.of([p.predicted_s for p in ours], [p.measured_s for p in ours])
            row[f"{prefix}points"] = errors.num_points
            for name in ("mean", "p50", "p90", "bias", "sigma") if ours else ():
                row[f"{prefix}{name}"] = round(getattr(errors, name), 4)
        found[family] = row
    return found


def _source(section: str, fitted: Fitted, families: Mapping[str, Mapping[str, float]], origin: str) -> str:
    if section not in fitted.sections:
        return f"Not measured: as in the packaged profile {fitted.profile.name}"
    kernels = ("gemm", "attention", "attention_backward", "decode", "elementwise", "optimizer")
    own = {"attention": kernels[1:3], "network": (), "kernels": kernels}.get(section, (section,))
    rows = [(name, families[name]) for name in own or families if name in families and (own or name not in kernels)]
    errors = ", ".join(
        f"{name} {100 * row.get('mean', 0.0):.1f} % over {row['points']:,} rows, "
        f"{100 * row.get('held_out_mean', 0.0):.1f} % over {row['held_out_points']:,} that nothing was fitted to"
        for name, row in rows
    )
    return f"Fitted{f' to {origin}' if origin else ''}; mean absolute error: {errors}"


def machine(device: Device) -> dict[str, Any]:
    """Return what this machine calls itself: processor, usable cores, memory."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {"device": device, "processor": model, "cores": num_cores(), "memory": f"{memory_gib:.1f} GiB"}


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("meshtwin", "torch", "scipy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
