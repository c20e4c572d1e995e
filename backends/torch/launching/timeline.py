"""The timeline of executed ranks, from their recorded times."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from backends.execution.result import MemoryAccount, RankResult
from backends.torch.communication.groups import GroupKey, group_key
from sim.plan.facts.description import OpDescription, describe
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Plan, Program
from traces.timeline import NO_INDEX, Timeline, TimelineBuilder


def timeline(plan: Plan, results: Sequence[RankResult]) -> Timeline:
    """Return the timeline of one executed step, with a row per op; without rows if ops were not timed.

    A receive starts when its message was sent, and a collective when its last member is ready, as in a simulated
    timeline. So the time that a stream waits for a peer is idle time.
    """
    builder = TimelineBuilder("executed", "op")
    links = _Links(plan)
    for result in results:
        builder.add_rank(result.rank, result.role)
        links.note(result)
    links.align()
    rows: dict[tuple[int, int], int] = {}
    for result in results:
        program = plan.program_of(result.rank)
        starts_s = links.starts_s[result.rank]
        first = len(builder)
        _add_rows(builder, program, result, starts_s)
        rows |= {(result.rank, position): first + position for position in range(len(starts_s))}
        if starts_s:
            _add_memory(builder, program, result, starts_s)
    for send, recv in links.messages():
        builder.add_message(rows[send], rows[recv])
    for members in links.collectives():
        builder.add_collective([rows[member] for member in members])
    return builder.build()


def _add_rows(builder: TimelineBuilder, program: Program, result: RankResult, starts_s: Sequence[float]) -> None:
    described: dict[int, OpDescription] = {}
    for (_, call, task, op), start_s, end_s in zip(program.instances(), starts_s, result.ends_s, strict=bool(starts_s)):
        if id(op) not in described:
            described[id(op)] = describe(program, task, op)
        what = described[id(op)]
        builder.add(
            rank=result.rank,
            stream=op.stream,
            name=what.name,
            kind=what.kind,
            start_s=start_s,
            end_s=end_s,
            microbatch=NO_INDEX if call.microbatch is None else call.microbatch,
            stage=task.stage,
            num_bytes=what.num_bytes,
            flop=what.flop,
            group=what.group,
        )


def _add_memory(builder: TimelineBuilder, program: Program, result: RankResult, starts_s: Sequence[float]) -> None:
    """Add a rank's memory curve: for each call the live bytes before it, at its peak, and after it."""
    memory: MemoryAccount = result.memory
    times_s: list[float] = []
    held: list[int] = []
    first = 0
    after = [*memory.before_bytes[1:], memory.after_bytes]
    for index, call in enumerate(program.calls):
        last = first + len(program.tasks[call.task].ops)
        times_s += [
            min(starts_s[first:last]),
            starts_s[first + memory.most_at_op[index]],
            max(result.ends_s[first:last]),
        ]
        held += [memory.before_bytes[index], memory.most_bytes[index], after[index]]
        first = last
    builder.add_memory(result.rank, np.maximum.accumulate(times_s), held)


Place = tuple[int, int]
"""A rank, and the position of one of its ops in issue order."""


@dataclass(slots=True)
class _Links:
    """The matching of ops on different ranks: the k-th ops in issue order are one message or one collective."""

    plan: Plan
    starts_s: dict[int, list[float]] = field(default_factory=dict)
    _ends_s: dict[int, Sequence[float]] = field(default_factory=dict)
    _sent: dict[GroupKey, list[Place]] = field(default_factory=lambda: defaultdict(list))
    _received: dict[GroupKey, list[Place]] = field(default_factory=lambda: defaultdict(list))
    _joined: dict[GroupKey, dict[int, list[Place]]] = field(default_factory=lambda: defaultdict(dict))

    def note(self, result: RankResult) -> None:
        """Record the ops of one rank."""
        self.starts_s[result.rank] = list(result.starts_s)
        self._ends_s[result.rank] = result.ends_s
        if not result.starts_s:
            return
        keys: dict[int, GroupKey | None] = {}
        for position, (_, _, _, op) in enumerate(self.plan.program_of(result.rank).instances()):
            if id(op) not in keys:
                keys[id(op)] = group_key(self.plan, op, result.rank)
            key = keys[id(op)]
            if key is not None:
                self._file(op, key, (result.rank, position))

    def _file(self, op: Op, key: GroupKey, place: Place) -> None:
        if isinstance(op, Collective):
            self._joined[key].setdefault(place[0], []).append(place)
        elif isinstance(op, Send):
            self._sent[key].append(place)
        elif isinstance(op, Recv):
            self._received[key].append(place)

    def messages(self) -> list[tuple[Place, Place]]:
        """Return each send with its receive."""
        return [pair for key, sent in self._sent.items() for pair in zip(sent, self._received[key], strict=True)]

    def collectives(self) -> list[tuple[Place, ...]]:
        """Return the members of each collective."""
        return [members for by_rank in self._joined.values() for members in zip(*by_rank.values(), strict=True)]

    def align(self) -> None:
        """Move the start of each receive and collective to the moment at which its last participant is ready."""
        for send, recv in self.messages():
            self._start_with(recv, self.starts_s[send[0]][send[1]])
        for members in self.collectives():
            ready_s = max(self.starts_s[rank][position] for rank, position in members)
            for member in members:
                self._start_with(member, ready_s)

    def _start_with(self, place: Place, ready_s: float) -> None:
        rank, position = place
        own_s = self.starts_s[rank][position]
        self.starts_s[rank][position] = min(max(own_s, ready_s), self._ends_s[rank][position])
