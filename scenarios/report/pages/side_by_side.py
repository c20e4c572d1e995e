"""The difference of two timelines, in the lines of a terminal: for ``execute`` and for ``compare``."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from costmodels.units import format_bytes, format_change, format_percent, format_time
from scenarios.report.blocks import Block, Column, Fact, Facts, Line, Only, Piece, Table, Text
from scenarios.report.pages.executed import executed_blocks
from scenarios.report.pages.step_rows import step_rows
from scenarios.report.words import spread_words
from scenarios.summaries.comparing.comparison import AlignedOps, ComparisonSummary
from scenarios.summaries.comparing.explanation import Explanation
from scenarios.summaries.comparing.notes import drawn_note, executed_note, is_notable, simulated_note
from scenarios.summaries.measured.execution import CheckedNumbers, ExecutedPlacement, ExecutionSummary
from scenarios.summaries.steps.algorithm import algorithm_words
from traces.comparison.compare import difference_s
from traces.comparison.critical_path import IDLE

MAX_OPS: Final = 8
_LESS: Final = "first less second"
_MISMATCHES: Final[Mapping[str, str]] = {
    "missing": "are missing", "extra": "are extra", "name": "have other names", "order": "have another order",
    "stream": "have other streams", "kind": "are of other kinds", "bytes": "have other bytes",
}  # fmt: skip
"""What is said of ops by the kind of their mismatch."""


def execution_blocks(summary: ExecutionSummary) -> tuple[Block, ...]:
    """Return the results of a run with torch, beside those of the simulation."""
    facts = [Fact("step time", _step_time(summary))]
    if other := algorithm_words(summary.algorithm):
        facts.append(Fact("algorithm", (Piece(summary.algorithm, "unusual"), f": {other}")))
    facts.append(Fact("memory", _peak_memory(summary)))
    if (work := summary.work) is not None:
        facts.append(Fact("work", _work(work.same_work, work.mismatches, work.ops)))
    if summary.check is not None:
        facts.append(Fact("check", _check(summary.check, summary.algorithm, on_cpu=summary.num_cores is not None)))
    subtitle = f"{summary.world_size:,} ranks, run with torch"
    if (placement := summary.placement) is None:
        return executed_blocks(summary.scenario, subtitle, facts)
    facts.append(Fact("decisions", _decisions(placement)))
    return (*executed_blocks(summary.scenario, subtitle, facts), *_placed_steps(placement))


def notes_of(summary: ExecutionSummary) -> tuple[str, str]:
    """Return why the simulated and the executed time may be off, or empty texts."""
    return simulated_note(summary.profile_basis), executed_note(summary.world_size, summary.num_cores)


def card_notes_of(summary: ExecutionSummary) -> tuple[str, str]:
    """Return these notes for a page, whose simulated time is that of the run without draws."""
    simulated, executed = notes_of(summary)
    drawn = drawn_note(summary.simulated_iteration_time_s, summary.simulated_iteration_time_median_s)
    return ", ".join(note for note in (simulated, drawn) if note), executed


def difference_blocks(summary: ComparisonSummary) -> tuple[Block, ...]:
    """Return the difference of two timelines: the first less the second, as a part of the second."""
    names = summary.names
    sides = (f"{name}, {note}" if note else name for name, note in zip(names, summary.notes, strict=True))
    times = " against ".join(
        f"{format_time(time_s)} ({side})"
        for time_s, side in zip((summary.first_s, summary.second_s), sides, strict=True)
    )
    facts = [
        Fact("step time", f"{times}: {_change(summary.makespan_error)}"),
        Fact("work", _work(summary.same_work, summary.mismatches, summary.second_ops)),
        Fact("aligned", _aligned(summary.aligned, names)),
        Fact("by kind", _errors(summary.kind_error)),
        Fact("by stream", _errors(summary.stream_error)),
    ]
    if not summary.passed:
        facts.append(Fact("verdict", (Piece("FAILED: further apart than allowed", "bad"),)))
    blocks = [
        Facts(tuple(facts)),
        *(explanation_blocks(summary.explanation) if summary.explanation else []),
        _step_parts(summary),
        *([_largest(summary)] if summary.rows else []),
    ]
    return tuple(Only("terminal", (block,)) for block in blocks)


def explanation_blocks(explanation: Explanation) -> list[Text | Table]:
    """Return the slower of two simulated steps, the parts of its time, and the links that decide."""
    names = explanation.first, explanation.second
    rows: list[tuple[str, ...]] = [(row.cause, *_times(row), _more(row.difference_s)) for row in explanation.causes]
    blocks: list[Text | Table] = [
        Text((Piece(explanation.verdict, "strong"),)),
        Table(("the mean rank's step", *names, _LESS), rows),
    ]
    differing = [row for row in explanation.communication if row.difference_s]
    if differing:
        bounds = [Column(f"in {name} held back by", is_number=False) for name in names]
        rows = [
            (
                f"{row.kind} on {row.stream}", *_times(row), _more(row.difference_s), _bound(row.first_bound_s),
                _bound(row.second_bound_s),
            )
            for row in differing[:MAX_OPS]
        ]  # fmt: skip
        blocks.append(Table(("communication, per rank", *names, _LESS, *bounds), rows))
    if explanation.links:
        rows = [
            (row.kind, format_percent(row.first_busy_fraction), format_percent(row.second_busy_fraction))
            for row in explanation.links
        ]
        blocks.append(Table(("the busiest link of a kind", *names), rows))
    return blocks


def _errors(error_of: Mapping[str, float]) -> str:
    if not any(error_of.values()):
        return f"all equal: {', '.join(error_of)}"
    return ", ".join(f"{name} {_change(error)}" for name, error in error_of.items())


def _change(error: float) -> str:
    return format_change(error) if error else "equal"


def _aligned(counts: AlignedOps, names: Sequence[str]) -> str:
    """Return the numbers of ops by the way they were aligned."""
    words = [f"{counts.by_name:,} ops by name"]
    words += [f"{counts.by_kind:,} by kind and place"] if counts.by_kind else []
    alone = counts.first_alone, counts.second_alone
    words += [f"{alone[0]:,} in {names[0]} alone, {alone[1]:,} in {names[1]}"] if any(alone) else []
    return ", ".join(words)


def _step_parts(summary: ComparisonSummary) -> Table:
    """Return the parts of the step on both sides, of the mean rank and on the critical path."""
    rows = [(row.part.replace("_", " "), *_both(row)) for row in summary.step_time if row.first_s or row.second_s]
    rows += [(f"critical path: {row.kind}", *_both(row)) for row in summary.critical_path]
    return Table(("what the mean rank does", *summary.names, _LESS), rows)


def _largest(summary: ComparisonSummary) -> Table:
    """Return the ops that explain most of the difference; with idle time and all others they add up to it."""
    name = Column("what explains the difference", is_number=False, overflow="cut")
    rows = []
    for row in (*summary.rows, summary.others, summary.idle):
        counts = dict.fromkeys((f"{row.first_count:,}", f"{row.second_count:,}") if row.op != IDLE else [""])
        rows.append((row.op, " | ".join(counts), *_both(row), format_percent(row.share_fraction)))
    return Table((name, "ops", *summary.names, _LESS, "of all"), rows)


class _BothSides(Protocol):
    """Seconds on both sides."""

    @property
    def first_s(self) -> float:
        """Return the first side's seconds."""

    @property
    def second_s(self) -> float:
        """Return the second side's seconds."""


