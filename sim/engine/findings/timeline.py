"""From a simulated run to a timeline."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.running.memory import MemoryUse
from sim.engine.running.run import SimulatedRun
from sim.engine.running.task_times import TaskTimes
from sim.plan.facts.description import describe
from sim.plan.words.program import Program, Task
from traces.timeline import NO_INDEX, Detail, Period, Timeline, TimelineBuilder
from traces.unrolling import unrolled, with_count

MAIN_STREAM = "compute"
MOST_ROWS_IN_DETAIL = 200_000
"""With more rows a timeline shows tasks unless asked for ops."""
MOST_OPS_IN_DETAIL = 1_000_000
"""The same for rows that repeat, counted as often: comparing a million ops takes some seconds."""


def timeline(run: SimulatedRun, detail: Detail | None = None) -> Timeline:
    """Return the run of all micro-batches as a timeline; by default a row per op, on large plans a row per call."""
    return unrolled(folded_timeline(run, detail))


def folded_timeline(run: SimulatedRun, detail: Detail | None = None) -> Timeline:
    """Return the run as a timeline that holds the period once, if the run repeats one. Rows as in ``timeline``.

    Where ranks have periods of their own, all micro-batches are simulated one by one for it.
    """
    if run.paced is not None:
        return folded_timeline(run.whole, detail)
    rows, repeated = _simulated(run, detail or _suiting(run)), run.repeated
    if repeated is None:
        return rows
    once = Period(repeated.begin_s, repeated.length_s, 1, repeated.microbatches)
    return with_count(replace(rows, period=once), 1 + repeated.times)


def _suiting(run: SimulatedRun) -> Detail:
    """Return the detail that suits the size of a run."""
    num_rows = sum(len(p.tasks[call.task].ops) for p in run.programs.values() for call in p.calls)
    num_ops = sum(
        number * len(program.tasks[task].ops)
        for rank, program in run.programs.items() for task, number in run.num_calls(rank).items()
    )  # fmt: skip
    return "op" if num_rows <= MOST_ROWS_IN_DETAIL and num_ops <= MOST_OPS_IN_DETAIL else "task"


def _simulated(run: SimulatedRun, detail: Detail) -> Timeline:
    """Return what was simulated as a timeline."""
    builder = TimelineBuilder("simulated", detail)
    row_of = np.full(len(run.graph.kinds), -1, dtype=np.int64)
    sent_by = row_of.copy()  # the row of a message's send, where that is one node with its receive
    first_rows: dict[tuple[int, int], int] = {}
    for rank, program in run.programs.items():
        builder.add_rank(rank, program.role_name, run.folding.multiplicity[rank])
        calls = []
        for times in run.task_times(rank):
            calls.append(times)
            if detail == "task" and times.task.traits.coalesces and _computes(times.task):
                _add_calls(builder, rank, program, times)
            else:
                rows = _add_ops(builder, rank, program, times)
                _note_rows(sent_by if times.wired else row_of, times, rows)
                calls_rows = zip(times.calls.tolist(), rows[:: len(times.task.ops)], strict=True)
                first_rows.update({(rank, call): row for call, row in calls_rows})
        _add_memory(builder, rank, run.memory_of(rank), calls)
    _add_links(builder, run, row_of, sent_by)
    for ranks, call, ops in run.graph.team_calls:
        shown = call - max(run.num_steps - 2, 0) * len(run.programs[ranks[0]].calls)  # of several steps one is shown
        if (ranks[0], shown) in first_rows:
            for op in ops:
                builder.add_collective([first_rows[rank, shown] + op for rank in ranks])
    return builder.build()


def _computes(task: Task) -> bool:
    """Return whether a task has an op on the compute stream: a stage without layers may only gather its input."""
    return any(op.stream == MAIN_STREAM for op in task.ops)


def _microbatches(program: Program, times: TaskTimes) -> list[int]:
    found = (program.calls[index].microbatch for index in times.calls.tolist())
    return [NO_INDEX if microbatch is None else microbatch for microbatch in found]


def _note_rows(row_of: NDArray[np.int64], times: TaskTimes, rows: range) -> None:
    """Note the row of every node that is one op."""
    num_ops = len(times.task.ops)
    table = np.arange(rows.start, rows.stop).reshape(-1, num_ops)
    single = times.nodes >= 0
    row_of[times.nodes[single][:, None] + np.arange(num_ops)] = table[single]


def _add_links(
    builder: TimelineBuilder, run: SimulatedRun, row_of: NDArray[np.int64], sent_by: NDArray[np.int64]
) -> None:
    """Say which rows are two ends of a message, and which are one collective of several ranks.

    Ops that have no row of their own, as their task has one for all, are left out.
    """
    if run.graph.messages:
        sends, _, receives = run.graph.message_columns
        sent, received = np.where(sends == receives, sent_by[sends], row_of[sends]), row_of[receives]
        shown = (sent >= 0) & (received >= 0)
        builder.extend_messages(sent[shown], received[shown])
    for joint in run.graph.joints:
        rows = [row for row in row_of[joint.members].tolist() if row >= 0]
        if len(rows) > 1:
            builder.add_collective(rows)


def _add_ops(builder: TimelineBuilder, rank: int, program: Program, times: TaskTimes) -> range:
    """Add a row per op of every call of a task; return the rows, call by call."""
    facts = [describe(program, times.task, op) for op in times.task.ops]
    own = program.named(times.task.name)
    codes = np.tile(np.arange(len(facts)), len(times.calls))
    return builder.extend(
        rank=rank,
        stream=(codes, [op.stream for op in times.task.ops]),
        name=(codes, [f"{own.name}/{op.name}" for op in own.ops]),
        kind=(codes, [fact.kind for fact in facts]),
        start_s=times.starts_s.ravel(),
        end_s=times.ends_s.ravel(),
        microbatch=np.repeat(_microbatches(program, times), len(facts)),
        stage=own.stage,
        num_bytes=np.array([fact.num_bytes for fact in facts])[codes],
        flop=np.array([fact.flop for fact in facts])[codes],
        group=(codes, [fact.group for fact in facts]),
    )


def _add_calls(builder: TimelineBuilder, rank: int, program: Program, times: TaskTimes) -> None:
    """Add a row per call, from the first to the last op of its compute stream."""
    main = [j for j, op in enumerate(times.task.ops) if op.stream == MAIN_STREAM]
    facts = [describe(program, times.task, op) for op in times.task.ops]
    own = program.named(times.task.name)
    builder.extend(
        rank=rank,
        stream=MAIN_STREAM,
        name=own.name,
        kind=times.task.label,
        start_s=times.starts_of(main).min(axis=1),
        end_s=times.ends_of(main).max(axis=1),
        microbatch=_microbatches(program, times),
        stage=own.stage,
        num_bytes=sum(fact.num_bytes for fact in facts),
        flop=sum(fact.flop for fact in facts),
    )


def _add_memory(builder: TimelineBuilder, rank: int, use: MemoryUse, tasks: Sequence[TaskTimes]) -> None:
    """Add a rank's memory curve: per call what lives before it, its peak at the op that makes it, what it leaves."""
    num_calls = len(use.before_bytes)
    if not num_calls:
        return
    begins, peaks_at, ends = (np.zeros(num_calls) for _ in range(3))
    for times in tasks:
        begins[times.calls], ends[times.calls] = times.first_s, times.last_s
        peak_ops = use.peak_op_of[times.calls]
        peaks_at[times.calls] = times.from_s + times.begin_after_s[times.course_of, peak_ops]
    after = np.append(use.before_bytes[1:], use.after_bytes)
    moments = np.maximum.accumulate(np.stack([begins, peaks_at, ends], axis=1).ravel())
    builder.add_memory(rank, moments, np.stack([use.before_bytes, use.peak_bytes_of, after], axis=1).ravel())
