"""The fit of a profile to measurements, and its errors."""

import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from backends.execution.result import Execution
from costmodels.calibration.document import profile_entry
from costmodels.calibration.fitting import Residuals
from costmodels.calibration.kernels import Fitted, fit_kernels, predict_kernels, section_of
from costmodels.calibration.network import MESSAGE, fit_network, predict_collectives
from costmodels.calibration.samples import CollectiveSample, KernelSample, Sample, is_held_out
from costmodels.calibration.spread import Erred, spread_of
from costmodels.collectives.traffic import TRAFFIC
from costmodels.profile import FLOAT8, SECTIONS, SPREAD, SPREAD_SECTION, STEP, packaged_entry
from costmodels.spread import NETWORK, Spread, kernel_place, spread_family, transfer_place
from costmodels.units import format_percent
from scenarios.errors import Origin, ScenarioError
from scenarios.summaries.as_json import as_json
from scenarios.summaries.measured.calibration import (
    CalibrationSummary,
    Certainty,
    FamilyResiduals,
    MachineOrigin,
    TablesOrigin,
    Unsettled,
)

MAX_FIT_ROWS: Final = 8000
"""Largest number of rows of one table in a fit, not counting held-out rows."""
KERNEL_FAMILIES: Final = ("gemm", "attention", "attention_backward", "decode", "elementwise", "optimizer")
"""Families of kernels, in the order of reports."""
NETWORK_FAMILIES: Final = (*TRAFFIC, MESSAGE)
"""Kinds of collectives, then messages, in the order of reports."""
_LEAST_POINTS: Final = 10
"""Fewest measurements for the fit of a section; with fewer it keeps its start."""
SPREAD_SOURCE: Final = (
    "log(measured/predicted) of what nothing was fitted to: the root mean square, by predicted time; what calls share: "
    "least squares to mean products of pairs"
)


class Point(Struct, frozen=True):
    """One measurement beside the prediction of the fitted profile."""

    sample: Sample
    predicted_s: float
    held_out: bool

    @property
    def family(self) -> str:
        """Return the family of a kernel, the kind of a collective."""
        return str(self.sample.family) if isinstance(self.sample, KernelSample) else self.sample.kind

    @property
    def words(self) -> str:
        """Return a description of the measured call, for people."""
        return self.sample.label or self.sample.key

    @property
    def spread_family(self) -> str:
        """Return the family of errors that the measured call belongs to."""
        return NETWORK if isinstance(self.sample, CollectiveSample) else spread_family(self.sample.family)

    @property
    def measured_s(self) -> float:
        """Return the measured seconds."""
        return self.sample.seconds


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile as the mapping of its file, the facts of its fit, and measurements beside predictions.

    ``step_times_s``: the times of plans that ran between the measurements, one per quiet round. ``executions``: of the
    request that was repeated between them, in order.
    """

    entry: Mapping[str, Any]
    summary: CalibrationSummary
    points: tuple[Point, ...] = field(repr=False)
    step_times_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    executions: tuple[Execution, ...] = field(default=(), repr=False)


def fit_sections(samples: Sequence[Sample], start: Fitted, *, fit_rates: bool) -> Fitted:
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


def calibrated(
    samples: Sequence[Sample],
    start: Fitted,
    one_in: int,
    seed: int,
    origin: MachineOrigin | TablesOrigin,
    *,
    fit_rates: bool,
) -> Calibration:
    """Return a profile fitted to the samples, without one in ``one_in``, which are held out to check it.

    ``start``: the profile of sections without enough samples.
    ``origin``: the source of the measurements.
    ``fit_rates``: the node's rates are unknown too.

    Raises ScenarioError if no section has enough samples.
    """
    fitted = fit_sections(_thinned(samples, one_in), start, fit_rates=fit_rates)
    if not fitted.sections:
        rule = f"{len(samples)} measurements are too few for any section of a profile, each needs {_LEAST_POINTS}"
        raise ScenarioError(Origin(option="calibrate"), "", rule, "give it a longer --budget, or a larger table")
    points = tuple(points_of(samples, fitted, one_in))
    families, spreads = residuals(points), measured_spreads(points)
    fitted = replace(fitted, profile=replace(fitted.profile, spread={**fitted.profile.spread, **spreads}))
    summary = CalibrationSummary(
        origin=origin,
        seed=seed,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=_versions(),
        fitted_sections=tuple(fitted.sections),
        held_out=f"one of {one_in}, by a hash",
        residuals=families,
        certainty=_certainty(fitted),
    )
    packaged = packaged_entry(start.profile.name)
    standing = {name: packaged[name] for name in (*SECTIONS, FLOAT8) if name in packaged}
    kept = {} if fit_rates else {name: part for name, part in standing.items() if name not in fitted.sections}
    named = origin.source if isinstance(origin, TablesOrigin) else None
    sources = {name: _source(name, fitted, families, named) for name in (*SECTIONS, "kernels")}
    for family in (*SPREAD, STEP):
        sources[f"{SPREAD_SECTION}.{family}"] = _spread_source(family, spreads, packaged[SPREAD_SECTION])
    sources["jitter"] = "Standard deviation of log(seconds) over processes that run the same step at the same time"
    entry = profile_entry(
        fitted.profile, fitted.node, sources=sources, measured=fit_rates, calibration=as_json(summary), kept=kept
    )
    return Calibration(entry, summary, points)


def _thinned(samples: Sequence[Sample], one_in: int) -> list[Sample]:
    """Return the samples of a fit: none held out, and at most MAX_FIT_ROWS of each section, spread evenly."""
    sections: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if not is_held_out(sample.key, one_in):
            sections[_section(sample)].append(sample)
    return [s for ours in sections.values() for s in ours[:: -(-len(ours) // MAX_FIT_ROWS)]]


def points_of(samples: Sequence[Sample], fitted: Fitted, one_in: int) -> Iterable[Point]:
    """Yield measurements beside what a profile predicts; one of ``one_in`` is held out."""
    kernels = [s for s in samples if isinstance(s, KernelSample)]
    predicted = dict(zip((s.key for s in kernels), predict_kernels(kernels, fitted.node, fitted.profile), strict=True))
    for sample in samples:
        if isinstance(sample, KernelSample):
            predicted_s = predicted[sample.key]
        else:
            (predicted_s,) = predict_collectives([sample], fitted.node, fitted.profile)
        yield Point(sample, predicted_s, is_held_out(sample.key, one_in))


def _certainty(fitted: Fitted) -> Certainty:
    """Return the relative standard errors of fitted parameters, and the reasons for parameters without one."""
    without = {path: e.at_limit for path, e in fitted.estimates.items() if e.standard_error is None}
    return Certainty(
        standard_errors={
            path: float(f"{estimate.standard_error:.3g}")
            for path, estimate in fitted.estimates.items()
            if estimate.standard_error is not None
        },
        without_standard_error=Unsettled(
            at_limit=tuple(path for path, at_limit in without.items() if at_limit),
            not_settled=tuple(path for path, at_limit in without.items() if not at_limit),
        ),
    )


def measured_spreads(points: Sequence[Point]) -> dict[str, Spread]:
    """Return the spread of held-out measurements around their predictions, by family; families without any are missing.

    Collectives and messages are one family.
    """
    return {family: spread_of(calls) for family, calls in held_out_calls(points).items()}


def held_out_calls(points: Sequence[Point]) -> dict[str, list[Erred]]:
    """Return held-out calls by family, in the form of ``spread_of``."""
    calls: dict[str, list[Erred]] = defaultdict(list)
    for point in points:
        if point.held_out:
            calls[point.spread_family].append(_erred(point))
    return calls


def _erred(point: Point) -> Erred:
    sample = point.sample
    if isinstance(sample, CollectiveSample):
        place = transfer_place((sample.kind, sample.ranks_per_node), sample.num_bytes)
    else:
        place = kernel_place(sample.family, sample.kernel, sample.work)
    return Erred(place, point.predicted_s, sample.seconds)


def _spread_source(family: str, measured: Mapping[str, Spread], packaged: Mapping[str, Any]) -> str:
    if family not in measured:
        return str(packaged[family]["source"])
    return SPREAD_SOURCE


def families_of(points: Sequence[Point]) -> list[str]:
    """Return the families and kinds of the points: kernels first, then the network's."""
    known = {family: place for place, family in enumerate((*KERNEL_FAMILIES, *NETWORK_FAMILIES))}
    return sorted(dict.fromkeys(p.family for p in points), key=known.__getitem__)


