"""The slot diagram of a pipeline: a line per rank, a box per forward and backward, as in papers."""

from statistics import median
from typing import Final

from msgspec import Struct

from scenarios.report.charts.gantt import Bars, choose_bars
from scenarios.report.phases import (
    MESSAGE,
    PASSES,
    PHASES,
    SYNC,
    Phase,
)
from traces.timeline import NO_INDEX, Timeline

MAX_RANKS: Final = 32


class Slot(Struct, frozen=True):
    """One task call of a rank. ``lane``: the rank from the top; ``chunk``: the rank's virtual stage.

    ``microbatch``: -1 for a task that runs once per step.
    """

    lane: int
    phase: Phase
    task: str
    start_s: float
    end_s: float
    microbatch: int
    chunk: int

    @property
    def duration_s(self) -> float:
        """Return the duration in seconds."""
        return self.end_s - self.start_s

    @property
    def label(self) -> str:
        """Return the number of a pass's micro-batch, and of its token slice if it is one; else empty."""
        part = self.task.partition("@")[2]
        return (
            ""
            if self.microbatch == NO_INDEX or self.phase not in PASSES
            else f"{self.microbatch}.{part}"
            if part
            else str(self.microbatch)
        )


class SlotDiagram(Struct, frozen=True):
    """The slots of a step by start, and the ranks from top to bottom.

    ``boxes``: compute.
    ``lines``: communication (messages at their receiver, gradient synchronisation).
    ``unit_s``: the shortest typical pass.
    ``hidden_ranks``: number of ranks left out.
    """

    ranks: tuple[str, ...]
    boxes: tuple[Slot, ...]
    lines: tuple[Slot, ...]
    end_s: float
    unit_s: float
    hidden_ranks: int = 0

    @property
    def idle_fraction(self) -> float:
        """Return the fraction of the step in which the shown ranks run no box, averaged over ranks."""
        busy_s = sum(slot.duration_s for slot in self.boxes)
        return 1.0 - busy_s / (self.end_s * len(self.ranks)) if self.end_s else 0.0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that occur, passes first."""
        present = {slot.phase.key for slot in (*self.boxes, *self.lines)}
        return tuple(phase for phase in PHASES if phase.key in present)

    @property
    def has_chunks(self) -> bool:
        """Return whether any rank has several virtual stages."""
        return any(slot.chunk for slot in self.boxes)


def choose_slots(timeline: Timeline, max_ranks: int = MAX_RANKS) -> SlotDiagram:
    """Return the slots of a timeline; of many ranks an evenly spaced selection.

    Messages are drawn at their receivers.
    """
    gantt = choose_bars(timeline, max_ranks=max_ranks, max_bars=None)
    slots = [slot for slot in _slots(gantt.windows[0].bars) if not slot.task.startswith("send")]
    boxes = tuple(slot for slot in slots if not slot.phase.is_communication)
    lines = tuple(slot for slot in slots if slot.phase.is_communication)
    hidden = sum(1 for info in timeline.ranks if len(timeline.select(rank=info.rank))) - len(gantt.ranks)
    return SlotDiagram(gantt.ranks, boxes, lines, timeline.duration_s, _unit_s(boxes, timeline.duration_s), hidden)


def is_backward_message(slot: Slot) -> bool:
    """Return whether a message carries a gradient to the previous stage."""
    return slot.phase == MESSAGE and "backward" in slot.task


def is_sync(slot: Slot) -> bool:
    """Return whether a slot synchronises gradients."""
    return slot.phase == SYNC


def _slots(bars: Bars) -> list[Slot]:
    columns = (bars.lane, bars.phase, bars.start_s, bars.end_s, bars.microbatch, bars.chunk)
    rows = zip(bars.task, *(column.tolist() for column in columns), strict=True)
    return [Slot(lane, PHASES[code], task, start, end, i, chunk) for task, lane, code, start, end, i, chunk in rows]


def _unit_s(boxes: tuple[Slot, ...], end_s: float) -> float:
    """Return the shortest of the typical durations of passes, but at least a quarter of the longest."""
    durations = {phase.key: [slot.duration_s for slot in boxes if slot.phase == phase] for phase in PASSES}
    typical = [median(found) for found in durations.values() if found]
    return max(min(typical), max(typical) / 4) if typical else end_s
