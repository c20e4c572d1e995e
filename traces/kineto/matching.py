"""Which communication kernels of several ranks are one and the same collective, or the two ends of one message.

The k-th collective of a kind in a group and step is the same one on every rank: all members issue them in one order, or
the job would hang. Where torch numbered them (``Seq``), the number decides.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traces.doubt import Doubt, counted
from traces.kineto.collective import Facts
from traces.kineto.rank import RankTrace
from traces.timeline import COLLECTIVE_KINDS, MESSAGE_KINDS

NO_STEP: Final = -1
_UNEVEN: Final = "all_to_all"
"""The kind whose ranks may send different numbers of bytes."""

Bucket = tuple[str, str, int]
"""Kind, label of the group, and step (or torch's number)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective: its facts as the first member tells them, and ``members`` as (position of the rank, row)."""

    facts: Facts
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Matches:
    """Collectives, of one member or more; messages as ((rank, row) of the send, of the recv); and what did not fit."""

    collectives: tuple[Collective, ...]
    messages: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    warnings: tuple[Doubt, ...]


def match(traces: Sequence[RankTrace]) -> Matches:
    """Return the collectives and messages of all ranks. Those that do not match stay alone, and are counted."""
    collectives: list[Collective] = []
    problems: Counter[str] = Counter()
    for rows_of in _buckets(traces).values():
        counts = {len(rows) for rows in rows_of.values()}
        if len(counts) > 1:
            problems["not_as_many"] += sum(len(rows) for rows in rows_of.values())
            collectives += [_alone(traces, rank, row) for rank, rows in rows_of.items() for row in rows]
            continue
        for nth in range(counts.pop()):
            members = tuple((rank, rows[nth]) for rank, rows in sorted(rows_of.items()))
            if _agree(traces, members):
                collectives.append(Collective(traces[members[0][0]].rows.facts[members[0][1]], members))
            else:
                problems["other_size"] += len(members)
                collectives += [_alone(traces, rank, row) for rank, row in members]
    messages = tuple(_messages(traces, problems))
    return Matches(tuple(collectives), messages, tuple(counted(problems)))


def _buckets(traces: Sequence[RankTrace]) -> Mapping[Bucket, dict[int, list[int]]]:
    """Return the rows of every rank, in order, by kind, group and step (or torch's number, where all rows have one)."""
    numbered: dict[tuple[str, str], bool] = defaultdict(lambda: True)
    for trace in traces:
        for facts in trace.rows.facts.values():
            numbered[facts.kind, facts.group.label] &= facts.sequence >= 0
    buckets: dict[Bucket, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    with_steps = all(trace.steps for trace in traces)
    for rank, trace in enumerate(traces):
        for row, facts in sorted(trace.rows.facts.items()):
            if facts.kind in COLLECTIVE_KINDS:
                key = facts.kind, facts.group.label
                part = facts.sequence if numbered[key] else _step(trace, row) if with_steps else NO_STEP
                buckets[*key, part][rank].append(row)
    return buckets


def _step(trace: RankTrace, row: int) -> int:
    """Return the number of the step that launched a row."""
    at_s = trace.rows.launch_s[row]
    return next((step.number for step in trace.steps if step.start_s <= at_s < step.end_s), NO_STEP)


def _alone(traces: Sequence[RankTrace], rank: int, row: int) -> Collective:
    return Collective(traces[rank].rows.facts[row], ((rank, row),))


def _agree(traces: Sequence[RankTrace], members: Sequence[tuple[int, int]]) -> bool:
    """Return whether all members say the same size, those that say none apart."""
    facts = [traces[rank].rows.facts[row] for rank, row in members]
    return facts[0].kind == _UNEVEN or len({fact.num_bytes for fact in facts if fact.num_bytes >= 0}) < 2


def _messages(traces: Sequence[RankTrace], problems: Counter[str]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield sends with their receives: the k-th message from one rank to another, where both ends are as many.

    Ends that are not as many are counted, unless one of the two ranks has no file.
    """
    present = {trace.rank for trace in traces}
    ends: dict[tuple[str, int, int], dict[str, list[tuple[int, int]]]] = defaultdict(lambda: {"send": [], "recv": []})
    for position, trace in enumerate(traces):
        for row, facts in sorted(trace.rows.facts.items()):
            if facts.peer in present and facts.kind in MESSAGE_KINDS:
                pair = (trace.rank, facts.peer) if facts.kind == "send" else (facts.peer, trace.rank)
                ends[facts.group.label, *pair][facts.kind].append((position, row))
    for _, both in sorted(ends.items()):
        if len(both["send"]) == len(both["recv"]):
            yield from zip(both["send"], both["recv"], strict=True)
        else:
            problems["message_ends"] += len(both["send"]) + len(both["recv"])


def durations_s(traces: Sequence[RankTrace], collective: Collective) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return how long each member's kernel lasted, in seconds, by rank."""
    return np.array([traces[rank].rows.end_s[row] - traces[rank].rows.start_s[row] for rank, row in collective.members])
