"""Matching of communication kernels on several ranks: members of one collective, and the two ends of one message.

The k-th collective of a kind in a group and step is the same on every rank: all members issue collectives in the same
order, or the job would hang. If torch numbered them (``Seq``), the number decides. For messages it does not, as both
ranks count their own. No match contradicts the groups and sizes in the trace.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traces.doubt import Doubt, counted
from traces.kineto.collective import Facts, Group
from traces.kineto.rank import RankTrace
from traces.timeline import COLLECTIVE_KINDS, MESSAGE_KINDS

NO_STEP: Final = -1
_UNEVEN: Final = "all_to_all"
"""The kind whose ranks may send different numbers of bytes."""

Named = tuple[str, int]
"""A group's label and size: a list of ranks has a unique label, but several groups may share a name."""
Bucket = tuple[str, Named, int]
"""Kind, group, and step (or torch's number)."""
Member = tuple[int, int]
"""Index of the rank, and row."""


class Collective(Struct, frozen=True):
    """One collective: the facts by its first member, and its members."""

    facts: Facts
    members: tuple[Member, ...]


class Matches(Struct, frozen=True):
    """Collectives of one member or more, messages as (send, receive), and counts of problems."""

    collectives: tuple[Collective, ...]
    messages: tuple[tuple[Member, Member], ...]
    warnings: tuple[Doubt, ...]

    def apart(self, traces: Sequence[RankTrace], taken_apart: Container[Collective]) -> "Matches":
        """Return the same matches with some collectives split into single members."""
        found = list[Collective]()
        for collective in self.collectives:
            alone = collective in taken_apart
            found += [_alone(traces, member) for member in collective.members] if alone else [collective]
        return replace(self, collectives=tuple(found))


def match(traces: Sequence[RankTrace]) -> Matches:
    """Return the collectives and messages of all ranks. Unmatched ones stay alone, and are counted.

    A rank of a group without a collective that the others have is counted too; the others are matched without it.
    """
    collectives: list[Collective] = []
    problems: Counter[str] = Counter()
    teams = _teams(traces)
    for (_, named, _), rows_of in _buckets(traces).items():
        members = [(rank, row) for rank, rows in sorted(rows_of.items()) for row in rows]
        if problem := _problem(teams[named], named, rows_of):
            problems[problem] += len(members)
            collectives += [_alone(traces, member) for member in members]
            continue
        if teams[named].expected - rows_of.keys():
            problems["member_absent"] += len(members) // len(rows_of)
        for together in zip(*(rows for _, rows in sorted(rows_of.items())), strict=True):
            joined = tuple(zip(sorted(rows_of), together, strict=True))
            if _agree([_facts(traces, member) for member in joined]):
                collectives.append(Collective(_facts(traces, joined[0]), joined))
            else:
                problems["other_size"] += len(joined)
                collectives += [_alone(traces, member) for member in joined]
    messages = tuple(_messages(traces, problems))
    return Matches(tuple(collectives), messages, tuple(counted(problems)))


@dataclass(slots=True)
class _Team:
    """The ranks, of those read, that may have a group's collectives, and those expected to."""

    allowed: set[int]
    expected: set[int] = field(default_factory=set)


def _teams(traces: Sequence[RankTrace]) -> Mapping[Named, _Team]:
    """Return the possible ranks of each group: the listed ones, or all.

    All ranks are expected if nothing is known of a group. For a group with only a name, those ranks are expected that
    have any of its collectives.
    """
    position, teams = {trace.rank: number for number, trace in enumerate(traces)}, dict[Named, _Team]()
    for number, trace in enumerate(traces):
        for facts in trace.rows.facts.values():
            group = facts.group
            if _named(group) not in teams:
                listed = {position[rank] for rank in group.ranks if rank in position}
                allowed = listed if group.ranks else {*position.values()}
                teams[_named(group)] = _Team(allowed, set() if group.label and not group.ranks else allowed)
            if group.label and not group.ranks and facts.kind in COLLECTIVE_KINDS:
                teams[_named(group)].expected.add(number)
    return teams