def _both(row: _BothSides) -> tuple[str, str, str]:
    return *_times(row), _more(difference_s(row.first_s, row.second_s))


def _times(row: _BothSides) -> tuple[str, str]:
    return format_time(row.first_s), format_time(row.second_s)


def _more(longer_s: float) -> str:
    sign = "-" if longer_s < 0 else "+"
    return f"{sign}{format_time(abs(longer_s))}" if longer_s else "0 s"


def _bound(bound_s: Mapping[str, float]) -> str:
    """Return the limits of an op's speed, as parts of its time, the largest first."""
    whole_s = sum(bound_s.values())
    parts = sorted(bound_s.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{kind} {format_percent(part / whole_s, 0)}" for kind, part in parts if part > 0.005 * whole_s)


def _step_time(summary: ExecutionSummary) -> Line:
    """Return the executed step's time, with the simulated time and its 90 % interval."""
    executed_s, simulated_s = summary.iteration_time_s, summary.simulated_iteration_time_s
    median_s, without = summary.simulated_iteration_time_median_s, ""
    if median_s is not None and is_notable(simulated_s, median_s):
        simulated_s, without = median_s, f"one run without draws: {format_time(simulated_s)}"
    known = [format_change((simulated_s - executed_s) / executed_s)] if executed_s else []
    interval = spread_words(summary.simulated_iteration_time_interval_s)
    known += [words for words in (interval, without, *notes_of(summary)) if words]
    beside = f" ({'; '.join(known)})" if known else ""
    among = _among(summary.iteration_times_s)
    return Piece(format_time(executed_s), "strong"), f"{among}; simulated: {format_time(simulated_s)}{beside}"


def _among(times_s: Sequence[float]) -> str:
    """Return of how many steps the time is the median, and from which to which they took."""
    if len(times_s) == 1:
        return ""
    return f", the median of {len(times_s)} steps of {format_time(min(times_s))} to {format_time(max(times_s))}"


def _peak_memory(summary: ExecutionSummary) -> Line:
    """Return the fullest role's peak, and whether all roles have the simulated peak."""
    fullest = max(summary.roles, key=lambda role: role.peak_memory_bytes)
    peak = f"{format_bytes(fullest.peak_memory_bytes)} on {fullest.role or 'every rank'}: "
    if summary.same_peak_memory:
        return peak, Piece("the simulated peak on every rank", "good")
    simulated = format_bytes(fullest.simulated_peak_memory_bytes)
    return peak, Piece(f"NOT AS SIMULATED ({simulated} there)", "bad")


def _decisions(placement: ExecutedPlacement) -> Line:
    """Return whether the policy decided alike in simulation and execution, and each step had the same work."""
    steps, moves = placement.steps, sum(step.num_arriving for step in placement.steps)
    counted = f"{len(steps)} steps, {sum(step.num_changes for step in steps)} changes, {moves} copies moved"
    if placement.same_decisions and placement.same_work:
        return Piece("the same", "good"), f": {placement.policy} over {counted}, ops and bytes of every step"
    what = "DECISIONS" if not placement.same_decisions else "OPS OR BYTES"
    return Piece(f"NOT THE SAME {what}", "bad"), f": {placement.policy} over {counted}"


def _placed_steps(placement: ExecutedPlacement) -> tuple[Block, ...]:
    """Return a row for each step in which a policy moves experts."""
    rows = [
        (
            str(number), format_time(step.iteration_time_s), format_time(step.simulated_iteration_time_s),
            str(step.num_changes), str(step.num_copies), str(step.num_arriving),
        )
        for number, step in enumerate(placement.steps)
    ]  # fmt: skip
    return step_rows(("step", "time", "simulated", "changes", "copies", "arriving"), rows)


def _work(same_work: bool, mismatches: Mapping[str, int], ops: int) -> Line:
    if same_work:
        return Piece("the same", "good"), f": {ops:,} ops, their order on each stream, their bytes"
    found = ", ".join(f"{count:,} {_MISMATCHES[what]}" for what, count in mismatches.items())
    return Piece("NOT THE SAME", "bad"), f": of {ops:,} ops {found}"


def _check(check: CheckedNumbers, algorithm: str, *, on_cpu: bool) -> Line:
    """Return the largest deviation of the tensors from those of a dense autograd run, which on CPUs is in float64."""
    numbers = " float64" if on_cpu else ""
    verdict = Piece("passed", "good") if check.check_passed else Piece("FAILED", "bad")
    error = check.max_relative_error
    off = "no finite number" if error is None else f"{error:.1g} off"
    return (
        verdict,
        f": {check.checked_tensors:,}{numbers} tensors against {_reference(algorithm)}, "
        f"worst {check.worst_tensor}, {off} (at most {check.tolerance:.1g})",
    )


def _reference(algorithm: str) -> str:
    """Return the name of a check's reference."""
    return f"dense autograd{f' of {algorithm}' if algorithm_words(algorithm) else ''}"