def residuals(points: Sequence[Point]) -> dict[str, FamilyResiduals]:
    """Return the errors of the fit by family, on fitted and on held-out points."""
    return {family: _residuals([p for p in points if p.family == family]) for family in families_of(points)}


def _residuals(points: Sequence[Point]) -> FamilyResiduals:
    fitted, kept = (
        Residuals.of([p.predicted_s for p in ours], [p.measured_s for p in ours])
        for ours in ([p for p in points if p.held_out is held_out] for held_out in (False, True))
    )
    return FamilyResiduals(
        points=fitted.num_points,
        mean=_figure(fitted, fitted.mean),
        p50=_figure(fitted, fitted.p50),
        p90=_figure(fitted, fitted.p90),
        bias=_figure(fitted, fitted.bias),
        sigma=_figure(fitted, fitted.sigma),
        held_out_points=kept.num_points,
        held_out_mean=_figure(kept, kept.mean),
        held_out_p50=_figure(kept, kept.p50),
        held_out_p90=_figure(kept, kept.p90),
        held_out_bias=_figure(kept, kept.bias),
        held_out_sigma=_figure(kept, kept.sigma),
    )


def _figure(errors: Residuals, value: float) -> float | None:
    """Return a figure as a profile's file states it, None without points."""
    return round(value, 4) if errors.num_points else None


def _source(section: str, fitted: Fitted, families: Mapping[str, FamilyResiduals], origin: str | None) -> str:
    if section not in fitted.sections:
        return f"Not measured: as in the packaged profile {fitted.profile.name}"
    own = {
        "attention": ("attention", "attention_backward"), "network": NETWORK_FAMILIES, "kernels": KERNEL_FAMILIES
    }.get(section, (section,))  # fmt: skip
    rows = [(name, families[name]) for name in own if name in families]
    errors = ", ".join(
        f"{name} {format_percent(row.mean or 0.0)} over {row.points:,} rows, "
        f"{format_percent(row.held_out_mean or 0.0)} over {row.held_out_points:,} that nothing was fitted to"
        for name, row in rows
    )
    return f"Fitted{f' to {origin}' if origin else ''}; mean absolute error: {errors}"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("meshtwin", "torch", "scipy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
