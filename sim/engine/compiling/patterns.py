"""Coalesced calls: the begin of each op after the call's waits, by the longest paths through the call."""

from collections.abc import Sequence
from itertools import chain

from sim.engine.compiling.graph import Pattern
from sim.engine.compiling.shape import NO_PATH
from sim.engine.compiling.tables import MAIN_STREAM, TaskTable


def call_pattern(table: TaskTable, entries: tuple[int, ...]) -> Pattern | None:
    """Return how a call runs, None unless each stream's last op waits for every entry, and each op for one."""
    durations_s = [activity.duration_s for activity in table.activities]
    offsets = table.shape.offsets(durations_s, entries)
    main_exit = table.shape.last[MAIN_STREAM]
    span_s = offsets[0][main_exit] + durations_s[main_exit] if len(entries) == 1 else 0.0
    open_end = any(row[op] == NO_PATH for row in offsets for op in table.shape.last.values())
    early = NO_PATH in map(max, zip(*offsets, strict=True))
    fits = not (open_end or early)
    return Pattern(entries, offsets, durations_s, main_exit, span_s, table.shape.predecessors) if fits else None


def team_patterns(
    tables: Sequence[TaskTable], entries: Sequence[tuple[int, int]]
) -> tuple[Pattern, list[Pattern]] | None:
    """Return the pattern of a call of all ranks, its ops one rank after the other, and each rank's part of it.

    None unless each stream's last op on every rank waits for every entry, and each op for one.
    """
    num_ops = len(tables[0].task.ops)
    durations = [[activity.duration_s for activity in table.activities] for table in tables]
    for op in tables[0].joint_ops:
        for own in durations:
            own[op] = durations[0][op]
    offsets = [_starts(tables, durations, entry) for entry in entries]
    lasts = [(place, op) for place, table in enumerate(tables) for op in table.shape.last.values()]
    open_end = any(starts[place][op] == NO_PATH for starts in offsets for place, op in lasts)
    early = any(
        max(starts[p][op] for starts in offsets) == NO_PATH for p in range(len(tables)) for op in range(num_ops)
    )
    if open_end or early:
        return None
    places = tuple(place * num_ops + op for place, op in entries)
    main_exit = tables[0].shape.last[MAIN_STREAM]
    starts_s, durations_s = [list(chain(*starts)) for starts in offsets], list(chain(*durations))
    whole = Pattern(places, starts_s, durations_s, main_exit, 0.0, _predecessors(tables))
    parts = [
        Pattern(places, [starts[place] for starts in offsets], durations[place], table.shape.last[MAIN_STREAM], 0.0)
        for place, table in enumerate(tables)
    ]
    return whole, parts


def _predecessors(tables: Sequence[TaskTable]) -> tuple[tuple[int, ...], ...]:
    """Return what each op waits for, ops one rank after the other; a joint op for what its parts on all ranks do."""
    num_ops, joint = len(tables[0].task.ops), frozenset(tables[0].joint_ops)
    own = [
        [tuple(place * num_ops + i for i in waits) for waits in table.shape.predecessors]
        for place, table in enumerate(tables)
    ]
    together = {op: tuple(chain.from_iterable(waits[op] for waits in own)) for op in joint}
    return tuple(together.get(op, waits[op]) for waits in own for op in range(num_ops))


def _starts(
    tables: Sequence[TaskTable], durations: Sequence[Sequence[float]], entry: tuple[int, int]
) -> list[list[float]]:
    """Return each rank's ops' starts after the release of one entry: the longest path, through all ranks."""
    starts: list[list[float]] = [[] for _ in tables]
    joint = frozenset(tables[0].joint_ops)
    for op in range(len(tables[0].task.ops)):
        for place, (own, table) in enumerate(zip(starts, tables, strict=True)):
            start = max((own[i] + durations[place][i] for i in table.shape.predecessors[op]), default=NO_PATH)
            own.append(max(start, 0.0) if (place, op) == entry else start)
        if op in joint:
            latest = max(own[op] for own in starts)
            for own in starts:
                own[op] = latest
    return starts
