"""The bars of a pipeline picture: one per task call and lane, no more than can be drawn and read.

Of too many ranks an evenly spaced selection is drawn; of a step with too many bars the beginning, a part of the middle
and the end. Omissions are stated in words.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.units import format_time
from scenarios.report.phases import PASSES, PHASES, Phase, phase_codes, task_of
from traces.timeline import NO_INDEX, Period, Rows, Timeline
from traces.unrolling import unrolled, with_count

MAX_RANKS: Final = 16
MAX_BARS: Final = 3_600
VISIBLE: Final = 0.001
"""Smallest drawn gap, as a fraction of the step: smaller gaps are less than about a pixel."""
PAUSE: Final = 0.004
"""Smallest drawn gap inside passes, whose bars have a number to show, as a fraction of the step."""

MAIN_LANE: Final = (-0.09, 0.62)
COMMUNICATION_LANE: Final = (0.36, 0.2)
"""Distance of a lane's middle from its rank's line, and its thickness, in ranks."""
CHUNK_OPACITY: Final = (1.0, 0.68)
"""Opacity of a rank's virtual stages of even and of odd index."""
_PASSES: Final = 4
"""Passes of a period for which bars are made; a bar longer than two passes less than these may be cut."""
_WINDOWS: Final = ("the beginning", "the middle", "the end")

Floats = NDArray[np.float64]


class Bars(Struct, frozen=True):
    """Task calls of some ranks, as columns.

    ``lane``: the rank's index from the top; ``chunk``: its virtual stage from 0.
    """

    lane: Rows
    phase: Rows
    start_s: Floats
    end_s: Floats
    microbatch: Rows
    chunk: Rows
    task: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lane)

    def take(self, rows: Rows) -> "Bars":
        """Return some of the bars."""
        return Bars(
            self.lane[rows], self.phase[rows], self.start_s[rows], self.end_s[rows], self.microbatch[rows],
            self.chunk[rows], tuple(self.task[row] for row in rows.tolist()),
        )  # fmt: skip

    def of(self, phase: Phase) -> "Bars":
        """Return the bars of one phase."""
        return self.take(np.flatnonzero(self.phase == PHASES.index(phase)))


class Window(Struct, frozen=True):
    """A stretch of time, and the bars in it."""

    start_s: float
    end_s: float
    bars: Bars


class Gantt(Struct, frozen=True):
    """The windows of a step (one, or beginning, middle, end), the drawn ranks from top to bottom, and the omissions."""

    ranks: tuple[str, ...]
    windows: tuple[Window, ...]
    left_out: tuple[str, ...]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that occur, in order of ``PHASES``."""
        present = {int(code) for window in self.windows for code in np.unique(window.bars.phase)}
        return tuple(phase for index, phase in enumerate(PHASES) if index in present)


def phase_legend(gantt: Gantt) -> list[tuple[str, str]]:
    """Return words and colours of a pipeline picture's phases."""
    return [(phase.words, phase.colour) for phase in PHASES if phase in gantt.phases]


def window_title(index: int, gantt: Gantt, unit: str) -> str:
    """Return the title of a time axis: the window of the step, and the unit."""
    if len(gantt.windows) == 1:
        return f"time ({unit})"
    return f"{_WINDOWS[index]}: time ({unit})"


