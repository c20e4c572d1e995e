"""The compared ranks and streams of two timelines, and their rows in common codes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traces.timeline import NO_INDEX, RankInfo, Rows, Timeline, Words

Codes = NDArray[np.int64]
NO_PARTNER: Final = -1


class RankPair(Struct, frozen=True):
    """A rank of each timeline; None if it has no partner."""

    first: RankInfo | None
    second: RankInfo | None

    @property
    def rank(self) -> int:
        """Return the number of the pair: the second's rank, as simulated ranks stand for others."""
        info = self.second or self.first
        return info.rank if info else NO_INDEX

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks of the job that the pair stands for."""
        return min(info.num_ranks for info in (self.first, self.second) if info)


class Side(Struct, frozen=True):
    """The rows of one timeline, pair after pair, each by start; a rank in several pairs has its rows several times.

    ``name``, ``kind`` and ``stream``: codes shared by both sides (``Sides``).
    """

    timeline: Timeline
    rows: Rows
    pair: Codes
    name: Codes
    kind: Codes
    stream: Codes

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def start_s(self) -> NDArray[np.float64]:
        """Return the start of each row, by its own timeline's clock."""
        return self.timeline.start_s[self.rows]

    @property
    def end_s(self) -> NDArray[np.float64]:
        """Return the end of each row."""
        return self.timeline.end_s[self.rows]

    @property
    def lasting_s(self) -> NDArray[np.float64]:
        """Return the duration of each row."""
        return self.end_s - self.start_s

    @property
    def bytes(self) -> Codes:
        """Return the bytes of each row."""
        return self.timeline.bytes[self.rows]

    @property
    def microbatch(self) -> Codes:
        """Return the micro-batch of each row, NO_INDEX for none."""
        return self.timeline.microbatch[self.rows].astype(np.int64)


class Sides(Struct, frozen=True):
    """Both timelines' rows, the pairs of ranks, and the words of the common codes, in alphabetical order.

    A ``stream`` code stands for a pair of streams, one of each timeline.
    """

    first: Side
    second: Side
    pairs: tuple[RankPair, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    streams: tuple[str, ...]


def sides(first: Timeline, second: Timeline) -> Sides:
    """Return the pairs of ranks: by equal number, else by equal role, else in order."""
    pairs = pair_ranks(first.ranks, second.ranks)
    names = _vocabulary(first.name, second.name)
    kinds = _vocabulary(first.kind, second.kind)
    labels, streams = _pair_streams(first, second)
    built = []
    for index, timeline in enumerate((first, second)):
        ranks = [pair.first if index == 0 else pair.second for pair in pairs]
        parts = [timeline.select(rank=info.rank) if info else np.empty(0, dtype=np.int64) for info in ranks]
        rows = np.concatenate(parts)
        built.append(
            Side(
                timeline=timeline,
                rows=rows,
                pair=np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.int64),
                name=_translated(timeline.name, names)[rows],
                kind=_translated(timeline.kind, kinds)[rows],
                stream=streams[index][timeline.stream.codes[rows]],
            )
        )
    return Sides(built[0], built[1], pairs, names, kinds, labels)


def pair_ranks(first: Sequence[RankInfo], second: Sequence[RankInfo]) -> tuple[RankPair, ...]:
    """Return the pairs of compared ranks, by the second's number.

    A rank meets its own number; if it is missing, the first rank of its role on the other side; without a role the rank
    of the next lower number, if that one stands for several. Timelines without any such pair are paired in order.
    """
    pairs, left = list[RankPair](), (list[RankInfo](), list[RankInfo]())
    second_numbers = {info.rank: info for info in second}
    for info in first:
        if info.rank in second_numbers:
            pairs.append(RankPair(info, second_numbers[info.rank]))
        elif other := _stand_in(info, second):
            pairs.append(RankPair(info, other))
        else:
            left[0].append(info)
    first_numbers = {info.rank for info in first}
    for info in second:
        if info.rank in first_numbers:
            continue
        if other := _stand_in(info, first):
            pairs.append(RankPair(other, info))
        else:
            left[1].append(info)
    num_common = 0 if pairs else min(map(len, left))
    pairs += [RankPair(*both) for both in zip(left[0][:num_common], left[1][:num_common], strict=True)]
    pairs += [RankPair(info, None) for info in left[0][num_common:]]
    pairs += [RankPair(None, info) for info in left[1][num_common:]]
    return tuple(sorted(pairs, key=lambda pair: (pair.rank, pair.second is None)))


def _stand_in(info: RankInfo, others: Iterable[RankInfo]) -> RankInfo | None:
    """Return the rank of another timeline that stands for a rank missing there."""
    if info.role:
        return next((other for other in others if other.role == info.role), None)
    return max(
        (other for other in others if other.num_ranks > 1 and other.rank < info.rank),
        key=lambda other: other.rank,
        default=None,
    )


def _vocabulary(first: Words, second: Words) -> tuple[str, ...]:
    return tuple(sorted({*first.values, *second.values}))


def _translated(words: Words, vocabulary: Sequence[str]) -> Codes:
    """Return the code of each row's word in a common vocabulary."""
    code_of = {word: code for code, word in enumerate(vocabulary)}
    return np.array([code_of[word] for word in words.values] or [0], dtype=np.int64)[words.codes]


def _pair_streams(first: Timeline, second: Timeline) -> tuple[tuple[str, ...], tuple[Codes, Codes]]:
    """Return a name for each pair of streams, and by timeline the pair of each stream.

    Streams of the same name are paired. The others are paired by the number of ops of equal names, then of equal kinds.
    """
    words = first.stream.values, second.stream.values
    label = {name: name for name in words[0] if name in words[1]}
    left = [sorted(name for name in side if name not in label) for side in words]
    for column in ("name", "kind"):
        shared = _shared(first, second, left, column)
        for _, one, other in sorted((-count, one, other) for (one, other), count in shared.items() if count):
            if one in left[0] and other in left[1]:
                label[one] = label[other] = f"{one} | {other}"
                left[0].remove(one)
                left[1].remove(other)
    label |= {name: name for side in left for name in side}
    labels = tuple(sorted(set(label.values())))
    codes = [np.array([labels.index(label[name]) for name in side] or [0], dtype=np.int64) for side in words]
    return labels, (codes[0], codes[1])


def _shared(
    first: Timeline, second: Timeline, streams: Sequence[Sequence[str]], column: str
) -> dict[tuple[str, str], int]:
    """Return the number of words of a column that each stream of the first shares with each of the second."""
    counts: list[dict[str, Counter[str]]] = []
    for timeline, names in zip((first, second), streams, strict=True):
        words: Words = getattr(timeline, column)
        found = {}
        for name in names:
            number = np.bincount(words.codes[timeline.stream.equal(name)], minlength=len(words.values))
            found[name] = Counter({words.values[code]: int(number[code]) for code in np.flatnonzero(number).tolist()})
        counts.append(found)
    return {
        (one, other): (ours & theirs).total() for one, ours in counts[0].items() for other, theirs in counts[1].items()
    }
