"""The parts of a batch: a micro-batch for each stage of a replica, and in it a part for each group of ranks."""

from collections.abc import Sequence

from msgspec import Struct

from sim.serving.prices.layout import ReplicaLayout


class Chunk(Struct, frozen=True):
    """A piece of a prompt that an iteration computes: ``tokens`` of it, after ``computed`` tokens."""

    tokens: int
    computed: int


class Microbatch(Struct, frozen=True):
    """A micro-batch. ``rows``: sequences that decode in the fullest group, each with so many positions.

    ``chunks``: pieces of prompts of each group. ``all_rows``: sequences that decode, of all groups.
    """

    rows: int
    all_rows: int
    positions: int
    chunks: tuple[tuple[Chunk, ...], ...]

    @property
    def tokens(self) -> int:
        """Return the tokens of the fullest group."""
        return self.rows * self.positions + max(_tokens(chunks) for chunks in self.chunks)

    @property
    def all_tokens(self) -> int:
        """Return the tokens of all groups."""
        return self.all_rows * self.positions + sum(_tokens(chunks) for chunks in self.chunks)

    @property
    def chosen(self) -> int:
        """Return the positions of the fullest group at which a token is chosen."""
        return self.rows * self.positions + max(map(len, self.chunks))

    @property
    def num_sequences(self) -> int:
        """Return the sequences of all groups."""
        return self.all_rows + sum(map(len, self.chunks))


def microbatches(layout: ReplicaLayout, rows: int, positions: int, chunks: Sequence[Chunk]) -> tuple[Microbatch, ...]:
    """Return the micro-batches of an iteration: rows in equal parts, chunks one by one to the part with fewest tokens.

    There are no more micro-batches than it takes to give every group a row or a chunk.
    """
    groups = layout.expert_degree
    if layout.num_groups == 1:
        return (Microbatch(rows, rows, positions, (tuple(chunks),)),)
    dealt = _dealt(layout, chunks)
    filled = min(layout.pipeline_degree, -(-rows // groups))
    found = []
    for place, parts in enumerate(dealt):
        here = rows // filled + (place < rows % filled) if place < filled else 0
        if here or any(parts):
            found.append(Microbatch(-(-here // groups), here, positions, parts))
    return tuple(found)


def _dealt(layout: ReplicaLayout, chunks: Sequence[Chunk]) -> list[tuple[tuple[Chunk, ...], ...]]:
    """Return the chunks of every group of every micro-batch, the longest dealt first."""
    parts: list[list[Chunk]] = [[] for _ in range(layout.num_groups)]
    loads = [0] * len(parts)
    for chunk in sorted(chunks, key=lambda chunk: -chunk.tokens):
        place = loads.index(min(loads))
        parts[place].append(chunk)
        loads[place] += chunk.tokens
    count = layout.pipeline_degree
    return [tuple(map(tuple, parts[place::count])) for place in range(count)]


def _tokens(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.tokens for chunk in chunks)