def _problem(team: _Team, named: Named, rows_of: Mapping[int, Sequence[int]]) -> str:
    """Return why the collectives of one bucket cannot be matched, empty if they can."""
    _, size = named
    if rows_of.keys() - team.allowed or 0 < size < len(rows_of):
        return "other_members"
    return "not_as_many" if len({len(rows) for rows in rows_of.values()}) > 1 else ""


def _named(group: Group) -> Named:
    return group.label, group.size


def _buckets(traces: Sequence[RankTrace]) -> Mapping[Bucket, dict[int, list[int]]]:
    """Return the rows of every rank, in order, by kind, group and step (or torch's number, where all rows have one)."""
    numbered: dict[tuple[str, Named], bool] = defaultdict(lambda: True)
    for trace in traces:
        for facts in trace.rows.facts.values():
            numbered[facts.kind, _named(facts.group)] &= facts.sequence >= 0
    buckets: dict[Bucket, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (rank, row), facts, step in _communication(traces):
        if facts.kind in COLLECTIVE_KINDS:
            key = facts.kind, _named(facts.group)
            buckets[*key, facts.sequence if numbered[key] else step][rank].append(row)
    return buckets


def _communication(traces: Sequence[RankTrace]) -> Iterator[tuple[Member, Facts, int]]:
    """Yield all communication kernels with their facts and the step that launched them; NO_STEP if a rank has none."""
    with_steps = all(trace.steps for trace in traces)
    for rank, trace in enumerate(traces):
        steps = _steps(trace)
        for row, facts in sorted(trace.rows.facts.items()):
            yield (rank, row), facts, steps[row] if with_steps else NO_STEP


def _steps(trace: RankTrace) -> list[int]:
    """Return, by row, the number of the step that launched it; of two overlapping steps the earlier."""
    result, launch_s = np.full(len(trace.rows), NO_STEP), trace.rows.launch_s
    for step in sorted(trace.steps, key=lambda step: step.start_s, reverse=True):
        result[(step.start_s <= launch_s) & (launch_s < step.end_s)] = step.number
    return list(result.tolist())


def _facts(traces: Sequence[RankTrace], member: Member) -> Facts:
    return traces[member[0]].rows.facts[member[1]]


def _alone(traces: Sequence[RankTrace], member: Member) -> Collective:
    return Collective(_facts(traces, member), (member,))


def _agree(facts: Sequence[Facts]) -> bool:
    """Return whether all facts state the same size, apart from those that state none."""
    return facts[0].kind == _UNEVEN or len({fact.num_bytes for fact in facts if fact.num_bytes >= 0}) < 2


def _messages(traces: Sequence[RankTrace], problems: Counter[str]) -> Iterator[tuple[Member, Member]]:
    """Yield sends with their receives: the k-th message of a step from one rank to another, if both counts are equal.

    Unequal counts are problems, unless one of the two ranks has no file; so are unequal sizes.
    """
    present = {trace.rank for trace in traces}
    ends: dict[tuple[str, int, int, int], dict[str, list[Member]]] = defaultdict(lambda: {"send": [], "recv": []})
    for member, facts, step in _communication(traces):
        if facts.peer in present and facts.kind in MESSAGE_KINDS:
            own = traces[member[0]].rank
            pair = (own, facts.peer) if facts.kind == "send" else (facts.peer, own)
            ends[facts.group.label, *pair, step][facts.kind].append(member)
    for _, both in sorted(ends.items()):
        if len(both["send"]) != len(both["recv"]):
            problems["message_ends"] += len(both["send"]) + len(both["recv"])
            continue
        for message in zip(both["send"], both["recv"], strict=True):
            if _agree([_facts(traces, end) for end in message]):
                yield message
            else:
                problems["message_size"] += len(message)


def durations_s(traces: Sequence[RankTrace], collective: Collective) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the duration of each member's kernel, in seconds, by rank."""
    return np.array([traces[rank].rows.end_s[row] - traces[rank].rows.start_s[row] for rank, row in collective.members])
