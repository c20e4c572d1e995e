"""The memory of a simulated rank: its peak by kind, and its curve over time, of the device or of its host."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from costmodels.memory import allocated_bytes
from sim.plan.facts.liveness import CallLife, Ends, Ints, KnownLives, Lifetimes, lifetimes
from sim.plan.facts.repetition import CodedCalls
from sim.plan.words.buffer import Kind, Scope, Tier
from sim.plan.words.program import Program

_PLACES: Final = {kind: place for place, kind in enumerate(Kind)}


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

    ``sizes``, ``kinds``: by buffer, its bytes and the place of its kind. ``persistent``: bytes that always live, by
    kind of buffer. ``net``, ``most``, ``op``: of each kind of life, the bytes that a call adds in the end, the most
    that it adds on the way, and the op at which it does. ``net_by_kind``: bytes added in the end, lives x kinds of
    buffers.
    """

    sizes: Ints
    kinds: Ints
    persistent: Ints
    net: Ints
    most: Ints
    op: Ints
    net_by_kind: Ints


class KnownMemory(Struct, frozen=True):
    """The memory of tasks found so far; programs that share tasks have most of it in common."""

    lives: KnownLives = field(default_factory=KnownLives)
    _tiers: dict[tuple[int, int, Tier], tuple[Program, Lifetimes, _Tier]] = field(default_factory=dict)
    _used: dict[int, tuple[Program, frozenset[Tier]]] = field(default_factory=dict)
    _nothing: dict[int, MemoryUse] = field(default_factory=dict)

    def uses(self, program: Program, tier: Tier) -> bool:
        """Return whether a program has a buffer in a tier."""
        if id(program.buffers) not in self._used:
            self._used[id(program.buffers)] = program, frozenset(buffer.tier for buffer in program.buffers.values())
        return tier in self._used[id(program.buffers)][1]

    def nothing(self, num_calls: int) -> MemoryUse:
        """Return the memory of a tier in which a program of so many calls has nothing."""
        if num_calls not in self._nothing:
            zeros = np.zeros(num_calls, dtype=np.int64)
            self._nothing[num_calls] = MemoryUse(0, {str(kind): 0 for kind in Kind}, zeros, 0, zeros, zeros)
        return self._nothing[num_calls]

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
    known = known or KnownMemory()
    if not known.uses(program, tier):
        return known.nothing(len(program.calls))
    lives = lifetimes(program, known.lives)
    found = known.tier_of(program, lives, tier)
    net, most, op = (column[lives.of_call] for column in (found.net, found.most, found.op))
    base = int(found.persistent.sum())
    held = base + np.concatenate([[0], np.cumsum(net)]).astype(np.int64)
    before, after = held[:-1], int(held[-1])
    peaks = before + most
    at = int(np.argmax(peaks)) if len(peaks) else -1
    peak = int(peaks[at]) if at >= 0 else base
    return MemoryUse(peak, _by_kind(found, lives, at, op), before, after, peaks, op)


def _tier(program: Program, lives: Lifetimes, tier: Tier) -> _Tier:
    """Return a tier's memory under the lives of a program's calls."""
    buffers, each = program.buffers.values(), program.bytes_of.values()
    known = {num_bytes: allocated_bytes(num_bytes) for num_bytes in set(each)}
    sizes = np.array(list(map(known.__getitem__, each)), dtype=np.int64)
    sizes[[buffer.tier is not tier for buffer in buffers]] = 0
    kinds = np.array([_PLACES[buffer.kind] for buffer in buffers], dtype=np.int64)
    always = program.touches.is_of[Scope.PERSISTENT][:-1]
    return _Tier(sizes, kinds, _summed(kinds[always], sizes[always]), *_changes(lives.kinds, sizes, kinds))


def _changes(lives: Sequence[CallLife], sizes: Ints, kinds: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return how calls with some lives change memory, a row each.

    In the end, at most on the way, the op at which they do, and in the end by kind of buffer. Births count before
    their op, deaths after it.
    """
    if not lives:
        return *np.zeros((3, 0), np.int64), np.zeros((0, len(Kind)), np.int64)
    born, dead = _Column.of([life.born for life in lives]), _Column.of([life.dead for life in lives])
    last = np.zeros(len(lives), np.int64)
    for ends in (born, dead):
        np.maximum.at(last, ends.life, ends.op)
    begins = np.cumsum(last + 1) - (last + 1)
    more, less = (_summed(begins[e.life] + e.op, sizes[e.buffer], int(last.sum()) + len(last)) for e in (born, dead))
    by_kind = [
        _summed(e.life * len(Kind) + kinds[e.buffer], sizes[e.buffer], len(lives) * len(Kind)) for e in (born, dead)
    ]
    change = more - less
    after = np.cumsum(change)
    after -= np.repeat(after[begins] - change[begins], last + 1)
    within = after + less
    most = np.maximum.reduceat(within, begins)
    fullest = np.flatnonzero(within == np.repeat(most, last + 1))
    op = fullest[np.searchsorted(fullest, begins)] - begins  # the first of each call
    op[most <= 0] = 0
    return after[begins + last], np.maximum(most, 0), op, (by_kind[0] - by_kind[1]).reshape(-1, len(Kind))


class _Column(Struct, frozen=True, eq=False):
    """Births, or deaths, of several lives: life, op and buffer of each."""

    life: Ints
    op: Ints
    buffer: Ints

    @classmethod
    def of(cls, ends: Sequence[Ends]) -> "_Column":
        """Return those of lives in their order."""
        op, buffer = (np.concatenate(column) for column in zip(*ends, strict=True))
        return cls(np.repeat(np.arange(len(ends)), [len(each.op) for each in ends]), op, buffer)


def _sums(ends: Ends, sizes: Ints, kinds: Ints) -> Ints:
    """Return the bytes of buffers that are born or die, by kind."""
    return _summed(kinds[ends.buffer], sizes[ends.buffer], len(Kind))


def _summed(places: Ints, sizes: Ints, num_places: int = len(Kind)) -> Ints:
    """Return the sum of the sizes of each place; sums of whole numbers below 2**53 are exact."""
    return np.bincount(places, sizes, num_places).astype(np.int64)


def _by_kind(found: _Tier, lives: Lifetimes, at: int, peak_op: Ints) -> dict[str, int]:
    """Return the bytes of live buffers at the peak, by kind of buffer."""
    times = np.bincount(lives.of_call[: max(at, 0)], minlength=len(lives.kinds))
    held = found.persistent + times @ found.net_by_kind
    if at >= 0:
        now, op = lives.kinds[lives.of_call[at]], peak_op[at]
        for ends, is_over, sign in ((now.born, now.born.op <= op, 1), (now.dead, now.dead.op < op, -1)):
            held += sign * _sums(Ends(ends.op[is_over], ends.buffer[is_over]), found.sizes, found.kinds)
    return dict(zip(map(str, Kind), held.tolist(), strict=True))


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
