"""The timeline of a run: one row per op (or per task call), in columns, with memory, messages and ranks.

Columns are numpy arrays and words are integer codes, so ten million rows take about half a gigabyte and no Python
object per row. Times count from the start of the step.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from traces.errors import StreamError

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Rows = NDArray[np.int64]
Source = Literal["simulated", "executed"]
Detail = Literal["op", "task"]

COLLECTIVE_KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "barrier")
MESSAGE_KINDS: Final = ("send", "recv")
NO_INDEX: Final = -1
"""The micro-batch or stage of an op without one."""
EQUAL: Final = 1e-11
"""Times that differ by a smaller part of a period are equal up to rounding."""

_NUMBERS: Final[Mapping[str, str]] = {
    "rank": "i", "start_s": "d", "end_s": "d", "microbatch": "i", "stage": "i", "bytes": "q", "flop": "d",
}  # fmt: skip
_WORDS: Final = ("stream", "name", "kind", "group")


class Words(Struct, frozen=True):
    """A column of words: ``values[codes[i]]`` is the word of row i."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def at(self, row: int) -> str:
        """Return the word of one row."""
        return self.values[int(self.codes[row])]

    def code(self, value: str) -> int:
        """Return the code of a word, -1 if no row can have it."""
        return self.values.index(value) if value in self.values else -1

    def equal(self, value: str) -> NDArray[np.bool_]:
        """Return which rows hold ``value``."""
        return np.equal(self.codes, self.code(value))

    def isin(self, values: Iterable[str]) -> NDArray[np.bool_]:
        """Return which rows hold one of ``values``."""
        wanted = frozenset(values)
        return np.array([value in wanted for value in self.values] or [False], dtype=np.bool_)[self.codes]

    def take(self, rows: Rows) -> "Words":
        """Return the column of the given rows."""
        return Words(self.codes[rows], self.values)


class RankInfo(Struct, frozen=True):
    """A rank of a timeline, its role, and the number of ranks it stands for (itself included)."""

    rank: int
    role: str
    num_ranks: int = 1

    @property
    def label(self) -> str:
        """Return the rank in words: folded classes as such, single ranks by number."""
        if self.num_ranks > 1:
            return f"{self.role or 'all'} (stands for {self.num_ranks:,} ranks)"
        return f"rank {self.rank} ({self.role})" if self.role else f"rank {self.rank}"


class MemoryCurve(Struct, frozen=True):
    """Live bytes as steps: rank ``rank[i]`` holds ``bytes[i]`` from ``time_s[i]`` on. Sorted by rank, then time."""

    rank: NDArray[np.int32]
    time_s: Floats
    bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rank)

    def of(self, rank: int) -> tuple[Floats, NDArray[np.int64]]:
        """Return times (s) and live bytes of one rank."""
        rows = slice(int(np.searchsorted(self.rank, rank, "left")), int(np.searchsorted(self.rank, rank, "right")))
        return self.time_s[rows], self.bytes[rows]

    def peak_bytes(self, rank: int) -> int:
        """Return the peak bytes of one rank, 0 for a rank without a curve."""
        _, held = self.of(rank)
        return int(held.max()) if len(held) else 0

    def thinned(self, max_points: int) -> "MemoryCurve":
        """Return a curve of at most ``max_points`` per rank that keeps every rank's peak and last value.

        Of each run of neighbouring points the highest is kept.
        """
        kept = [_thinned_rows(self.of(int(rank))[1], max_points) for rank in np.unique(self.rank)]
        starts = np.unique(self.rank, return_index=True)[1]
        rows = np.concatenate([start + part for start, part in zip(starts, kept, strict=True)] or [_no_rows()])
        return MemoryCurve(self.rank[rows], self.time_s[rows], self.bytes[rows])


