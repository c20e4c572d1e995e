"""Data of one timeline, or of two below each other, op by op: one packed block for ``op_lanes.js`` to draw."""

import base64
import gzip
import json
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from scenarios.report.charts.gantt import evenly
from scenarios.report.charts.op_colours import OpColours, op_colours
from scenarios.report.charts.packed_lanes import OpLanes
from traces.comparison.alignment import Alignment
from traces.comparison.compare import Comparison
from traces.comparison.sides import RankPair, Side, Sides, sides
from traces.timeline import NO_INDEX, Floats, Rows, Timeline, TimelineBuilder

MAX_PAIRS: Final = 8
MAX_OPS: Final = 150_000
"""Largest number of bars drawn one by one, of both timelines and the ops aligned with them: about 2 MB of the page."""
_ALONE: Final = ("a red edge: one timeline alone has it", "#c8402f")
_MERGED: Final = ("several short ops", "#97a1ae")
_NONE: Final = -1
_HIDDEN: Final = -2
"""Partner index of an op without a partner, or whose partner shares a bar with others."""
_TICKS: Final = 1 << 31
_RUNS: Final = 2_000
"""Resolution of shared bars: a run of ops ends where the next op starts later by more than this part of the axis."""

Columns = dict[str, NDArray[Any]]


class _Lane(Struct, frozen=True):
    """The ops of one stream of one rank on one side: indices in the side, by start."""

    rank: str
    stream: str
    side: int
    positions: Rows


class _Drawn(Struct, frozen=True):
    """What is drawn: the rows of both timelines, their alignment, and how long the axis is.

    ``names``: what the timelines are called; one name where there is only the first.
    """

    sides: Sides
    alignment: Alignment
    names: tuple[str, ...]
    duration_s: float


def op_lanes(comparison: Comparison, names: tuple[str, str], max_ops: int = MAX_OPS) -> OpLanes:
    """Return the drawing of a comparison; ``names``: the names of the two timelines.

    Of more than ``max_ops`` ops the longest are drawn one by one, and each run of the others as one bar.
    """
    longer_s = max(comparison.first_s, comparison.second_s)
    return _drawing(_Drawn(comparison.sides, comparison.alignment, _short_names(names), longer_s), max_ops)


def timeline_lanes(timeline: Timeline, max_ops: int = MAX_OPS) -> OpLanes:
    """Return the drawing of one timeline, a lane per stream; ``max_ops`` as in ``op_lanes``."""
    both, none = sides(timeline, TimelineBuilder().build()), np.empty(0, dtype=np.int64)
    alone = Alignment(none, none, none.astype(np.bool_), np.arange(len(both.first)), none)
    return _drawing(_Drawn(both, alone, ("",), timeline.duration_s), max_ops)


def _drawing(drawn: _Drawn, max_ops: int) -> OpLanes:
    both = drawn.sides
    present = [number for number in range(len(both.pairs)) if np.any(both.first.pair == number)
               or np.any(both.second.pair == number)]  # fmt: skip
    chosen = evenly(present, MAX_PAIRS)
    lanes = [lane for number in chosen for lane in _lanes(drawn, number)]
    ticks_s = drawn.duration_s / _TICKS or 1.0
    colours = op_colours(both)
    columns, edges, num_merged = _columns(drawn, lanes, colours, max_ops)
    header = {
        "ticks": _TICKS,
        "tick_s": ticks_s,
        "sides": list(drawn.names),
        "names": list(both.names),
        "colours": [colour for _, colour in colours.legend],
        "lanes": [
            {"rank": lane.rank, "stream": lane.stream, "side": lane.side, "begin": begin, "end": end}
            for lane, (begin, end) in zip(lanes, edges, strict=True)
        ],
    }
    left_out = []
    if len(chosen) < len(present):
        left_out.append(f"{len(chosen)} of {len(present)} ranks are drawn")
    if num_merged:
        shown = sum(len(lane.positions) for lane in lanes)
        left_out.append(
            f"of {shown:,} ops {shown - num_merged:,}, the longest among them, are drawn one by one; "
            f"the other {num_merged:,} as grey bars, one for each run of neighbours"
        )
    note = "; ".join(left_out)
    return OpLanes(
        data=_packed(header, columns),
        legend=(*colours.legend, *_marks(drawn, num_merged)),
        note=f"{note[0].upper()}{note[1:]}." if note else "",
    )


