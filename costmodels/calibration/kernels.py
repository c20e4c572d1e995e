"""Fit the kernel part of a profile: matrix products, fused attention, memory-bound kernels, the optimizer.

The predictions are the simulator's own (``roofline``), so what is fitted is what is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from costmodels.calibration.fitting import CalibrationError, Parameter, fit
from costmodels.calibration.samples import KernelSample
from costmodels.hardware import NodeSpec
from costmodels.profile import Profile
from costmodels.roofline import kernel_time

_LEAST_FRACTION: Final = 0.01
_LEAST_LATENCY_S: Final = 1e-8
_MOST_LATENCY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Fitted:
    """A profile, the node whose rates its fractions are of, and the sections that were fitted."""

    profile: Profile
    node: NodeSpec
    sections: tuple[str, ...] = ()


def predict_kernels(samples: Sequence[KernelSample], node: NodeSpec, profile: Profile) -> list[float]:
    """Return the seconds that the simulator gives each kernel with the device to itself."""
    price = kernel_time.__wrapped__  # every trial is another profile: nothing to remember
    times = (price(s.work, s.family, s.dtype, node.device, profile) for s in samples)
    clock = profile.sustained.clock_fraction
    return [time.latency_s + max(time.compute_s / clock, time.memory_s) for time in times]


def fit_kernels(samples: Sequence[KernelSample], start: Fitted, *, fit_rates: bool) -> Fitted:
    """Return ``start`` with every kernel section fitted that there are samples for.

    ``fit_rates``: the node's peaks (per dtype) and memory bandwidth are themselves unknown, and are fitted: the
    fractions are then of the rates found. Else the node's rates are taken as they are.
    Raises CalibrationError for a section with fewer samples than parameters.
    """
    by_section: dict[str, list[KernelSample]] = {name: [] for name in ("gemm", "elementwise", "optimizer", "attention")}
    for sample in samples:
        section = "attention" if sample.family.startswith("attention") else str(sample.family)
        if section not in by_section:
            raise CalibrationError(f"measurement {sample.key!r}: kernels of the family {section!r} are not fitted")
        by_section[section].append(sample)
    if fit_rates:
        start = _with_bandwidth(start, samples)
    for section, ours in by_section.items():
        if ours:
            start = _FITS[section](ours, start, fit_rates)
    return start


def _with_bandwidth(start: Fitted, samples: Sequence[KernelSample]) -> Fitted:
    """Return ``start`` with the most bytes per second that any memory-bound kernel moved, cache or not.

    The fractions are rescaled, so that sections without samples keep their bytes per second.
    """
    rates = [s.work.num_bytes / s.seconds for s in samples if s.family in {"elementwise", "optimizer"}]
    if not rates:
        return start
    before = start.node.device.memory_bandwidth_bytes_per_s
    device = replace(start.node.device, memory_bandwidth_bytes_per_s=max(rates))
    sections = {}
    for name in ("gemm", "elementwise", "optimizer"):
        section = getattr(start.profile, name)
        fraction = section.memory_fraction * before / max(rates)
        sections[name] = replace(section, memory_fraction=min(max(fraction, _LEAST_FRACTION), 1.0))
    return _changed(replace(start, node=replace(start.node, device=device)), **sections)


def _fit_gemm(samples: Sequence[KernelSample], start: Fitted, fit_rates: bool) -> Fitted:
    """Return the fit of matrix products; with ``fit_rates`` a peak per dtype, of which the fraction is 1."""
    gemm, dtypes = start.profile.gemm, sorted({s.dtype for s in samples})
    peaks = {dtype: start.node.device.peak(dtype) for dtype in dtypes}
    parameters = [
        Parameter("tile_overhead", gemm.tile_overhead, 0.01, 1e4),
        Parameter("k_overhead", max(gemm.k_overhead, 1.0), 0.1, 1e4),
        Parameter("memory_fraction", gemm.memory_fraction, _LEAST_FRACTION, 1.0),
        _latency(gemm.latency_s, samples),
    ]
    if fit_rates:
        best = {d: max(s.work.executed_flop / s.seconds for s in samples if s.dtype == d) for d in dtypes}
        parameters += [Parameter(f"peak {d}", best[d], best[d] / 3, best[d] * 3) for d in dtypes]
    else:
        parameters += [
            Parameter("peak_fraction", gemm.peak_fraction, _LEAST_FRACTION, 1.0),
            Parameter("split_overhead", max(gemm.split_overhead, 1.0), 0.1, 1e4),
            Parameter("wave_quantisation", max(gemm.wave_quantisation, 0.1), 1e-3, 1.0),
        ]

    def fitted(values: Mapping[str, float]) -> Fitted:
        rates = {d: values.get(f"peak {d}", peaks[d]) for d in dtypes}
        device = start.node.device
        device = replace(device, peak_flop_per_s={**device.peak_flop_per_s, **rates})
        section = replace(
            gemm,
            peak_fraction=values.get("peak_fraction", 1.0),
            tile_overhead=values["tile_overhead"],
            k_overhead=values["k_overhead"],
            split_overhead=values.get("split_overhead", gemm.split_overhead),
            wave_quantisation=values.get("wave_quantisation", gemm.wave_quantisation),
            memory_fraction=values["memory_fraction"],
            latency_s=values["latency"],
        )
        return _changed(replace(start, node=replace(start.node, device=device)), gemm=section)

    return _fit(samples, parameters, fitted, "gemm")


def _fit_attention(samples: Sequence[KernelSample], start: Fitted, _: bool) -> Fitted:
    attention = start.profile.attention
    parameters = [
        Parameter("peak_fraction", attention.peak_fraction, _LEAST_FRACTION, 1.0),
        Parameter("half_sequence", max(attention.half_sequence, 1.0), 0.1, 1e5),
        _latency(attention.latency_s, samples),
    ]
    if any(s.family == "attention_backward" for s in samples):
        parameters.append(Parameter("backward_ratio", attention.backward_ratio, _LEAST_FRACTION, 1.0))
    if start.node.device.num_multiprocessors > 1:
        parameters.append(Parameter("wave_quantisation", max(attention.wave_quantisation, 0.1), 1e-3, 1.0))

    def fitted(values: Mapping[str, float]) -> Fitted:
        keys = {name: value for name, value in values.items() if name != "latency"}
        return _changed(start, attention=replace(attention, **keys, latency_s=values["latency"]))

    return _fit(samples, parameters, fitted, "attention")


def _fit_stream(section: str) -> Callable[[Sequence[KernelSample], Fitted, bool], Fitted]:
    def fit_stream(samples: Sequence[KernelSample], start: Fitted, _: bool) -> Fitted:
        stream = getattr(start.profile, section)
        parameters = [
            Parameter("memory_fraction", stream.memory_fraction, _LEAST_FRACTION, 1.0),
            _latency(stream.latency_s, samples),
        ]

        def fitted(values: Mapping[str, float]) -> Fitted:
            found = replace(stream, memory_fraction=values["memory_fraction"], latency_s=values["latency"])
            return _changed(start, **{section: found})

        return _fit(samples, parameters, fitted, section)

    return fit_stream


def _latency(start_s: float, samples: Sequence[KernelSample]) -> Parameter:
    """Return the fixed time, which is no longer than any call lasted by much."""
    shortest_s = min(s.seconds for s in samples)
    return Parameter("latency", min(start_s, shortest_s) or shortest_s, _LEAST_LATENCY_S, _MOST_LATENCY_S)


def _fit(
    samples: Sequence[KernelSample],
    parameters: Sequence[Parameter],
    fitted: Callable[[Mapping[str, float]], Fitted],
    section: str,
) -> Fitted:
    def predict(values: Mapping[str, float]) -> list[float]:
        trial = fitted(values)
        return predict_kernels(samples, trial.node, trial.profile)

    try:
        found = fitted(fit(parameters, predict, [s.seconds for s in samples]))
    except CalibrationError as error:
        raise CalibrationError(f"{section}: {error}") from None
    return replace(found, sections=(*found.sections, section))


def _changed(start: Fitted, **sections: object) -> Fitted:
    return replace(start, profile=replace(start.profile, **sections))  # type: ignore[arg-type]


_FITS: Final[Mapping[str, Callable[[Sequence[KernelSample], Fitted, bool], Fitted]]] = {
    "gemm": _fit_gemm,
    "attention": _fit_attention,
    "elementwise": _fit_stream("elementwise"),
    "optimizer": _fit_stream("optimizer"),
}
