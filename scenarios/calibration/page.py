"""The page of a calibration: how well each family is predicted, what was fitted and how surely, and where it was."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any, Final

from costmodels.calibration.document import parse_calibrated
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
    """Write the page of a calibration that a command made."""
    entry, points = calibration.entry, calibration.points
    about = entry["calibration"]
    sections = [_overview(about["residuals"])]
    spread = parse_calibrated("fitted", entry).profile.spread
    sections += [_family(f, points, spread.get(spread_family(f))) for f in families_of(points) if f in FAMILIES]
    network = [p for p in points if p.family in NETWORK_FAMILIES]
    if network:
        sections += [_family(NETWORK, points, spread[NETWORK]), _collectives(network, entry)]
    sections[1] = replace(sections[1], lead=_LEAD)
    sections += [*parameter_sections(entry), _origin(about, command)]
    blocks: list[Block] = [Headline(path.stem, _subtitle(entry), _cards(points)), *sections]
    write_page(path, blocks)


def _subtitle(entry: Mapping[str, Any]) -> str:
    about = entry["calibration"]
    if "tables" in about:
        how = f"fitted to {len(about['tables'])} table{'s' if len(about['tables']) > 1 else ''}"
    else:
        how = f"measured with {about['processes']} processes on {about['machine']['processor']}"
    return f"profile of {entry['node']} · {how} · {about['date'][:10]}"


def _of(family: str, points: Sequence[Point]) -> list[Point]:
    return [p for p in points if (p.family in NETWORK_FAMILIES if family == NETWORK else p.family == family)]


def _cards(points: Sequence[Point]) -> tuple[Card, ...]:
    """Return a card per family: the mean error on what nothing was fitted to."""
    cards = []
    for words, families in _CARDS.items():
        ours = [p for p in points if p.family in families]
        kept = [p for p in ours if p.held_out]
        if ours:
            errors = [abs(exp(error_of(p)) - 1) for p in kept or ours]
            which = f"{len(kept):,} held out" if kept else f"{len(ours):,} fitted"
            cards.append(Card(words, format_percent(sum(errors) / len(errors)), f"mean error on {which}"))
    return tuple(cards)


def _overview(residuals: Mapping[str, Mapping[str, float]]) -> Section:
    rows = []
    for family, row in residuals.items():
        cells = [_name(family)]
        for prefix in ("", "held_out_"):
            cells.append(f"{row[f'{prefix}points']:,}")
            cells += [_cell(row, f"{prefix}{key}") for key in ("mean", "bias", "p50", "p90")]
        rows.append(cells)
    heads = ("mean error", "with its sign", "half below", "9 of 10 below")
    columns = ("", "fitted", *heads, "held out", *heads)
    lead = (
        "How far predictions are from measurements, |predicted/measured - 1|: on the left what was fitted, on the "
        "right what was kept from the fit, which is how good the profile is elsewhere."
    )
    return Section("Errors", (Table(columns, rows),), lead)


def _name(family: str) -> str:
    return "Messages" if family == MESSAGE else FAMILIES.get(family, family.replace("_", " ").capitalize())


def _cell(row: Mapping[str, float], key: str) -> str:
    if key not in row:
        return "–"
    return format_change(row[key]).replace("-", "−") if key.endswith("bias") else format_percent(row[key])


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
    """Return the points that are farthest off, folded away."""
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


def _collectives(points: Sequence[Point], entry: Mapping[str, Any]) -> Section:
    calibrated = parse_calibrated("fitted", entry)
    node = calibrated.node_spec(load_node(entry["node"]))
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


def _storage_words(storage: Mapping[str, Any]) -> str:
    """Return how fast the drive is, and what was kept from answering in its place."""
    rates = " and ".join(
        f"{format_rate(storage[f'{verb}_bytes_per_s'], 'B/s')} {words}"
        for verb, words in (("write", "written"), ("read", "read"))
    )
    where = f" on {storage['filesystem']}" if storage["filesystem"] else ""
    return f"{rates}{where}, by one process; bypassed: {storage['bypassed']}"


def _origin(about: Mapping[str, Any], command: str) -> Section:
    """Return where and how the measurements came about."""
    rows: list[tuple[str, Line]] = [("command", (Piece(command, "code"),))]
    if "machine" in about:
        machine = about["machine"]
        where = f"{machine['processor']}, {machine['cores']} cores, {machine['memory']} of memory"
        rows += [
            ("machine", where),
            ("processes", f"{about['processes']} at the same time"),
            ("measured", about["measured"]),
            ("runs that count", f"{about['runs']['quiet']:,} of {about['runs']['all']:,}: those that got the most of "
             "the processor"),
            ("handoff between streams", format_time(1e-6 * about["handoff_us"])),
        ]  # fmt: skip
        copies = about["host_copy_bytes_per_s"].items()
        if about.get("storage"):
            rows.append(("storage", _storage_words(about["storage"])))
        rows.append(("copies", ", ".join(f"{k.replace('_', ' ')} {format_rate(v, 'B/s')}" for k, v in copies)))
    else:
        rows.append(("tables", ", ".join(about["tables"])))
        rows += [(key, about[key]) for key in ("system", "source") if key in about]
    rows += [
        ("held out", about["held_out"]),
        ("seed", str(about["seed"])),
        ("date", about["date"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in about["versions"].items())),
    ]
    return Section("How it was made", (Facts(tuple(Fact(*row) for row in rows)),))