def _thinned_rows(held: NDArray[np.int64], max_points: int) -> Rows:
    """Return positions of the highest point of each of ``max_points`` runs, the first and the last."""
    if len(held) <= max_points:
        return np.arange(len(held), dtype=np.int64)
    edges = np.linspace(0, len(held), max(1, max_points - 2) + 1).astype(np.int64)
    highest = [int(start + held[start:stop].argmax()) for start, stop in pairwise(edges)]
    return np.unique(np.array([0, *highest, len(held) - 1], dtype=np.int64))


class Messages(Struct, frozen=True):
    """Rows that belong together.

    Row ``send[i]`` sends the message that ``recv[i]`` receives. Row ``member[j]`` takes part in the collective number
    ``collective[j]``. Members of one collective are neighbours.
    """

    send: Rows
    recv: Rows
    member: Rows
    collective: Rows

    def numbers(self, num_rows: int) -> Rows:
        """Return for each row a number shared with the other ends of its message or collective, NO_INDEX for none.

        Messages come after collectives.
        """
        result = np.full(num_rows, NO_INDEX, dtype=np.int64)
        result[self.member] = self.collective
        first = int(self.collective.max()) + 1 if len(self.collective) else 0
        result[self.send] = result[self.recv] = first + np.arange(len(self.send))
        return result


class Spans(Struct, frozen=True):
    """Times of ops of some kinds, in columns."""

    kind: Words
    start_s: Floats
    end_s: Floats


class Period(Struct, frozen=True):
    """A stretch of time, from ``begin_s`` on, that repeats ``count`` times, each ``length_s`` long.

    Every op that starts in it starts again a period later, for a micro-batch ``microbatches`` later.
    """

    begin_s: float
    length_s: float
    count: int
    microbatches: int

    @property
    def end_s(self) -> float:
        """Return the end of the first pass."""
        return self.begin_s + self.length_s

    @property
    def later_s(self) -> float:
        """Return the duration of the passes after the first."""
        return (self.count - 1) * self.length_s

    def part(self, time_s: Floats) -> NDArray[np.int8]:
        """Return the parts of folded times: 0 before the period, 1 in its first pass, 2 after."""
        slack_s = EQUAL * self.length_s
        return np.searchsorted([self.begin_s - slack_s, self.end_s - slack_s], time_s, "right").astype(np.int8)


