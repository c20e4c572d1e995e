"""The activities of one rank's device, in columns: kernels, copies, fills and collectives, each with its launch.

Times are seconds since ``origin_us`` of the file's own clock, which need not be that of other ranks.
"""

from collections import Counter
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traces.doubt import Doubt
from traces.errors import TraceError
from traces.kineto.collective import Facts
from traces.kineto.document import NO_CORRELATION
from traces.timeline import Floats, Words

US: Final = 1e-6
WAIT: Final = "wait"
SYNC: Final = "sync"
_MAX_NAMED: Final = 4
SYNCHRONISATION: Final = frozenset({WAIT, SYNC})
"""Kinds of rows in which the device does nothing: a stream waits for an event, or the host for the device."""

Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]


class DeviceRows(Struct, frozen=True):
    """Device activities in columns of equal length, by start.

    ``launch_s``: time of the host's launch (NaN: the trace does not state it).
    ``correlation``: the number shared with the launch.
    ``facts``: of communication kernels, by row.
    """

    name: Words
    kind: Words
    stream: Words
    start_s: Floats
    end_s: Floats
    bytes: Indices
    correlation: Indices
    launch_s: Floats
    facts: dict[int, Facts]

    def __len__(self) -> int:
        return len(self.start_s)

    def take(self, rows: Indices) -> "DeviceRows":
        """Return the given rows, in that order."""
        position = {int(row): place for place, row in enumerate(rows.tolist()) if int(row) in self.facts}
        return DeviceRows(
            self.name.take(rows), self.kind.take(rows), self.stream.take(rows), self.start_s[rows], self.end_s[rows],
            self.bytes[rows], self.correlation[rows], self.launch_s[rows],
            {place: self.facts[row] for row, place in position.items()},
        )  # fmt: skip


class Step(Struct, frozen=True):
    """One step of the profiler's schedule (``ProfilerStep#number``), on the host; seconds since the rank's origin."""

    number: int
    start_s: float
    end_s: float


class HostSpans(Struct, frozen=True):
    """Calls of the device's runtime, in columns: name, start, end, thread, and correlation."""

    name: Words
    correlation: Indices
    start_s: Floats
    end_s: Floats
    thread: Indices


class EventWait(Struct, frozen=True):
    """Work put on ``stream`` after ``called_s`` waits for work put on ``other`` before ``recorded_s``.

    Both are times of the host's calls (cudaStreamWaitEvent, cudaEventRecord).
    """

    stream: str
    called_s: float
    other: str
    recorded_s: float


class RankTrace(Struct, frozen=True):
    """The contents of one file: the rank (-1: unknown), the number of ranks (0: unknown), and the activities.

    ``problems``: number of events that were left out, by reason.
    ``allocated``: times (s) and bytes of device memory.
    """

    file: str
    rank: int
    world_size: int
    origin_us: float
    base_time_ns: int
    rows: DeviceRows
    launches: HostSpans
    waits: tuple[EventWait, ...]
    steps: tuple[Step, ...]
    allocated: tuple[Floats, Indices]
    num_events: int
    problems: Counter[str]

    def on_clock(self, speed: float) -> "RankTrace":
        """Return the same on a corrected clock; ``speed``: the speed of the recorded clock."""
        if speed == 1.0:
            return self
        times_s, held = self.allocated
        return replace(
            self,
            rows=replace(
                self.rows,
                start_s=self.rows.start_s / speed,
                end_s=self.rows.end_s / speed,
                launch_s=self.rows.launch_s / speed,
            ),
            launches=replace(self.launches, start_s=self.launches.start_s / speed, end_s=self.launches.end_s / speed),
            waits=tuple(
                EventWait(wait.stream, wait.called_s / speed, wait.other, wait.recorded_s / speed)
                for wait in self.waits
            ),
            steps=tuple(Step(step.number, step.start_s / speed, step.end_s / speed) for step in self.steps),
            allocated=(times_s / speed, held),
        )

    @property
    def work(self) -> DeviceRows:
        """Return the rows in which the device works."""
        return self.rows.take(np.flatnonzero(~self.rows.kind.isin(SYNCHRONISATION)))


class StepWindow(Struct, frozen=True):
    """The steps to keep: ``first`` to ``last`` by number; all complete steps if both are None.

    A profile may end while the device still runs its last step, so of several steps the last counts as incomplete.
    """

    first: int | None = None
    last: int | None = None


