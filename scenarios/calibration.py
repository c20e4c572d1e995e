"""Measure a machine or read measured tables, fit a profile, and say how well it fits."""

import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from itertools import chain, zip_longest
from math import log
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from backends.registry import load_torch_backend
from backends.torch.measuring.benchmarks import Benchmark, CollectiveBenchmark, HandoffBenchmark, KernelBenchmark
from backends.torch.measuring.cases import kernel_benchmarks, network_benchmarks, sample_of
from costmodels.calibration.document import profile_entry
from costmodels.calibration.fitting import Residuals
from costmodels.calibration.kernels import Fitted, fit_kernels, predict_kernels, section_of
from costmodels.calibration.network import fit_network, predict_collectives
from costmodels.calibration.samples import CollectiveSample, KernelSample, Sample, is_held_out
from costmodels.hardware import NodeSpec
from costmodels.kernels import KERNELS
from costmodels.profile import SECTIONS, load_profile, packaged_entry
from scenarios.calibration_tables import describe_tables, read_samples
from scenarios.errors import Origin, ScenarioError

Device = Literal["cpu", "cuda"]
HELD_OUT_MEASURED: Final = 5
"""Of our own measurements, one in so many is kept from the fit."""
HELD_OUT_TABLES: Final = 2
MAX_FIT_ROWS: Final = 2000
"""Rows of one table that a fit takes, of those not held out: more settle no parameter better."""
_COARSE_SHARE: Final = 0.5
_REFINED_PER_S: Final = 5.0
"""New kernels per second of the second session."""
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
    """A fitted profile as the mapping that its file holds, and every measurement beside its prediction."""

    entry: Mapping[str, Any]
    points: tuple[Point, ...] = field(repr=False)


def calibrate_machine(
    node: NodeSpec, *, device: Device, budget_s: float, processes: int, seed: int, measuring: Callable[[], Any]
) -> Calibration:
    """Return a profile fitted to what this machine does, measured with ``processes`` processes at once.

    Two sessions share the budget: the first takes the smallest and the largest call of every kernel and all
    communication; the second the kernels nearest to where the first fit is worst. On a CPU the node's rates are fitted
    too, on a GPU the data sheet's hold. ``measuring`` makes a context in which each session runs.
    Raises ScenarioError where too little was measured, ExecutionError where a process fails.
    """
    backend = load_torch_backend()
    kernels, network = kernel_benchmarks(device), network_benchmarks(device, processes)
    figures: dict[str, list[float]] = defaultdict(list)

    def session(benchmarks: Sequence[Benchmark], share: float) -> None:
        with measuring():
            found = backend.measure(
                benchmarks, processes=processes, budget_s=share * budget_s, seed=seed, device=device
            )
        for key, values in found.items():
            figures[key] += values

    everything: dict[str, Benchmark] = {b.key: b for b in (*network, *kernels)}
    session(_in_turn([*network, *coarse(kernels)]), _COARSE_SHARE)
    start = Fitted(load_profile(node.device.generation), node)
    samples = _samples(figures, everything)
    first = _fit([s for s in samples if not is_held_out(s.key, HELD_OUT_MEASURED)], start, fit_rates=device == "cpu")
    more = refined(kernels, samples, first, round(_REFINED_PER_S * budget_s * (1 - _COARSE_SHARE)))
    session(_in_turn([*network, *more]), 1 - _COARSE_SHARE)
    samples = _samples(figures, everything)
    about = {
        "measured": f"{len(samples)} benchmarks, medians of {_rounds(figures)} rounds in {budget_s:g} s",
        "processes": processes,
        "machine": machine(device),
        "host_copy_bytes_per_s": {name: float(f"{rate:.3g}") for name, rate in backend.copy_bandwidths().items()},
        "handoff_us": float(f"{1e6 * _handoff_s(figures):.3g}"),
    }
    return _calibrated(samples, start, HELD_OUT_MEASURED, seed, about, fit_rates=device == "cpu")


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


def coarse(kernels: Iterable[KernelBenchmark]) -> list[KernelBenchmark]:
    """Return the smallest and the largest call of every kernel and type."""
    groups: dict[tuple[str, str], list[KernelBenchmark]] = defaultdict(list)
    for benchmark in kernels:
        groups[_group(benchmark)].append(benchmark)
    chosen: dict[str, KernelBenchmark] = {}
    for group in groups.values():
        group.sort(key=_size)
        chosen |= {benchmark.key: benchmark for benchmark in (group[0], group[-1])}
    return list(chosen.values())


def refined(
    kernels: Iterable[KernelBenchmark], samples: Iterable[Sample], fitted: Fitted, count: int
) -> list[KernelBenchmark]:
    """Return kernels not measured yet, of every family in turn, those first whose nearest neighbour is fitted worst.

    Neighbours are calls of the same kernel and type; the distance is the logarithm of what they move and compute.
    """
    everything = {benchmark.key: benchmark for benchmark in kernels}
    misfits: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        if isinstance(sample, KernelSample) and sample.key in everything:
            (predicted_s,) = predict_kernels([sample], fitted.node, fitted.profile)
            benchmark = everything.pop(sample.key)
            misfits[_group(benchmark)].append((_size(benchmark), abs(log(predicted_s / sample.seconds))))

    def misfit(benchmark: KernelBenchmark) -> float:
        near = misfits.get(_group(benchmark))
        return min(near, key=lambda pair: abs(pair[0] - _size(benchmark)))[1] if near else 1.0

    sections: dict[str, list[KernelBenchmark]] = defaultdict(list)
    for benchmark in sorted(everything.values(), key=lambda b: (-misfit(b), b.key)):
        sections[str(KERNELS[benchmark.op.kernel].family)].append(benchmark)
    turns = chain.from_iterable(zip_longest(*sections.values()))
    return [benchmark for benchmark in turns if benchmark is not None][:count]


def _group(benchmark: KernelBenchmark) -> tuple[str, str]:
    return benchmark.op.kernel, benchmark.buffers[benchmark.op.reads[0]].dtype


def _size(benchmark: KernelBenchmark) -> float:
    """Return the logarithm of a call's bytes and FLOP together."""
    sample = sample_of(benchmark, 1.0, 0.0)
    assert isinstance(sample, KernelSample)
    return log(1.0 + sample.work.num_bytes + sample.work.executed_flop)


def _in_turn(benchmarks: Iterable[Benchmark]) -> list[Benchmark]:
    """Return benchmarks of all kinds by turns, so that whatever time is too short for is not of one kind."""
    kinds: dict[str, list[Benchmark]] = defaultdict(list)
    for benchmark in benchmarks:
        if isinstance(benchmark, KernelBenchmark):
            kinds[benchmark.op.kernel].append(benchmark)
        elif isinstance(benchmark, CollectiveBenchmark):
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


def _rounds(figures: Mapping[str, Sequence[float]]) -> int:
    return round(median(len(values) for values in figures.values()))


def _samples(figures: Mapping[str, Sequence[float]], benchmarks: Mapping[str, Benchmark]) -> list[Sample]:
    handoff_s = _handoff_s(figures)
    found = (sample_of(benchmarks[key], median(values), handoff_s) for key, values in figures.items() if values)
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
    """Return how far what was held out lies from its prediction, beside that of families not measured now."""
    return {**before, **{name: row["held_out_sigma"] for name, row in families.items() if "held_out_sigma" in row}}


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
