"""Which ranks compute the same: a plan run on values that only know where they come from.

A value is a hash of the kernel, of what it read, and of the rank's place along the axes that its attributes name. So
two ranks have the same value where they did the same on the same, and what collectives bring together is one value.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.layout import Shard
from sim.plan.words.op import Collective, CollectiveKind, Compute, Copy, Op, Recv, Send
from sim.plan.words.program import Call, Plan, Program

Work = tuple[int, str, int]
"""Index of the call, its task, and the op's index."""


def ranks_alike(plan: Plan, sample_axes: Sequence[str]) -> dict[int, dict[Work, Counter[int]]]:
    """Return how many ranks of each program compute which value, by op; a program is known by its first rank."""
    ranks = {rank: _Rank(plan, plan.program_of(rank), rank, tuple(sample_axes)) for rank in range(plan.mesh.size)}
    running = {rank: it.run() for rank, it in ranks.items()}
    waiting: dict[int, Any] = {rank: next(it) for rank, it in running.items()}
    arrived: dict[Any, dict[int, Sequence[int]]] = defaultdict(dict)
    sent: dict[Any, Sequence[int]] = {}
    while waiting:
        moved = False
        for rank, (kind, key, what) in list(waiting.items()):
            answer: Any = None
            if kind == "send":
                sent[key] = what
            elif kind == "begin":
                pass
            elif kind == "recv":
                if key not in sent:
                    continue
                answer = sent.pop(key)
            else:
                arrived[key][rank] = what
                if len(arrived[key]) < len(key[0]):
                    continue
                answer = [arrived[key][member] for member in key[0]]
            moved = True
            try:
                waiting[rank] = running[rank].send(answer)
            except StopIteration:
                del waiting[rank]
        assert moved, "stuck"
    found: dict[int, dict[Work, Counter[int]]] = {}
    for program in plan.programs:
        members = plan.ranks_of(program)
        works = ranks[members[0]].computed
        found[members[0]] = {work: Counter(ranks[rank].computed[work] for rank in members) for work in works}
    return found


@dataclass
class _Rank:
    plan: Plan
    program: Program
    rank: int
    sample_axes: tuple[str, ...]
    values: dict[tuple[str, int | None], int] = field(default_factory=dict)
    computed: dict[Work, int] = field(default_factory=dict)
    count: Counter[Any] = field(default_factory=Counter)
    known: dict[int, int] = field(default_factory=dict)

    def run(self) -> Iterator[Any]:
        """Run the program; stop at each message and collective with what it needs to go on."""
        yield "begin", None, None
        for work, call, op in self._works():
            if isinstance(op, Compute):
                self._compute(work, call, op)
            elif isinstance(op, Copy):
                self._write(call, op, [self._read(call, name) for name in op.reads])
            elif isinstance(op, Send | Recv):
                yield from self._message(call, op)
            elif op.kind is not CollectiveKind.BARRIER:
                group = op.group(self.plan.mesh, self.rank)
                self.count[group, op.stream] += 1
                mine = [self._read(call, name) for name in op.reads]
                terms = yield "collective", (group, op.stream, self.count[group, op.stream]), mine
                self._write(call, op, _after(op, group.index(self.rank), terms))

    def _works(self) -> Iterator[tuple[Work, Call, Op]]:
        for index, call in enumerate(self.program.calls):
            for number, op in enumerate(self.program.tasks[call.task].ops):
                yield (index, call.task, number), call, op

    def _message(self, call: Call, op: Send | Recv) -> Iterator[Any]:
        peer = self.plan.mesh.shift(self.rank, op.axis, op.offset)
        ends = (self.rank, peer) if isinstance(op, Send) else (peer, self.rank)
        offset = op.offset if isinstance(op, Send) else -op.offset
        key = (*ends, op.axis, offset, op.direction)
        self.count[key, type(op)] += 1
        key = (*key, self.count[key, type(op)])
        if isinstance(op, Send):
            yield "send", key, [self._read(call, name) for name in op.reads]
        else:
            self._write(call, op, (yield "recv", key, None))

    def _compute(self, work: Work, call: Call, op: Compute) -> None:
        if op.kernel in {"zero", "scale"}:
            self._write(call, op, [hash((op.kernel, op.kernel == "scale" and self._read(call, n))) for n in op.writes])
            return
        reads = tuple([self._read(call, name) for name in op.reads])
        value = hash((self._told(op), call.microbatch, reads))
        self.computed[work] = value
        self._write(call, op, [hash((value, number)) for number in range(len(op.writes))])

    def _told(self, op: Compute) -> int:
        """Return what an op computes here, apart from what it reads."""
        if id(op) not in self.known:
            axes = [*_axes(op.attributes), *(self.sample_axes if op.kernel == "tokens" else ())]
            self.known[id(op)] = hash((op.kernel, repr(op.attributes), self._place(axes)))
        return self.known[id(op)]

    def _place(self, axes: Sequence[str]) -> tuple[int, ...]:
        return tuple([self.plan.mesh.coordinate(self.rank, axis) for axis in axes])

    def _key(self, call: Call, name: str) -> tuple[str, int | None]:
        return name, call.microbatch if self.program.buffers[name].scope is Scope.MICROBATCH else None

    def _read(self, call: Call, name: str) -> int:
        key, buffer = self._key(call, name), self.program.buffers[name]
        if key in self.values and not (buffer.kind is Kind.PARAMETER and buffer.global_shape):
            return self.values[key]
        axes = [axis for axis, placement in buffer.layout.placements if isinstance(placement, Shard)]
        axes += buffer.initial.axes if buffer.initial else ()
        return hash((name, self._place(axes)))

    def _write(self, call: Call, op: Op, values: Sequence[int]) -> None:
        self.values.update({self._key(call, name): value for name, value in zip(op.writes, values, strict=True)})


def _after(op: Collective, position: int, terms: Sequence[Sequence[int]]) -> list[int]:
    """Return what a member has after a collective, of what all members gave."""
    one_by_one = op.reads == op.writes
    results = []
    for number in range(len(op.writes)):
        given = [term[number : number + 1] if one_by_one else term for term in terms]
        if op.kind is CollectiveKind.BROADCAST:
            results.append(given[op.root][0])
            continue
        alike = op.kind in {CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER}
        sums = op.kind in {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE}
        ordered = tuple(map(tuple, sorted(given) if sums else given))
        results.append(hash((op.kind, ordered, number, None if alike else position)))
    return results


def _axes(value: Any) -> Iterator[str]:
    """Yield the names in an op's attributes: of axes, and of others that no mesh has."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key in value:
            yield from _axes(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _axes(item)