def _marks(drawn: _Drawn, num_merged: int) -> list[tuple[str, str]]:
    """Return the legend of the marks that bars may have besides their colour."""
    alone = len(drawn.names) > 1 and len(drawn.alignment.first_alone) + len(drawn.alignment.second_alone)
    return [*([_ALONE] if alone else []), *([_MERGED] if num_merged else [])]


def _lanes(drawn: _Drawn, number: int) -> list[_Lane]:
    """Return a lane per stream and side of one pair of ranks."""
    both, lanes = drawn.sides, []
    by_stream = [_by_stream(side, number) for side in (both.first, both.second)]
    for code in sorted(by_stream[0].keys() | by_stream[1].keys()):
        for index in range(len(drawn.names)):
            positions = by_stream[index].get(code, np.empty(0, dtype=np.int64))
            lanes.append(_Lane(_pair_label(both.pairs[number]), both.streams[code], index, positions))
    return lanes


def _by_stream(side: Side, number: int) -> dict[int, Rows]:
    positions = np.flatnonzero(side.pair == number)
    positions = positions[np.lexsort((side.end_s[positions], side.start_s[positions]))]
    return {int(code): positions[side.stream[positions] == code] for code in np.unique(side.stream[positions])}


def _short_names(names: tuple[str, str]) -> tuple[str, ...]:
    """Return two names without their common first words."""
    words = [re.split(r"(?<=[^A-Za-z0-9])", name) for name in names]
    same = list(takewhile(lambda pair: pair[0] == pair[1], zip(*(part[:-1] for part in words), strict=False)))
    return tuple("".join(part[len(same) :]) for part in words)


def _pair_label(pair: RankPair) -> str:
    """Return both ranks in words, or one if they are equal."""
    first, second = (info.label if info else "" for info in (pair.first, pair.second))
    if not (first and second) or first == second:
        return first or second
    return f"{first} | {second}"


def _columns(
    drawn: _Drawn, lanes: Sequence[_Lane], colours: OpColours, max_ops: int
) -> tuple[Columns, list[tuple[int, int]], int]:
    """Return the bars' columns, the first and last bar of each lane, and the number of ops in shared bars."""
    both, alignment = drawn.sides, drawn.alignment
    partners = np.full(len(both.first), _NONE, dtype=np.int64), np.full(len(both.second), _NONE, dtype=np.int64)
    partners[0][alignment.first], partners[1][alignment.second] = alignment.second, alignment.first
    named = np.zeros(len(both.first), dtype=np.bool_), np.zeros(len(both.second), dtype=np.bool_)
    named[0][alignment.first], named[1][alignment.second] = alignment.by_name, alignment.by_name
    kept = _kept(drawn, lanes, max_ops)
    least_gap_s = drawn.duration_s / _RUNS
    parts: list[Columns] = []
    bar_of = np.full(len(both.first), _HIDDEN, dtype=np.int64), np.full(len(both.second), _HIDDEN, dtype=np.int64)
    edges, num_bars, num_merged = [], 0, 0
    for lane in lanes:
        side = (both.first, both.second)[lane.side]
        alone = kept[lane.side][lane.positions]
        starts_s = side.start_s[lane.positions]
        waited = np.diff(starts_s, prepend=-np.inf) > least_gap_s
        first = np.flatnonzero(alone | waited | np.append(True, alone[:-1])[: len(alone)])
        bars, last = lane.positions[first], np.append(first, len(alone))[1:] - 1
        single = last == first
        bar_of[lane.side][bars[single]] = num_bars + np.flatnonzero(single)
        begin_s, reached_s = side.start_s[bars], np.maximum.accumulate(side.end_s[lane.positions])[last]
        parts.append({
            "start_s": begin_s - side.timeline.start_s.min(),
            "length_s": np.where(single, side.lasting_s[bars], reached_s - begin_s),
            "name": side.name[bars], "colour": colours.of(side)[bars], "microbatch": side.microbatch[bars],
            "count": last - first + 1, "partner": np.where(single, partners[lane.side][bars], _NONE),
            "by_name": named[lane.side][bars], "side": np.full(len(bars), lane.side),
        })  # fmt: skip
        num_merged += len(alone) - int(single.sum())
        edges.append((num_bars, num_bars + len(bars)))
        num_bars += len(bars)
    return _whole(parts, bar_of), edges, num_merged