def choose_bars(timeline: Timeline, max_ranks: int = MAX_RANKS, max_bars: int | None = MAX_BARS) -> Gantt:
    """Return the bars to draw of a timeline, at most ``max_bars`` (None: all). Times count from its first start.

    For a folded timeline, bars of one pass are chosen and repeated.
    """
    infos = [info for info in timeline.ranks if len(timeline.select(rank=info.rank))]
    chosen = evenly(infos, max_ranks)
    begin_s = float(timeline.start_s.min()) if len(timeline) else 0.0
    bars = _bars_of(timeline, [info.rank for info in chosen], begin_s)
    left_out = []
    if len(chosen) < len(infos):
        left_out.append(f"{len(infos) - len(chosen)} of {len(infos)} simulated ranks")
    windows = [Window(0.0, timeline.duration_s, bars)]
    if max_bars is not None and len(bars) > max_bars:
        windows = _three_windows(bars, timeline.duration_s, max_bars // 3)
        between_s = timeline.duration_s - sum(window.end_s - window.start_s for window in windows)
        num_left = _num_outside(bars, windows)
        left_out.append(f"{format_time(between_s)} between the three windows ({num_left:,} task calls)")
    times_seen = Counter(info.role for info in infos)
    labels = tuple(_short_label(info.role, info.rank, info.num_ranks, times_seen[info.role]) for info in chosen)
    return Gantt(labels, tuple(windows), tuple(left_out))


def evenly(items: Sequence[Any], limit: int) -> list[Any]:
    """Return at most ``limit`` items, evenly spaced, first and last among them."""
    if len(items) <= limit:
        return list(items)
    positions = np.unique(np.linspace(0, len(items) - 1, limit).round().astype(int))
    return [items[position] for position in positions.tolist()]


def _short_label(role: str, rank: int, num_ranks: int, times_seen: int) -> str:
    """Return the role, with the rank's number if several of its ranks are drawn, and the number of equal ranks."""
    number = f"rank {rank}"
    name = f"{role}, {number}" if role and times_seen > 1 else role or number
    return f"{name} ×{num_ranks:,}" if num_ranks > 1 else name


def _task_codes(timeline: Timeline) -> tuple[Rows, tuple[str, ...]]:
    """Return the task of every row as a code, and the names of the codes."""
    names: dict[str, int] = {}
    by_name = [names.setdefault(task_of(value), len(names)) for value in timeline.name.values]
    return np.array(by_name or [0], dtype=np.int64)[timeline.name.codes], tuple(names)


def _bars_of(timeline: Timeline, ranks: Sequence[int], begin_s: float) -> Bars:
    """Return all bars of some ranks by start, from ``begin_s`` on.

    The repeated part of a folded timeline is drawn ``_PASSES`` times. The bars of the last but one of these passes are
    complete and have complete neighbours, so they stand for all omitted passes.
    """
    period, step_s = timeline.period, timeline.duration_s
    if period is not None:
        timeline = unrolled(with_count(timeline, min(period.count, _PASSES)))
    phases, tasks = phase_codes(timeline.name, timeline.stream), _task_codes(timeline)
    bars = _joined(
        [_rank_bars(timeline, rank, lane, step_s, phases, tasks) for lane, rank in enumerate(ranks)], begin_s
    )
    if period is None or period.count <= _PASSES:
        return bars
    return _repeated(bars, replace(period, begin_s=period.begin_s - begin_s))


def _repeated(bars: Bars, period: Period) -> Bars:
    """Return the bars of all passes, from the bars of a step with ``_PASSES`` passes."""
    drawn, left_out = replace(period, begin_s=period.begin_s + (_PASSES - 2) * period.length_s), period.count - _PASSES
    part = drawn.part(bars.start_s)
    during = np.flatnonzero(part == 1)
    rows = np.concatenate([np.flatnonzero(part == 0), np.tile(during, 1 + left_out), np.flatnonzero(part == 2)])
    late = np.zeros(len(rows), dtype=np.int64)
    late[len(rows) - int((part == 2).sum()) :] = left_out
    first = int((part == 0).sum())
    late[first : first + len(during) * (1 + left_out)] = np.repeat(np.arange(1 + left_out), len(during))
    found = bars.take(rows)
    microbatch = np.where(found.microbatch == NO_INDEX, NO_INDEX, found.microbatch + late * period.microbatches)
    by_s = late * period.length_s
    found = replace(found, start_s=found.start_s + by_s, end_s=found.end_s + by_s, microbatch=microbatch)
    return found.take(np.lexsort((found.lane, found.start_s)).astype(np.int64))


def _rank_bars(
    timeline: Timeline, rank: int, lane: int, step_s: float, phases: Rows, tasks: tuple[Rows, tuple[str, ...]]
) -> Bars:
    """Return a bar per task call of a rank and lane, broken at visible gaps in which none of the call's ops run.

    ``step_s``: the length of the picture in seconds.
    """
    rows = timeline.select(rank=rank)
    rows = rows[timeline.end_s[rows] > timeline.start_s[rows]]
    codes, names = tasks
    microbatch = timeline.microbatch[rows].astype(np.int64)
    calls = (codes[rows] * len(PHASES) + phases[rows]) * (int(microbatch.max(initial=0)) + 2) + microbatch + 1
    order = np.lexsort((timeline.start_s[rows], calls))
    rows, calls = rows[order], calls[order]
    is_pass = np.isin(phases[rows], [PHASES.index(phase) for phase in PASSES])
    gap_s = np.where(is_pass, PAUSE, VISIBLE) * step_s
    edges = _bar_edges(calls, timeline.start_s[rows], timeline.end_s[rows], gap_s)
    first = rows[edges]
    stage = timeline.stage[first].astype(np.int64)
    stages = np.unique(stage[stage >= 0])
    return Bars(
        lane=np.full(len(first), lane, dtype=np.int64),
        phase=phases[first],
        start_s=timeline.start_s[first],
        end_s=np.maximum.reduceat(timeline.end_s[rows], edges) if len(edges) else np.empty(0),
        microbatch=timeline.microbatch[first].astype(np.int64),
        chunk=np.maximum(np.searchsorted(stages, stage), 0),
        task=tuple(names[code] for code in codes[first].tolist()),
    )


def _bar_edges(calls: Rows, start_s: Floats, end_s: Floats, gap_s: Floats) -> Rows:
    """Return the indices at which bars begin, in rows sorted by call and start.

    At a new call, or after a longer gap.
    """
    if not len(calls):
        return np.empty(0, dtype=np.int64)
    is_new = np.diff(calls, prepend=calls[0] - 1) != 0
    beyond_s = (end_s.max() - start_s.min()) * np.cumsum(is_new)  # an offset per call, so that calls do not overlap
    reached_s = np.maximum.accumulate(end_s + beyond_s) - beyond_s
    is_gap = start_s > np.append(-np.inf, reached_s[:-1]) + gap_s
    return np.flatnonzero(is_new | is_gap)


def _joined(parts: Sequence[Bars], begin_s: float) -> Bars:
    """Return the bars of all ranks by start."""
    empty = np.empty(0, dtype=np.int64)
    lane, phase, microbatch, chunk = (
        np.concatenate([getattr(part, key) for part in parts] or [empty])
        for key in ("lane", "phase", "microbatch", "chunk")
    )
    starts, ends = (
        np.concatenate([getattr(part, key) for part in parts] or [empty.astype(np.float64)]) - begin_s
        for key in ("start_s", "end_s")
    )
    bars = Bars(lane, phase, starts, ends, microbatch, chunk, tuple(task for part in parts for task in part.task))
    return bars.take(np.lexsort((lane, starts)).astype(np.int64))


def _three_windows(bars: Bars, duration_s: float, num_bars: int) -> list[Window]:
    """Return the beginning, the middle and the end of a step, with about ``num_bars`` bars each."""
    half = int(np.searchsorted(bars.start_s, duration_s / 2))
    first = max(num_bars, min(half - num_bars // 2, len(bars) - 2 * num_bars))
    beginning_s, middle_s = float(bars.start_s[num_bars]), float(bars.start_s[first])
    end_s = float(np.sort(bars.end_s)[-num_bars])
    middle_end_s = float(bars.start_s[min(first + num_bars, len(bars) - 1)])
    spans = [(0.0, beginning_s), (max(middle_s, beginning_s), middle_end_s), (max(end_s, middle_end_s), duration_s)]
    return [
        Window(start_s, stop_s, bars.take(np.flatnonzero((bars.end_s > start_s) & (bars.start_s < stop_s))))
        for start_s, stop_s in spans
    ]


def _num_outside(bars: Bars, windows: Sequence[Window]) -> int:
    """Return the number of bars in no window."""
    shown = np.zeros(len(bars), dtype=bool)
    for window in windows:
        shown |= (bars.end_s > window.start_s) & (bars.start_s < window.end_s)
    return int((~shown).sum())
