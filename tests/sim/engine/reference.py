"""A slow engine of its own, straight from the rules of the plan language: the oracle of the fast one.

It knows nothing of blocks, patterns or compiled graphs: it looks at every op, lets those run whose stream,
hazards, messages and groups are ready, shares every resource max-min fairly, and steps to the next change.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from sim.engine.folding.folding import Folding
from sim.engine.prices.activity import Pricing, Resource
from sim.plan.words.buffer import Scope
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Plan, Program
from tests.sim.jobs import OpTimes

Key = tuple[int, int, int]
"""(rank, call, op of its task)."""


def hazards(program: Program) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """Return what every (call, op) of a program waits for: its stream's previous op, and RAW, WAR, WAW pairs."""
    waits: dict[tuple[int, int], set[tuple[int, int]]] = {}
    tail: dict[str, tuple[int, int]] = {}
    writer: dict[tuple[str, int | None], tuple[int, int]] = {}
    readers: dict[tuple[str, int | None], list[tuple[int, int]]] = defaultdict(list)
    position: dict[int, int] = defaultdict(int)
    for index, call, _, op in program.instances():
        me = (index, position[index])
        position[index] += 1
        needed = {tail[op.stream]} if op.stream in tail else set()
        tail[op.stream] = me
        instances = {
            name: (name, call.microbatch if program.buffers[name].scope is Scope.MICROBATCH else None)
            for name in (*op.reads, *op.writes)
        }
        needed |= {writer[i] for i in instances.values() if i in writer}
        for name in op.writes:
            needed |= set(readers[instances[name]])
        for name in op.reads:
            readers[instances[name]].append(me)
        for name in op.writes:
            writer[instances[name]], readers[instances[name]] = me, []
        waits[me] = needed - {me}
    return waits


def water_levels(shares: list[dict[Resource, float]]) -> list[float]:
    """Return max-min fair fractions: freeze the users of the tightest resource at its level, and again."""
    levels: list[float | None] = [None] * len(shares)
    while any(level is None for level in levels):
        tightest, users = 1.0, [i for i, level in enumerate(levels) if level is None]
        for resource in {r for share in shares for r in share}:
            open_ = [i for i, level in enumerate(levels) if level is None and resource in shares[i]]
            used = sum(share[resource] * (level or 0.0) for share, level in zip(shares, levels, strict=True)
                       if resource in share and level is not None)  # fmt: skip
            if open_ and (1.0 - used) / sum(shares[i][resource] for i in open_) < tightest:
                tightest, users = (1.0 - used) / sum(shares[i][resource] for i in open_), open_
        for i in users:
            levels[i] = tightest
    return [level or 0.0 for level in levels]


@dataclass
class Work:
    """What runs as one activity: an op, or a collective with all its members."""

    members: list[Key]
    latency_s: float = 0.0
    demands: dict[Resource, float] = field(default_factory=dict)
    wire_s: float = 0.0
    remaining: float = 1.0
    single_s: float = 0.0

    @property
    def own_s(self) -> float:
        """Return how long one of those that it stands for uses resources without the others: its own speed."""
        return self.single_s or max(self.demands.values(), default=0.0)


