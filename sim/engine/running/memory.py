"""The memory of a simulated rank: its peak by kind, and its curve over time, of the device or of its host."""

from collections.abc import Collection, Mapping

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from costmodels.memory import allocated_bytes
from sim.plan.facts.liveness import CallLife, Ints, KnownLives, Lifetimes, lifetimes
from sim.plan.facts.repetition import CodedCalls
from sim.plan.words.buffer import Buffer, Kind, Scope, Tier
from sim.plan.words.program import Program


class MemoryUse(Struct, frozen=True):
    """A rank's memory in one tier, in issue order.

    ``before_bytes[c]`` is what lives before call c, ``peak_bytes_of[c]`` the most inside it, reached at its op
    ``peak_op_of[c]``; ``after_bytes`` is what lives after the last call.
    """

    peak_bytes: int
    peak_by_kind_bytes: Mapping[str, int]
    before_bytes: NDArray[np.int64]
    after_bytes: int
    peak_bytes_of: NDArray[np.int64]
    peak_op_of: NDArray[np.int64]


class _Tier(Struct, frozen=True, eq=False):
    """A tier's memory under some kinds of lives, for all programs that share them.

    ``sizes``: by buffer. ``persistent``: bytes that always live, by kind of buffer. ``net``, ``most``, ``op``: of each
    kind of life, the bytes that a call adds in the end, the most that it adds on the way, and the op at which it does.
    ``net_by_kind``: bytes added in the end, lives x kinds of buffers.
    """

    sizes: Mapping[str, int]
    persistent: Ints
    net: Ints
    most: Ints
    op: Ints
    net_by_kind: Ints


class KnownMemory(Struct, frozen=True):
    """The memory of tasks found so far; programs that share tasks have most of it in common."""

    lives: KnownLives = field(default_factory=KnownLives)
    _tiers: dict[tuple[int, int, Tier], tuple[Program, Lifetimes, _Tier]] = field(default_factory=dict)

    def tier_of(self, program: Program, lives: Lifetimes, tier: Tier) -> _Tier:
        """Return a tier's memory under the lives of a program's calls."""
        key = (id(program.buffers), id(lives.kinds), tier)
        if key not in self._tiers:  # kept with what has these identities
            self._tiers[key] = program, lives, _tier(program, lives, tier)
        return self._tiers[key][2]


def memory_use(program: Program, tier: Tier = Tier.DEVICE, known: KnownMemory | None = None) -> MemoryUse:
    """Return the memory of a rank that runs ``program``, each buffer rounded as the allocator rounds it.

    ``known``: what was found so far.
    """
    if all(buffer.tier is not tier for buffer in program.buffers.values()):
        return _nothing(len(program.calls))
    known = known or KnownMemory()
    lives = lifetimes(program, known.lives)
    found = known.tier_of(program, lives, tier)
    net, most, op = (column[lives.of_call] for column in (found.net, found.most, found.op))
    base = int(found.persistent.sum())
    held = base + np.concatenate([[0], np.cumsum(net)]).astype(np.int64)
    before, after = held[:-1], int(held[-1])
    peaks = before + most
    at = int(np.argmax(peaks)) if len(peaks) else -1
    peak = int(peaks[at]) if at >= 0 else base
    return MemoryUse(peak, _by_kind(program, found, lives, at, op), before, after, peaks, op)


def _nothing(num_calls: int) -> MemoryUse:
    """Return the memory of a tier in which a program has nothing."""
    zeros = np.zeros(num_calls, dtype=np.int64)
    return MemoryUse(0, {str(kind): 0 for kind in Kind}, zeros, 0, zeros, zeros)


def _tier(program: Program, lives: Lifetimes, tier: Tier) -> _Tier:
    """Return a tier's memory under the lives of a program's calls."""
    buffers = program.buffers
    sizes = {name: allocated_bytes(b.num_bytes) if b.tier is tier else 0 for name, b in buffers.items()}
    persistent = dict.fromkeys(Kind, 0)
    for name, buffer in buffers.items():
        if buffer.scope is Scope.PERSISTENT:
            persistent[buffer.kind] += sizes[name]
    net, most, op = np.array([_change(life, sizes) for life in lives.kinds], dtype=np.int64).reshape(-1, 3).T
    net_by_kind = np.array([_net_by_kind(life, sizes, buffers) for life in lives.kinds], dtype=np.int64)
    always = np.array([*persistent.values()], dtype=np.int64)
    return _Tier(sizes, always, net, most, op, net_by_kind.reshape(-1, len(Kind)))


def _net_by_kind(life: CallLife, sizes: Mapping[str, int], buffers: Mapping[str, Buffer]) -> list[int]:
    """Return the bytes that a call adds in the end, by kind of buffer."""
    net = dict.fromkeys(Kind, 0)
    for _, name in life.births:
        net[buffers[name].kind] += sizes[name]
    for _, name in life.deaths:
        net[buffers[name].kind] -= sizes[name]
    return [*net.values()]


def _change(life: CallLife, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """Return how a call changes memory: in the end, at most on the way, and the op at which it does.

    Births count before their op, deaths after it.
    """
    steps = sorted([(op, 0, sizes[n]) for op, n in life.births] + [(op, 1, -sizes[n]) for op, n in life.deaths])
    total = most = at = 0
    for op, _, size in steps:
        total += size
        if total > most:
            most, at = total, op
    return total, most, at


def _by_kind(program: Program, found: _Tier, lives: Lifetimes, at: int, peak_op: Ints) -> dict[str, int]:
    """Return the bytes of live buffers at the peak, by kind of buffer."""
    times = np.bincount(lives.of_call[: max(at, 0)], minlength=len(lives.kinds))
    held = (found.persistent + times @ found.net_by_kind).tolist()
    totals = dict(zip((str(kind) for kind in Kind), held, strict=True))
    now = lives.kinds[lives.of_call[at]] if at >= 0 else CallLife()
    for op, name in now.births:
        totals[program.buffers[name].kind] += found.sizes[name] if op <= peak_op[at] else 0
    for op, name in now.deaths:
        totals[program.buffers[name].kind] -= found.sizes[name] if op < peak_op[at] else 0
    return totals


def kept_bytes(program: Program, names: Collection[str]) -> int:
    """Return the most bytes of the named buffers that live between two calls of a program.

    Bytes that live only inside one call do not count.
    """
    held = most = 0
    for life in lifetimes(program):
        held += sum(allocated_bytes(program.buffers[name].num_bytes) for _, name in life.births if name in names)
        held -= sum(allocated_bytes(program.buffers[name].num_bytes) for _, name in life.deaths if name in names)
        most = max(most, held)
    return most


def peak_live_chunks(program: Program) -> int:
    """Return the most chunks in flight: one more when a call opens a stay on its stage, one less when a call closes it.

    A task that opens and closes stays counts where its stage has no other task that opens, or closes, them.
    """
    opened = {task.stage for task in program.tasks.values() if task.traits.opens and not task.traits.closes}
    closed = {task.stage for task in program.tasks.values() if task.traits.closes and not task.traits.opens}
    enters, leaves = {}, {}
    for name, task in program.tasks.items():
        does_both = task.traits.opens and task.traits.closes
        enters[name] = task.traits.opens and not (does_both and task.stage in opened)
        leaves[name] = task.traits.closes and not (does_both and task.stage in closed)
    tasks = CodedCalls.of(program).tasks
    enter, leave = (np.array([int(by_task[name]) for name in program.tasks])[tasks] for by_task in (enters, leaves))
    return int(np.max(np.cumsum(enter - leave) + leave, initial=0))