def select_steps(traces: tuple[RankTrace, ...], window: StepWindow) -> tuple[tuple[RankTrace, ...], tuple[Doubt, ...]]:
    """Return the ranks with only the device work of the wanted steps, and warnings with counts.

    Raises TraceError for a step that a rank does not have, and if no step is complete on all ranks. A rank with a
    single step or none keeps everything.
    """
    numbers = sorted({step.number for trace in traces for step in trace.steps})
    if window.first is None and len(numbers) < 2:
        return traces, ()
    if window.first is None:
        spans, warnings = _whole_steps(traces)
    else:
        spans, warnings = [_bounds(trace, window, numbers) for trace in traces], []
    selected, unknown = [], 0
    for trace, (from_s, until_s) in zip(traces, spans, strict=True):
        launched = ~np.isnan(trace.rows.launch_s)
        inside = launched & (trace.rows.launch_s >= from_s) & (trace.rows.launch_s < until_s)
        if window.first is None:
            inside |= trace.rows.correlation == NO_CORRELATION
        unknown += int(np.count_nonzero(~launched & ~inside))
        rows = trace.rows.take(np.flatnonzero(inside))
        if not len(rows):
            rule = "the wanted steps launched nothing on the device"
            if not launched.any():
                rule = f"none of the {len(launched):,} device activities has its launch in the trace: steps unknown"
            raise TraceError(trace.file, rule, "choose with --steps all")
        selected.append(replace(trace, rows=rows, allocated=_memory_within(trace, from_s, until_s)))
    if unknown:
        warnings.insert(0, Doubt("no_launch", unknown))
    return tuple(selected), tuple(warnings)


def _whole_steps(traces: tuple[RankTrace, ...]) -> tuple[list[tuple[float, float]], list[Doubt]]:
    """Return each rank's start and end of the complete steps that all ranks have, and doubts about the rest.

    A rank without steps keeps everything.
    """
    everything = -np.inf, np.inf
    recorded = [{step.number: step for step in trace.steps} for trace in traces]
    with_steps = [steps for steps in recorded if steps]
    whole = set.intersection(*({*steps} - ({max(steps)} if len(steps) > 1 else set()) for steps in with_steps))
    warnings = list[Doubt]()
    if all(steps.keys() == with_steps[0].keys() for steps in with_steps):
        last = max(with_steps[0])
        warnings.append(Doubt("last_step", 1, f"step {last}"))
        spans = [(-np.inf, steps[last].start_s) if steps else everything for steps in recorded]
    else:
        shown = ", ".join(
            f"rank {trace.rank} {min(steps)} to {max(steps)}"
            for trace, steps in list(zip(traces, recorded, strict=True))[:_MAX_NAMED] if steps
        )  # fmt: skip
        if not whole:
            remedy = "record the same steps on all ranks, or keep everything with --steps all"
            rule = f"the ranks recorded different steps: {shown}; none is whole on all of them"
            raise TraceError(traces[0].file, rule, remedy)
        first, last = min(whole), max(whole)
        warnings.append(
            Doubt("different_steps", len(with_steps), f"{shown}; {first} to {last} are kept, which all have whole")
        )
        spans = [(steps[first].start_s, steps[last].end_s) if steps else everything for steps in recorded]
    if len(with_steps) < len(traces):
        warnings.append(Doubt("no_steps", len(traces) - len(with_steps)))
    return spans, warnings


def _bounds(trace: RankTrace, window: StepWindow, numbers: list[int]) -> tuple[float, float]:
    """Return the start and end of the wanted steps on this rank."""
    own = {step.number: step for step in trace.steps}
    first, last = window.first or 0, window.last if window.last is not None else window.first or 0
    for number in range(first, last + 1):
        if number not in own:
            there = f"steps {', '.join(map(str, sorted(own)))}" if own else "no steps at all"
            shown = f"; all ranks together have {numbers[0]} to {numbers[-1]}" if numbers else ""
            remedy = "choose one of them" if numbers else "leave --steps out"
            raise TraceError(trace.file, f"there is no step {number} here: {there}{shown}", remedy, key="--steps")
    return own[first].start_s, own[last].end_s


def _memory_within(trace: RankTrace, from_s: float, until_s: float) -> tuple[Floats, Indices]:
    times, held = trace.allocated
    inside = (times >= from_s) & (times < until_s)
    return times[inside], held[inside]
