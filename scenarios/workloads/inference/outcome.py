"""The result of a simulated inference: its row in a sweep, and its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec import Struct

from costmodels.units import format_bytes, format_count, format_percent, format_time, format_tokens_rate
from scenarios.report.blocks import Block, Card, Headline, Only, Section, Table
from scenarios.report.blocks import Timeline as TimelineBlock
from scenarios.report.causes import COMPUTING, cause_of
from scenarios.report.charts.gantt import choose_bars
from scenarios.workloads.inference.scenario import InferenceScenario
from scenarios.workloads.inference.summary import InferenceSummary
from scenarios.workloads.workload import Detail, Outcome
from sim.engine.findings.breakdown import BUBBLE
from sim.engine.findings.timeline import folded_timeline, timeline
from sim.engine.running.run import SimulatedRun
from traces.timeline import Timeline


class InferenceRow(Struct, frozen=True, kw_only=True):
    """The results of a point of a sweep; None where there is no step of decoding."""

    prefill_time_s: float
    time_per_output_token_s: float | None
    total_time_s: float
    output_tokens_per_s: float
    peak_memory_bytes: int
    fits_memory: bool


@dataclass
class InferenceOutcome(Outcome):
    """A simulated inference; the timeline is made on first use."""

    scenario: InferenceScenario
    run: SimulatedRun
    summary: InferenceSummary
    detail: Detail | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """Return the timeline: every op or task in the detail asked for; where none was, what repeats once."""
        return folded_timeline(self.run) if self.detail is None else timeline(self.run, self.detail)

    def row(self) -> InferenceRow:
        """Return the results that a sweep compares."""
        found = self.summary
        return InferenceRow(
            prefill_time_s=found.prefill_time_s,
            time_per_output_token_s=found.time_per_output_token_s,
            total_time_s=found.total_time_s,
            output_tokens_per_s=found.output_tokens_per_s,
            peak_memory_bytes=found.memory.peak_bytes,
            fits_memory=found.memory.fits,
        )

    def blocks(self, *, drawn: bool = True) -> Sequence[Block]:
        """Return the report: times, what they are spent on, memory, and the timeline."""
        sections: tuple[Block, ...] = (self._headline(), *self._spent(), self._memory())
        if not drawn:
            return sections
        bars = Only("page", (TimelineBlock("inference", choose_bars(self.timeline)),))
        return (*sections, Section("Timeline", (bars,), "Computing above, communication below."))

    def _headline(self) -> Headline:
        found, memory = self.summary, self.summary.memory
        peak, capacity = format_bytes(memory.peak_bytes), f"of {format_bytes(memory.capacity_bytes)}"
        per_token = "none" if found.time_per_output_token_s is None else format_time(found.time_per_output_token_s)
        cards = (
            Card("Time to first token", format_time(found.prefill_time_s)),
            Card("Time per output token", per_token, self._steps()),
            Card("Output", format_tokens_rate(found.output_tokens_per_s)),
            Card("Memory", peak, f"{capacity}: fits")
            if memory.fits
            else Card("Memory", "does not fit", f"{peak} {capacity}", "bad"),
        )
        devices = format_count(found.num_devices, "device")
        return Headline(found.scenario, f"{format_count(found.num_sequences, 'sequence')} on {devices}", cards)

    def _steps(self) -> str:
        found = self.summary
        if found.first_step_time_s is None or found.last_step_time_s is None:
            return ""
        return f"first step {format_time(found.first_step_time_s)}, last {format_time(found.last_step_time_s)}"

    def _spent(self) -> tuple[Section, ...]:
        """Return what the mean rank does and waits for, and the longest chain of ops."""
        found, total_s = self.summary, self.summary.total_time_s
        spent = {COMPUTING[0]: found.computing_s}
        for cause, seconds in found.waiting_s.items():
            if seconds > 1e-9 * total_s:  # not what rounding leaves
                spent[_words(cause)] = spent.get(_words(cause), 0.0) + seconds
        longest_first = sorted(spent.items(), key=lambda part: -part[1])
        rows = [(words, format_time(s), format_percent(s / total_s)) for words, s in longest_first]
        path = [(kind, format_time(s), format_percent(s / total_s)) for kind, s in found.critical_path_s.items() if s]
        spending = Table(("what a device does, or waits for", "time", "of all"), rows)
        chain = Table(("on the longest chain of ops", "time", "of all"), path)
        return (
            Section("What the time is spent on", (spending,), "Waiting is named after what is busy meanwhile."),
            Section("What the answers wait for in the end", (chain,)),
        )

    def _memory(self) -> Section:
        memory = self.summary.memory
        rows = [
            ("weights", format_bytes(memory.weights_bytes)),
            ("keys and values", f"{format_bytes(memory.cache_bytes)}, {memory.kv_blocks:,} blocks"),
            ("a block, in all layers of a device", format_bytes(memory.block_bytes)),
            ("peak", format_bytes(memory.peak_bytes)),
            ("further blocks that would fit", f"{memory.free_kv_blocks:,}"),
        ]
        return Section("Memory of the fullest device", (Table(("what", "size"), rows),))


def _words(cause: str) -> str:
    """Return a cause of waiting in words."""
    return "other stages or replicas" if cause == BUBBLE else cause_of(cause)[0]