def _kept(drawn: _Drawn, lanes: Sequence[_Lane], max_ops: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the ops of each side to draw one by one: the longest, and the ops aligned with them."""
    both, alignment = drawn.sides, drawn.alignment
    lasting = both.first.lasting_s, both.second.lasting_s
    longer = np.maximum(lasting[0][alignment.first], lasting[1][alignment.second])
    lasting[0][alignment.first], lasting[1][alignment.second] = longer, longer
    lengths_s = np.concatenate([lasting[lane.side][lane.positions] for lane in lanes])
    chosen = np.zeros(len(lengths_s), dtype=np.bool_)
    chosen[np.argsort(-lengths_s, kind="stable")[:max_ops]] = True
    kept = np.zeros(len(lasting[0]), dtype=np.bool_), np.zeros(len(lasting[1]), dtype=np.bool_)
    begin = 0
    for lane in lanes:
        kept[lane.side][lane.positions] = chosen[begin : begin + len(lane.positions)]
        begin += len(lane.positions)
    paired = kept[0][alignment.first] | kept[1][alignment.second]
    kept[0][alignment.first], kept[1][alignment.second] = paired, paired
    return kept


def _whole(parts: Sequence[Columns], bar_of: tuple[Rows, Rows]) -> Columns:
    """Return the bars of all lanes as columns, with partners as bar numbers."""
    whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    partner = whole["partner"]
    known = partner >= 0
    for index, others in enumerate((bar_of[1], bar_of[0])):
        chosen = known & (whole["side"] == index)
        partner[chosen] = others[partner[chosen]]
    return whole


def _packed(header: dict[str, Any], columns: Columns) -> str:
    """Return header and columns in the format of ``op_lanes.js``."""
    tick_s = header["tick_s"]
    ready: dict[str, tuple[str, NDArray[Any]]] = {
        "start": ("u4", _steps(_ticks(columns["start_s"], tick_s), header["lanes"])),
        "length": ("u4", _ticks(columns["length_s"], tick_s).astype("<u4")),
        "name": ("u4", columns["name"].astype("<u4")),
        "count": ("u4", columns["count"].astype("<u4")),
        "partner": ("i4", columns["partner"].astype("<i4")),
        "microbatch": ("i4", np.where(columns["microbatch"] == NO_INDEX, -1, columns["microbatch"]).astype("<i4")),
        "colour": ("u1", columns["colour"].astype("u1")),
        "by_name": ("u1", columns["by_name"].astype("u1")),
    }
    places, offset = {}, 0
    for key, (kind, values) in ready.items():
        places[key] = {"type": kind, "offset": offset, "size": len(values)}
        offset += values.nbytes
    text = json.dumps({**header, "columns": places}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    raw = len(text).to_bytes(4, "little") + text + b"".join(values.tobytes() for _, values in ready.values())
    return base64.b64encode(gzip.compress(raw, mtime=0)).decode()


def _ticks(seconds: Floats, tick_s: float) -> NDArray[np.int64]:
    return np.round(seconds / tick_s).astype(np.int64)


def _steps(ticks: NDArray[np.int64], lanes: Sequence[dict[str, Any]]) -> NDArray[np.uint32]:
    """Return the start of each bar as its distance from the previous start: small numbers pack well."""
    steps = np.diff(ticks, prepend=0)
    first = [lane["begin"] for lane in lanes if lane["begin"] < lane["end"]]
    steps[first] = ticks[first]
    return steps.astype("<u4")
