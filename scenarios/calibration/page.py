"""The page of a calibration: errors by family, fitted parameters with uncertainty, origin of the measurements."""

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from backends.execution.measuring.storage import Storage
from costmodels.calibration.document import CalibratedProfile, parse_calibrated
from costmodels.calibration.network import MESSAGE
from costmodels.hardware import load_node
from costmodels.spread import NETWORK, Spread, spread_family
from costmodels.units import format_change, format_percent, format_rate, format_time
from scenarios.calibration.calibration import NETWORK_FAMILIES, Calibration, Point, families_of
from scenarios.calibration.parameters import parameter_sections
from scenarios.calibration.plots import (
    FITTED,
    HELD_OUT,
    against_plot,
    collective_plot,
    distribution_plot,
    error_of,
    error_plot,
    group_colour,
    group_words,
    groups_of,
    halves_legend,
    percent_off,
)
from scenarios.report.blocks import (
    Block,
    Card,
    Fact,
    Facts,
    Fold,
    Group,
    Headline,
    Legend,
    Line,
    Panels,
    Piece,
    Section,
    Table,
)
from scenarios.report.rendering.html_page import write_page
from scenarios.summaries.measured.calibration import CalibrationSummary, FamilyResiduals, MachineOrigin, TablesOrigin

FAMILIES: Final = {
    "gemm": "Matrix products",
    "attention": "Fused attention",
    "attention_backward": "Fused attention, backward",
    "decode": "Attention of new tokens (decoding)",
    "elementwise": "Memory-bound kernels",
    "optimizer": "Optimizer",
}
_CARDS: Final = {
    "Matrix products": ("gemm",),
    "Fused attention": ("attention", "attention_backward"),
    "Decoding": ("decode",),
    "Memory-bound kernels": ("elementwise",),
    "Optimizer": ("optimizer",),
    "Collectives, messages": NETWORK_FAMILIES,
}
_FARTHEST: Final = 8
_MAX_WORDS: Final = 150
_LEAD: Final = (
    "A point per measurement. Band and dashed bell are the profile's standard deviation, which depends on the "
    "length of a call: the root mean square of the held-out errors."
)


def write_calibration_page(calibration: Calibration, path: Path, command: str) -> None:
    """Write the page of a calibration. ``command``: the command that made it."""
    summary, points = calibration.summary, calibration.points
    fitted = parse_calibrated("fitted", calibration.entry)
    spread = fitted.profile.spread
    sections = [_overview(summary.residuals)]
    sections += [_family(f, points, spread.get(spread_family(f))) for f in families_of(points) if f in FAMILIES]
    network = [p for p in points if p.family in NETWORK_FAMILIES]
    if network:
        sections += [_family(NETWORK, points, spread[NETWORK]), _collectives(network, fitted)]
    sections[1] = replace(sections[1], lead=_LEAD)
    sections += parameter_sections(calibration.entry, summary.fitted_sections, summary.certainty)
    sections.append(_origin(summary, command))
    blocks: list[Block] = [Headline(path.stem, _subtitle(fitted.node, summary), _cards(points)), *sections]
    write_page(path, blocks)


def _subtitle(node: str, summary: CalibrationSummary) -> str:
    origin = summary.origin
    if isinstance(origin, TablesOrigin):
        how = f"fitted to {len(origin.tables)} table{'s' if len(origin.tables) > 1 else ''}"
    else:
        how = f"measured with {origin.processes} processes on {origin.machine.processor}"
    return f"profile of {node} · {how} · {summary.date[:10]}"


def _of(family: str, points: Sequence[Point]) -> list[Point]:
    return [p for p in points if (p.family in NETWORK_FAMILIES if family == NETWORK else p.family == family)]


def _cards(points: Sequence[Point]) -> tuple[Card, ...]:
    """Return a card per family: the mean error on held-out points."""
    cards = []
    for words, families in _CARDS.items():
        ours = [p for p in points if p.family in families]
        kept = [p for p in ours if p.held_out]
        if ours:
            errors = [abs(exp(error_of(p)) - 1) for p in kept or ours]
            which = f"{len(kept):,} held out" if kept else f"{len(ours):,} fitted"
            cards.append(Card(words, format_percent(sum(errors) / len(errors)), f"mean error on {which}"))
    return tuple(cards)


def _overview(residuals: Mapping[str, FamilyResiduals]) -> Section:
    rows = []
    for family, row in residuals.items():
        fitted = (f"{row.points:,}", _percent(row.mean), _change(row.bias), _percent(row.p50), _percent(row.p90))
        kept = (_percent(row.held_out_mean), _change(row.held_out_bias))
        kept_below = (_percent(row.held_out_p50), _percent(row.held_out_p90))
        rows.append((_name(family), *fitted, f"{row.held_out_points:,}", *kept, *kept_below))
    heads = ("mean error", "with its sign", "half below", "9 of 10 below")
    columns = ("", "fitted", *heads, "held out", *heads)
    lead = (
        "How far predictions are from measurements, |predicted/measured - 1|: on the left what was fitted, on the "
        "right what was kept from the fit, which is how good the profile is elsewhere."
    )
    return Section("Errors", (Table(columns, rows),), lead)