class ReferenceEngine:
    """Runs one plan; ``times`` has every op's start and end, ``makespan_s`` the last end."""

    def __init__(self, plan: Plan, pricing: Pricing, folding: Folding) -> None:
        self.plan, self.pricing, self.folding = plan, pricing, folding
        self.ops: dict[Key, Op] = {}
        self.waits: dict[Key, set[Key]] = {}
        self.work_of: dict[Key, Work] = {}
        self.sender: dict[Key, Key] = {}
        self.times: OpTimes = {}
        self.makespan_s = 0.0

    def run(self) -> "ReferenceEngine":
        """Run the plan."""
        self.connect()
        self._loop()
        return self

    def connect(self) -> None:
        """Find out what waits for what: hazards and order on streams, messages, members of collectives."""
        self._collect()
        self._match_messages()
        self._join_collectives()

    def _collect(self) -> None:
        for rank in self.folding.multiplicity:
            program = self.plan.program_of(rank)
            for (call, j), needed in hazards(program).items():
                key = (rank, call, j)
                op = self.ops[key] = program.tasks[program.calls[call].task].ops[j]
                self.waits[key] = {(rank, *other) for other in needed}
                activity = self.folding.folded(op, rank, self.pricing.price(self.plan, program, op, rank))
                is_send = isinstance(op, Send)
                self.work_of[key] = Work(
                    [key],
                    0.0 if is_send else activity.latency_s,
                    {r: d for r, d in activity.demands if d > 0},
                    activity.latency_s if is_send else 0.0,
                    single_s=activity.single_s,
                )

    def _match_messages(self) -> None:
        mesh = self.plan.mesh
        queues: dict[tuple[object, ...], list[Key]] = defaultdict(list)
        for key, op in self.ops.items():
            if isinstance(op, Send):
                queues[key[0], op.axis, op.offset, op.direction].append(key)
        for key, op in self.ops.items():
            if isinstance(op, Recv):
                peer = self.folding.stands_for[mesh.shift(key[0], op.axis, op.offset)]
                self.sender[key] = queues[peer, op.axis, -op.offset, op.direction].pop(0)

    def _join_collectives(self) -> None:
        counts: dict[tuple[object, ...], int] = defaultdict(int)
        joint: dict[tuple[object, ...], Work] = {}
        for key, op in self.ops.items():
            if not isinstance(op, Collective):
                continue
            group = self.plan.mesh.group(key[0], op.axes)
            group = tuple(group[i] for i in op.members) if op.members else group
            classes = frozenset(self.folding.stands_for[member] for member in group)
            if classes == {key[0]}:
                continue
            number = counts[key[0], op.stream, op.axes, op.members]
            counts[key[0], op.stream, op.axes, op.members] += 1
            own = self.work_of[key]
            work = joint.setdefault((classes, op.stream, op.axes, op.members, number), Work([]))
            work.members.append(key)
            work.latency_s = max(work.latency_s, own.latency_s)
            for resource, seconds in own.demands.items():
                work.demands[resource] = max(work.demands.get(resource, 0.0), seconds)
            work.single_s = own.single_s
            self.work_of[key] = work

    # --- time ----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        self.followers: dict[Key, list[Key]] = defaultdict(list)
        for key, needed in self.waits.items():
            for other in needed:
                self.followers[other].append(key)
        self.missing = {key: len(needed) for key, needed in self.waits.items()}
        self.ready = {key for key, count in self.missing.items() if not count}
        self.arrivals: dict[Key, float] = {}
        self.latent: list[tuple[float, Work]] = []
        self.running: list[Work] = []
        self.num_done, self.now_s = 0, 0.0
        while self._settle() and self._advance():
            pass
        assert self.num_done == len(self.ops), "the plan is stuck"
        self.makespan_s = self.now_s

    def _settle(self) -> bool:
        """Start and finish all that takes no time now."""
        while self._receive() or self._begin() or self._end_latency():
            pass
        return True

    def _receive(self) -> bool:
        arrived = [
            key for key in self.ready
            if isinstance(self.ops[key], Recv) and self.arrivals.get(self.sender[key], float("inf")) <= self.now_s
        ]  # fmt: skip
        for key in arrived:
            self.ready.remove(key)
            self._finish(key)
        return bool(arrived)

    def _begin(self) -> bool:
        for key in sorted(self.ready):
            work = self.work_of[key]
            if not isinstance(self.ops[key], Recv) and self.ready.issuperset(work.members):
                self.ready.difference_update(work.members)
                self.times.update(dict.fromkeys(work.members, (self.now_s, self.now_s)))
                self.latent.append((self.now_s + work.latency_s, work))
                return True
        return False

    def _end_latency(self) -> bool:
        due = [item for item in self.latent if item[0] <= self.now_s]
        for item in due:
            self.latent.remove(item)
            if item[1].own_s:
                self.running.append(item[1])
            else:
                for member in item[1].members:
                    self._finish(member)
        return bool(due)

    def _advance(self) -> bool:
        """Step to the next change; return whether there is one."""
        shares = [{r: d / work.own_s for r, d in work.demands.items()} for work in self.running]
        levels = water_levels(shares)
        left_s = [w.remaining * w.own_s / level for w, level in zip(self.running, levels, strict=True)]
        changes = [begin_s - self.now_s for begin_s, _ in self.latent]
        changes += [
            self.arrivals[send] - self.now_s
            for receive, send in self.sender.items() if receive in self.ready and send in self.arrivals
        ]  # fmt: skip
        if not left_s and not changes:
            return False
        step_s = min(left_s + changes)
        for work, level in zip(self.running, levels, strict=True):
            work.remaining -= step_s * level / work.own_s
        self.now_s += step_s
        for work in [w for w, alone_s in zip(self.running, left_s, strict=True) if alone_s <= step_s * (1 + 1e-12)]:
            self.running.remove(work)
            for member in work.members:
                self._finish(member)
        return True

    def _finish(self, key: Key) -> None:
        self.num_done += 1
        self.times[key] = (self.times.get(key, (self.now_s, 0.0))[0], self.now_s)
        if isinstance(self.ops[key], Send):
            self.arrivals[key] = self.now_s + self.work_of[key].wire_s
        for follower in self.followers[key]:
            self.missing[follower] -= 1
            if not self.missing[follower]:
                self.ready.add(follower)
