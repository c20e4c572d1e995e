"""Fit the kernel part of a profile: matrix products, fused attention, memory-bound kernels, the optimizer.

The predictions are the simulator's own (``roofline``), so the fit and the simulation use the same functions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.calibration.batches import batches, predict, predict_by_kernel
from costmodels.calibration.document import file_key
from costmodels.calibration.fitting import CalibrationError, Parameter, fit, values_of
from costmodels.calibration.products import LIMITS, fit_products
from costmodels.calibration.samples import KernelSample
from costmodels.calibration.uncertainty import Estimate
from costmodels.hardware import NodeSpec
from costmodels.profile import Profile
from costmodels.timing.streaming import KernelProfile, StreamProfile
from costmodels.timing.times import Array

_LEAST_FRACTION: Final = 0.01
_LEAST_LATENCY_S: Final = 1e-8
_MOST_LATENCY_S: Final = 0.1
_OUTLIER: Final = 0.05
"""Scale of the loss for a device with a data sheet.

Libraries choose kernels by unknown rules, so residuals have long tails.
"""
_STREAMS: Final = ("elementwise", "optimizer")
_CACHE: Final = {"cache_bytes": (1e3, 1e9), "cache_speedup": (1.01, 30.0)}
_ALTERNATIONS: Final = 2
"""Number of alternations: cache effects between sizes of one kernel are refitted once kernels have own parameters."""
_LEAST_OF_KERNEL: Final = 4
"""Fewest measurements of one kernel for two parameters of its own."""

_SCORE_S: Final = (1e-11, 1e-7)
"""Limits of a processor's softmax time per score."""
_ATTENTION: Final = {
    "peak_fraction": (0.2, 1.0), "throttle": (1e-3, 0.6), "throttle_after_s": (1e-5, 0.1), "step_s": (1e-9, 3e-6),
    "tail": (1e-3, 1.0), "memory_fraction": (0.05, 1.0), "cache_fraction": (0.01, 4.0), "cache_speedup": (1.01, 8.0),
    "latency_s": (5e-7, 2.5e-5),
}  # fmt: skip
_DECODE: Final = {
    "block_s": (1e-8, 2e-5), "step_s": (1e-9, 5e-6), "split_s": (1e-8, 2e-5),
    "block_bandwidth_bytes_per_s": (3e9, 3e11), "memory_fraction": (0.2, 1.0), "query_passes": (0.1, 60.0),
    "wave_quantisation": (0.01, 1.0), "overlap": (1.0, 20.0), "latency_s": (5e-7, 2.5e-5),
}  # fmt: skip
"""Limits of every fitted parameter on a device with the rates of its data sheet."""