class Timeline(Struct, frozen=True):
    """Ops in columns of equal length, sorted by rank, start and end.

    ``bytes``: communicated (or, by a kernel, read and written).
    ``group``: the axes of a collective.
    ``detail``: the meaning of a row, an op or a task.

    With a ``period`` the timeline is folded: rows and memory of the period are those of its first pass and stand for
    all passes (``repeats``). Later rows have the times and micro-batches of the whole step. ``traces.unrolling``
    unrolls the passes.
    """

    rank: NDArray[np.int32]
    stream: Words
    name: Words
    kind: Words
    start_s: Floats
    end_s: Floats
    microbatch: NDArray[np.int32]
    stage: NDArray[np.int32]
    bytes: NDArray[np.int64]
    flop: Floats
    group: Words
    memory: MemoryCurve
    messages: Messages
    ranks: tuple[RankInfo, ...]
    source: Source = "simulated"
    detail: Detail = "op"
    period: Period | None = None

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def duration_s(self) -> float:
        """Return the seconds from the first start to the last end."""
        return float(self.end_s.max() - self.start_s.min()) if len(self) else 0.0

    @property
    def repeats(self) -> NDArray[np.int32]:
        """Return the number of times that each row's op runs in the step, a period apart."""
        if self.period is None:
            return np.ones(len(self), dtype=np.int32)
        return np.where(self.period.part(self.start_s) == 1, self.period.count, 1).astype(np.int32)

    def select(self, *, rank: int | None = None, stream: str | None = None, kind: str | None = None) -> Rows:
        """Return the rows, by time, of a rank, a stream, a kind, or any combination."""
        if rank is None:
            first, last = 0, len(self)
        else:
            first, last = (int(np.searchsorted(self.rank, rank, side)) for side in ("left", "right"))
        chosen = np.ones(last - first, dtype=bool)
        for words, wanted in ((self.stream, stream), (self.kind, kind)):
            if wanted is not None:
                chosen &= words.codes[first:last] == words.code(wanted)
        return np.flatnonzero(chosen).astype(np.int64) + first

    def spans(self, rows: Rows) -> "Spans":
        """Return the times of some rows, and their kinds."""
        return Spans(self.kind.take(rows), self.start_s[rows], self.end_s[rows])

    def busy_s(self) -> dict[tuple[int, str], float]:
        """Return the busy seconds of each stream of each rank, by (rank, stream)."""
        numbers, positions = np.unique(self.rank, return_inverse=True)
        num_streams = len(self.stream.values)
        cells = positions * num_streams + self.stream.codes
        total = np.bincount(cells, weights=self.repeats * (self.end_s - self.start_s), minlength=0)
        return {
            (int(numbers[cell // num_streams]), self.stream.values[cell % num_streams]): float(total[cell])
            for cell in np.unique(cells).tolist()
        }

    def check_streams(self, tolerance_s: float | None = None) -> None:
        """Raise StreamError if two ops of one stream of one rank overlap, naming both.

        Overlaps of at most ``tolerance_s`` pass; by default 1e-12 of the duration, the rounding error of sums of times.
        """
        allowed_s = 1e-12 * self.duration_s if tolerance_s is None else tolerance_s
        order = np.lexsort((self.end_s, self.start_s, self.stream.codes, self.rank))
        before, after = order[:-1], order[1:]
        together = (self.rank[before] == self.rank[after]) & (self.stream.codes[before] == self.stream.codes[after])
        clash = np.flatnonzero(together & (self.start_s[after] < self.end_s[before] - allowed_s))
        if len(clash):
            one, other = int(before[clash[0]]), int(after[clash[0]])
            where = f"rank {self.rank[one]}, stream {self.stream.at(one)}"
            shown = " and ".join(f"{self.name.at(row)} ({self._span(row)})" for row in (one, other))
            rule = f"{where}: {shown} overlap ({len(clash):,} such pairs)"
            raise StreamError("", rule, "a stream runs one op at a time: put one of them on another stream")

    def _span(self, row: int) -> str:
        microbatch = f"micro-batch {self.microbatch[row]}, " if self.microbatch[row] != NO_INDEX else ""
        return f"{microbatch}{self.start_s[row]:.9g} s to {self.end_s[row]:.9g} s"


WordColumn = str | Sequence[str] | tuple[ArrayLike, Sequence[str]]
"""One word for all rows, a word per row, or integer codes with the words that they stand for."""


class _Column:
    """One growing column: finished pieces, and single values since."""

    def __init__(self, typecode: str) -> None:
        self.typecode = typecode
        self.single: array[Any] = array(typecode)
        self.pieces: list[NDArray[Any]] = []

    def extend(self, values: NDArray[Any]) -> None:
        self.flush()
        self.pieces.append(values.astype(np.dtype(self.typecode)))

    def flush(self) -> None:
        if self.single:
            self.pieces.append(np.array(self.single))
            self.single = array(self.typecode)

    def finished(self) -> NDArray[Any]:
        self.flush()
        return np.concatenate(self.pieces) if self.pieces else np.empty(0, np.dtype(self.typecode))


class TimelineBuilder:
    """Builder of a Timeline from rows in any order, one at a time (``add``) or by columns (``extend``).

    ``period``: the period whose first pass the rows hold, None for an unfolded timeline.
    """

    def __init__(self, source: Source = "simulated", detail: Detail = "op") -> None:
        self.source: Source = source
        self.detail: Detail = detail
        self.period: Period | None = None
        self._columns = {key: _Column(code) for key, code in _NUMBERS.items()}
        self._columns |= {key: _Column("i") for key in _WORDS}
        self._codes: dict[str, dict[str, int]] = {key: {} for key in _WORDS}
        self._memory = {"rank": _Column("i"), "time_s": _Column("d"), "bytes": _Column("q")}
        self._messages = {key: _Column("q") for key in ("send", "recv", "member", "collective")}
        self._ranks: dict[int, RankInfo] = {}
        self._num_rows = 0
        self._num_collectives = 0

    def __len__(self) -> int:
        return self._num_rows

    def add(
        self,
        *,
        rank: int,
        stream: str,
        name: str,
        kind: str,
        start_s: float,
        end_s: float,
        microbatch: int = NO_INDEX,
        stage: int = NO_INDEX,
        num_bytes: int = 0,
        flop: float = 0.0,
        group: str = "",
    ) -> int:
        """Add one row and return its number, for ``add_message`` and ``add_collective``."""
        columns, codes = self._columns, self._codes
        columns["rank"].single.append(rank)
        columns["start_s"].single.append(start_s)
        columns["end_s"].single.append(end_s)
        columns["microbatch"].single.append(microbatch)
        columns["stage"].single.append(stage)
        columns["bytes"].single.append(num_bytes)
        columns["flop"].single.append(flop)
        for key, word in (("stream", stream), ("name", name), ("kind", kind), ("group", group)):
            columns[key].single.append(codes[key].setdefault(word, len(codes[key])))
        self._num_rows += 1
        return self._num_rows - 1

    def extend(
        self,
        *,
        rank: ArrayLike,
        stream: WordColumn,
        name: WordColumn,
        kind: WordColumn,
        start_s: ArrayLike,
        end_s: ArrayLike,
        microbatch: ArrayLike = NO_INDEX,
        stage: ArrayLike = NO_INDEX,
        num_bytes: ArrayLike = 0,
        flop: ArrayLike = 0.0,
        group: WordColumn = "",
    ) -> range:
        """Add as many rows as ``start_s`` is long and return their numbers; single values hold for all rows.

        Raises ValueError for columns of unequal length.
        """
        starts = np.asarray(start_s, dtype=np.float64).ravel()
        numbers = {
            "rank": rank, "start_s": starts, "end_s": end_s, "microbatch": microbatch, "stage": stage,
            "bytes": num_bytes, "flop": flop,
        }  # fmt: skip
        words = {"stream": stream, "name": name, "kind": kind, "group": group}
        ready = {key: np.broadcast_to(_flat(values), starts.shape) for key, values in numbers.items()}
        ready |= {key: np.broadcast_to(self._coded(key, column), starts.shape) for key, column in words.items()}
        for key, values in ready.items():
            self._columns[key].extend(values)
        first, self._num_rows = self._num_rows, self._num_rows + len(starts)
        return range(first, self._num_rows)

    def add_message(self, send: int, recv: int) -> None:
        """Record that row ``recv`` receives the message of row ``send``."""
        self._messages["send"].single.append(send)
        self._messages["recv"].single.append(recv)

    def extend_messages(self, send: ArrayLike, recv: ArrayLike) -> None:
        """Record messages from rows ``send`` to rows ``recv``, pair by pair."""
        self._messages["send"].extend(_flat(send))
        self._messages["recv"].extend(_flat(recv))

    def add_collective(self, rows: Iterable[int]) -> None:
        """Record that these rows are one collective on several ranks."""
        for row in rows:
            self._messages["member"].single.append(row)
            self._messages["collective"].single.append(self._num_collectives)
        self._num_collectives += 1

    def extend_transfers(self, numbers: ArrayLike, kinds: Words) -> None:
        """Record the rows that belong together, of all so far: those of one number (``Messages.numbers``), by kind."""
        shared = _flat(numbers)
        sends, receives = (np.flatnonzero((shared >= 0) & kinds.equal(kind)) for kind in MESSAGE_KINDS)
        _, ours, theirs = np.intersect1d(shared[sends], shared[receives], return_indices=True)
        self.extend_messages(sends[ours], receives[theirs])
        members = np.flatnonzero((shared >= 0) & ~kinds.isin(MESSAGE_KINDS))
        members = members[np.argsort(shared[members], kind="stable")]
        found, number = np.unique(shared[members], return_inverse=True)
        self._messages["member"].extend(members)
        self._messages["collective"].extend(self._num_collectives + number)
        self._num_collectives += len(found)

    def add_memory(self, rank: int, time_s: ArrayLike, num_bytes: ArrayLike) -> None:
        """Add steps of a rank's memory curve: it holds ``num_bytes`` from ``time_s`` on."""
        times = _flat(time_s)
        self._memory["rank"].extend(np.full(times.shape, rank))
        self._memory["time_s"].extend(times)
        self._memory["bytes"].extend(np.broadcast_to(_flat(num_bytes), times.shape))

    def add_rank(self, rank: int, role: str, num_ranks: int = 1) -> None:
        """Set a rank's role, and the number of ranks it stands for; other ranks stand for themselves."""
        self._ranks[rank] = RankInfo(rank, role, num_ranks)

    def build(self) -> Timeline:
        """Return the timeline of everything added so far."""
        numbers = {key: column.finished() for key, column in self._columns.items()}
        order = _time_order(numbers["rank"], numbers["start_s"], numbers["end_s"])
        if order is not None:
            numbers = {key: values[order] for key, values in numbers.items()}
        columns: dict[str, Any] = {
            key: Words(values, tuple(self._codes[key])) if key in self._codes else values
            for key, values in numbers.items()
        }
        present = {*np.unique(numbers["rank"]).tolist(), *self._ranks}
        return Timeline(
            **columns,
            memory=self._built_memory(),
            messages=self._built_messages(order),
            ranks=tuple(self._ranks.get(rank, RankInfo(rank, "")) for rank in sorted(present)),
            source=self.source,
            detail=self.detail,
            period=self.period,
        )

    def _coded(self, key: str, column: WordColumn) -> NDArray[Any]:
        """Return a column of words as codes, adding new words."""
        known = self._codes[key]
        if isinstance(column, str):
            return np.array(known.setdefault(column, len(known)))
        if isinstance(column, tuple) and len(column) == 2 and not isinstance(column[0], str):
            codes, words = column
            ours = np.array([known.setdefault(str(word), len(known)) for word in words] or [0], dtype=np.int32)
            return np.asarray(ours[_flat(codes)])
        return np.array([known.setdefault(str(word), len(known)) for word in column], dtype=np.int32)

    def _built_memory(self) -> MemoryCurve:
        rank, time_s, held = (self._memory[key].finished() for key in ("rank", "time_s", "bytes"))
        order = np.lexsort((time_s, rank))  # stable: of points at one time the last added is the last
        return MemoryCurve(rank[order], time_s[order], held[order])

    def _built_messages(self, order: Rows | None) -> Messages:
        columns = {key: column.finished() for key, column in self._messages.items()}
        if order is not None:
            position = np.empty(len(order), dtype=np.int64)
            position[order] = np.arange(len(order))
            columns |= {key: position[columns[key]] for key in ("send", "recv", "member")}
        return Messages(**columns)


def _flat(values: ArrayLike) -> NDArray[Any]:
    """Return values as an array of at most one dimension."""
    result: NDArray[Any] = np.asarray(values)
    flat: NDArray[Any] = result.reshape(-1) if result.ndim > 1 else result
    return flat


def _no_rows() -> Rows:
    return np.empty(0, dtype=np.int64)


def _time_order(rank: Ints, start_s: Floats, end_s: Floats) -> Rows | None:
    """Return the order by rank, start and end (then as added), or None if the rows are sorted already."""
    same_rank = rank[1:] == rank[:-1]
    same_start = start_s[1:] == start_s[:-1]
    in_order = (rank[1:] > rank[:-1]) | (
        same_rank & ((start_s[1:] > start_s[:-1]) | (same_start & (end_s[1:] >= end_s[:-1])))
    )
    return None if in_order.all() else np.lexsort((end_s, start_s, rank)).astype(np.int64)


COLUMNS: Final = Timeline.__struct_fields__[:11]
"""The columns of rows, in order of the class."""