def _name(family: str) -> str:
    return "Messages" if family == MESSAGE else FAMILIES.get(family, family.replace("_", " ").capitalize())


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else format_percent(fraction)


def _change(fraction: float | None) -> str:
    return "–" if fraction is None else format_change(fraction).replace("-", "−")


def _family(family: str, points: Sequence[Point], spread: Spread | None) -> Section:
    ours = _of(family, points)
    drawn = Panels(
        (
            ("Predicted against measured", against_plot(ours)),
            ("Error over length", error_plot(ours, spread)),
            ("Distribution of errors", distribution_plot(ours, spread)),
        )
    )
    heading = FAMILIES.get(family, "Collectives and messages")
    return Section(heading, (Legend(halves_legend(ours)), drawn, _farthest(ours)))


def _farthest(points: Sequence[Point]) -> Fold:
    """Return the points with the largest errors, folded away."""
    chosen = sorted(points, key=lambda p: -abs(error_of(p)))[:_FARTHEST]
    rows = [
        (
            p.words if len(p.words) <= _MAX_WORDS else f"{p.words[: _MAX_WORDS - 1]}…",
            (HELD_OUT if p.held_out else FITTED)[0], format_time(p.measured_s), format_time(p.predicted_s),
            percent_off(exp(error_of(p))),
        )
        for p in chosen
    ]  # fmt: skip
    columns = ("measurement", "", "measured", "predicted", "off by")
    return Fold(f"The {len(rows)} farthest off", (Table(columns, rows, text_columns=2, breaks_words=True),))


def _collectives(points: Sequence[Point], calibrated: CalibratedProfile) -> Section:
    node = calibrated.node_spec(load_node(calibrated.node))
    by_kind = {kind: [p for p in points if p.family == kind] for kind in NETWORK_FAMILIES}
    parts: list[Block] = [Legend([(group_words(group), group_colour(group)) for group in groups_of(points)])]
    for heading, is_rate in (("Time", False), ("Bus bandwidth", True)):
        plots = [
            (_name(kind), collective_plot(ours, node, calibrated.profile, is_rate=is_rate))
            for kind, ours in by_kind.items() if ours
        ]  # fmt: skip
        parts.append(Group((Panels(plots),), heading))
    lead = (
        "Measured points, hollow if held out, and the fitted curves. Bus bandwidth is what every link would carry "
        "in a ring, as nccl-tests counts it."
    )
    return Section("Collectives over bytes", tuple(parts), lead)


def _storage_words(storage: Storage) -> str:
    """Return the rates of the drive, and the caches that were bypassed."""
    written, read = (format_rate(rate, "B/s") for rate in (storage.write_bytes_per_s, storage.read_bytes_per_s))
    where = f" on {storage.filesystem}" if storage.filesystem else ""
    return f"{written} written and {read} read{where}, by one process; bypassed: {storage.bypassed}"


def _origin(summary: CalibrationSummary, command: str) -> Section:
    """Return the origin of the measurements."""
    origin = summary.origin
    measured = _tables_rows(origin) if isinstance(origin, TablesOrigin) else _machine_rows(origin)
    rows: list[tuple[str, Line]] = [
        ("command", (Piece(command, "code"),)),
        *measured,
        ("held out", summary.held_out),
        ("seed", str(summary.seed)),
        ("date", summary.date),
        ("versions", ", ".join(f"{name} {version}" for name, version in summary.versions.items())),
    ]
    return Section("How it was made", (Facts(tuple(Fact(*row) for row in rows)),))


def _machine_rows(origin: MachineOrigin) -> list[tuple[str, str]]:
    machine, runs = origin.machine, origin.runs
    rows = [
        ("machine", f"{machine.processor}, {machine.cores} cores, {machine.memory} of memory"),
        ("processes", f"{origin.processes} at the same time"),
        ("measured", origin.measured),
        ("runs that count", f"{runs.quiet:,} of {runs.all:,}: those that got the most of the processor"),
        ("handoff between streams", format_time(1e-6 * origin.handoff_us)),
    ]
    if origin.drive and origin.drive.storage:
        rows.append(("storage", _storage_words(origin.drive.storage)))
    copies = origin.host_copy_bytes_per_s.items()
    rows.append(("copies", ", ".join(f"{k.replace('_', ' ')} {format_rate(v, 'B/s')}" for k, v in copies)))
    return rows


def _tables_rows(origin: TablesOrigin) -> list[tuple[str, str]]:
    rows = [("tables", ", ".join(origin.tables))]
    rows += [("system", origin.system)] if origin.system else []
    rows += [("source", origin.source)] if origin.source else []
    return rows