class Fitted(Struct, frozen=True):
    """A profile, the node to whose rates its fractions refer, and the fitted sections.

    ``estimates``: every fitted parameter by its dotted path in the profile's file. Its standard error treats all other
        parameters of its section as free, and those of other sections as known.
    """

    profile: Profile
    node: NodeSpec
    sections: tuple[str, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    def with_section(self, section: str, estimates: Mapping[str, Estimate]) -> "Fitted":
        """Return the result with one more fitted section and its estimates."""
        sections = tuple(dict.fromkeys((*self.sections, section)))
        return replace(self, sections=sections, estimates={**self.estimates, **estimates})


def predict_kernels(samples: Sequence[KernelSample], node: NodeSpec, profile: Profile) -> list[float]:
    """Return the simulator's seconds for each kernel alone on the device."""
    found: list[float] = predict(batches(samples), node, profile).tolist()
    return found


def section_of(sample: KernelSample) -> str:
    """Return the profile's section with the parameters of a sample's family."""
    return "attention" if sample.family == "attention_backward" else str(sample.family)


def fit_kernels(samples: Sequence[KernelSample], start: Fitted, *, fit_rates: bool) -> Fitted:
    """Return ``start`` with every kernel section fitted that has samples.

    ``fit_rates``: the node's peaks (per dtype) and memory bandwidth are unknown and fitted too; fractions then refer to
        the fitted rates. Otherwise the node's rates stay. Kernels measured by name get parameters of their own, on top
        of their family's.

    Raises CalibrationError for a section with fewer samples than parameters; only a GPU's matrix products stay as they
    are then.
    """
    by_section: dict[str, list[KernelSample]] = {name: [] for name in _FITS}
    for sample in samples:
        section = section_of(sample)
        if section not in by_section:
            raise CalibrationError(f"measurement {sample.key!r}: kernels of the family {section!r} are not fitted")
        by_section[section].append(sample)
    start = replace(start, profile=replace(start.profile, kernels={}))
    if fit_rates:
        start = _with_bandwidth(start, samples)
    for section, ours in by_section.items():
        if ours:
            start = _FITS[section](ours, start, fit_rates)
    start = _with_kernels(start, samples)
    for _ in range(_ALTERNATIONS if fit_rates else 0):
        for section in _STREAMS:
            if by_section[section]:
                start = _fit_section(section, _CACHE)(by_section[section], start, fit_rates)
        start = _with_kernels(start, samples)
    return start


def _with_bandwidth(start: Fitted, samples: Sequence[KernelSample]) -> Fitted:
    """Return ``start`` with the largest memory rate of any memory-bound kernel, cached or not.

    The fractions are rescaled, so that sections without samples keep their bytes per second.
    """
    rates = [s.work.num_bytes / s.seconds for s in samples if s.family in {"elementwise", "optimizer"}]
    if not rates:
        return start
    before = start.node.device.memory_bandwidth_bytes_per_s
    device = replace(start.node.device, memory_bandwidth_bytes_per_s=max(rates))
    sections = {}
    for name in ("gemm", "attention", "decode", "elementwise", "optimizer"):
        section = getattr(start.profile, name)
        fraction = section.memory_fraction * before / max(rates)
        sections[name] = replace(section, memory_fraction=min(max(fraction, _LEAST_FRACTION), 1.0))
    return _changed(replace(start, node=replace(start.node, device=device)), **sections)


def _fit_gemm(samples: Sequence[KernelSample], start: Fitted, fit_rates: bool) -> Fitted:
    """Return the fit of matrix products; on a GPU it includes the library's tiles and splits.

    A GPU's products have so many parameters that few samples cannot settle them; then their section stays as it is.
    """
    if fit_rates:
        return _fit_core(samples, start)
    if len(samples) < len(LIMITS):
        return start
    try:
        gemm, estimates = fit_products(samples, start.node.device, start.profile.gemm)
    except CalibrationError as error:
        raise CalibrationError(f"gemm: {error}") from None
    return _changed(start, gemm=gemm).with_section("gemm", _by_path("gemm", estimates))


def _fit_core(samples: Sequence[KernelSample], start: Fitted) -> Fitted:
    """Return the fit of matrix products on a CPU core: a peak per dtype, with a fraction of 1."""
    gemm, dtypes = start.profile.gemm, sorted({s.dtype for s in samples})
    best = {d: max(s.work.executed_flop / s.seconds for s in samples if s.dtype == d) for d in dtypes}
    parameters = [
        Parameter("cache_bandwidth_bytes_per_s", gemm.cache_bandwidth_bytes_per_s, 1e9, 1e13),
        Parameter("k_overhead", max(gemm.k_overhead, 1.0), 0.1, 1e4),
        Parameter("memory_fraction", gemm.memory_fraction, _LEAST_FRACTION, 1.0),
        _latency(gemm.latency_s, samples),
        *(Parameter(f"measured.peak.{d}", best[d], best[d] / 3, best[d] * 3) for d in dtypes),
    ]

    def fitted(values: Mapping[str, float]) -> Fitted:
        rates = {d: values[f"measured.peak.{d}"] for d in dtypes}
        device = start.node.device
        device = replace(device, peak_flop_per_s={**device.peak_flop_per_s, **rates})
        own = {name: value for name, value in values.items() if not name.startswith("measured.")}
        section = replace(gemm, peak_fraction=1.0, **own)
        return _changed(replace(start, node=replace(start.node, device=device)), gemm=section)

    return _fit(samples, parameters, fitted, "gemm", by_length=True)


def _fit_attention(samples: Sequence[KernelSample], start: Fitted, fit_rates: bool) -> Fitted:
    limits = {"peak_fraction": (_LEAST_FRACTION, 1.0), "memory_fraction": (_LEAST_FRACTION, 1.0)} if fit_rates else {}
    chosen: dict[str, tuple[float, float]] = limits or dict(_ATTENTION)
    if fit_rates:
        chosen |= {"latency_s": (_LEAST_LATENCY_S, _MOST_LATENCY_S), "score_s": _SCORE_S}
    if any(s.family == "attention_backward" for s in samples):
        chosen["backward_ratio"] = (_LEAST_FRACTION, 1.0)
    return _fit_section("attention", chosen)(samples, start, fit_rates)


def _fit_section(
    section: str, limits: Mapping[str, tuple[float, float]]
) -> Callable[[Sequence[KernelSample], Fitted, bool], Fitted]:
    """Return a function that fits some parameters of a section, starting from their values."""

    def fit_section(samples: Sequence[KernelSample], start: Fitted, _: bool) -> Fitted:
        before = getattr(start.profile, section)
        parameters = [Parameter(name, getattr(before, name), *limits[name]) for name in limits]

        def fitted(values: Mapping[str, float]) -> Fitted:
            return _changed(start, **{section: replace(before, **values)})

        return _fit(samples, parameters, fitted, section, outlier=_OUTLIER)

    return fit_section


def _fit_stream(section: str) -> Callable[[Sequence[KernelSample], Fitted, bool], Fitted]:
    def fit_stream(samples: Sequence[KernelSample], start: Fitted, fit_rates: bool) -> Fitted:
        stream: StreamProfile = getattr(start.profile, section)
        parameters = [
            Parameter("memory_fraction", stream.memory_fraction, _LEAST_FRACTION, 1.0),
            _latency(stream.latency_s, samples),
        ]
        if fit_rates:
            sizes = sorted(s.work.num_bytes for s in samples)
            least, most = max(sizes[0], 1.0), max(sizes[-1], 2.0 * sizes[0], 2.0)
            parameters.append(Parameter("cache_bytes", stream.cache_bytes or (least * most) ** 0.5, least, most))
            parameters.append(Parameter("cache_speedup", max(stream.cache_speedup, 2.0), 1.01, 30.0))

        def fitted(values: Mapping[str, float]) -> Fitted:
            return _changed(start, **{section: replace(stream, **values)})

        return _fit(samples, parameters, fitted, section)

    return fit_stream


def _with_kernels(start: Fitted, samples: Sequence[KernelSample]) -> Fitted:
    """Return ``start`` with a slowdown and a fixed time for every kernel with enough measurements by name."""
    by_kernel: dict[str, list[KernelSample]] = {}
    for sample in samples:
        if sample.kernel:
            by_kernel.setdefault(sample.kernel, []).append(sample)
    found = {
        kernel: _fit_kernel(ours, start)
        for kernel, ours in sorted(by_kernel.items()) if len(ours) >= _LEAST_OF_KERNEL
    }  # fmt: skip
    if not found:
        return start
    own = {kernel: KernelProfile(**values_of(ours)) for kernel, ours in found.items()}
    paths = {f"kernels.{kernel}.{file_key(name)}": e for kernel, ours in found.items() for name, e in ours.items()}
    return _changed(start, kernels=own).with_section("kernels", paths)


def _fit_kernel(samples: Sequence[KernelSample], start: Fitted) -> dict[str, Estimate]:
    parameters = [Parameter("slowdown", 1.0, 0.02, 50.0), _latency(min(s.seconds for s in samples), samples)]
    by_kernel = predict_by_kernel(batches(samples), start.node, start.profile)

    def predicted(values: Mapping[str, float]) -> Array:
        return by_kernel(KernelProfile(**values))

    return fit(parameters, predicted, [s.seconds for s in samples], by_length=True)


def _latency(start_s: float, samples: Sequence[KernelSample]) -> Parameter:
    """Return the fixed time as a parameter; the search starts no higher than the shortest call."""
    shortest_s = min(s.seconds for s in samples)
    return Parameter("latency_s", min(start_s, shortest_s) or shortest_s, _LEAST_LATENCY_S, _MOST_LATENCY_S)


def _fit(
    samples: Sequence[KernelSample],
    parameters: Sequence[Parameter],
    fitted: Callable[[Mapping[str, float]], Fitted],
    section: str,
    outlier: float = 0.3,
    *,
    by_length: bool = False,
) -> Fitted:
    ours = batches(samples)

    def predicted(values: Mapping[str, float]) -> Array:
        trial = fitted(values)
        return predict(ours, trial.node, trial.profile)

    try:
        found = fit(parameters, predicted, [s.seconds for s in samples], outlier=outlier, by_length=by_length)
    except CalibrationError as error:
        raise CalibrationError(f"{section}: {error}") from None
    return fitted(values_of(found)).with_section(section, _by_path(section, found))


def _by_path(section: str, found: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return estimates by their dotted paths in the profile's file."""
    return {name if "." in name else f"{section}.{file_key(name)}": e for name, e in found.items()}


def _changed(start: Fitted, **sections: object) -> Fitted:
    return replace(start, profile=replace(start.profile, **sections))


_FITS: Final[Mapping[str, Callable[[Sequence[KernelSample], Fitted, bool], Fitted]]] = {
    "gemm": _fit_gemm,
    "elementwise": _fit_stream("elementwise"),
    "optimizer": _fit_stream("optimizer"),
    "attention": _fit_attention,
    "decode": _fit_section("decode", _DECODE),
}
