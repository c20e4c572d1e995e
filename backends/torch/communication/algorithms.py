"""The messages of one rank in an explicit collective, from the collective's step list."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TypeVar

from msgspec import Struct

from costmodels.collectives.catalogue import collective_steps

Chunk = TypeVar("Chunk")


class Numbering(Struct, frozen=True):
    """The numbering of a group for a step list, node by node: number i is group position ``order[i]``."""

    order: tuple[int, ...]
    ranks_per_node: tuple[int, ...]


@lru_cache(maxsize=4096)
def numbering(nodes: tuple[int, ...], root: int | None) -> Numbering:
    """Return the numbering of a group. ``nodes``: node of each position. A root gets number 0, its node is first."""

    def place(position: int) -> tuple[bool, int, bool, int]:
        away = root is not None and nodes[position] != nodes[root]
        return away, nodes[position], root is not None and position != root, position

    order = tuple(sorted(range(len(nodes)), key=place))
    per_node = tuple(len(list(members)) for _, members in groupby(order, key=lambda position: nodes[position]))
    return Numbering(order, per_node)


class Round(Struct, frozen=True):
    """One rank's messages in one round. Ranks are numbered as in the step list.

    ``sends``: target and chunks of each message.
    ``receives``: source and chunks of each message, and whether each chunk is reduced into the held one.
    """

    sends: tuple[tuple[int, tuple[int, ...]], ...]
    receives: tuple[tuple[int, tuple[tuple[int, bool], ...]], ...]


@lru_cache(maxsize=4096)
def rounds_of(kind: str, algorithm: str, ranks_per_node: tuple[int, ...], number: int) -> tuple[Round, ...]:
    """Return the rounds of a step list that involve one rank.

    Raises CollectiveError for a kind or algorithm without a step list.
    """
    steps = collective_steps(kind, algorithm, ranks_per_node).steps
    rounds = []
    for _, in_round in groupby((s for s in steps if number in (s.source, s.target)), key=lambda step: step.round):
        sends: dict[int, list[int]] = {}
        receives: dict[int, list[tuple[int, bool]]] = {}
        for step in in_round:
            if step.source == number:
                sends.setdefault(step.target, []).extend(step.chunks)
            else:
                receives.setdefault(step.source, []).extend((chunk, step.reduce) for chunk in step.chunks)
        rounds.append(Round(_frozen(sends), _frozen(receives)))
    return tuple(rounds)


def _frozen(messages: Mapping[int, Sequence[Chunk]]) -> tuple[tuple[int, tuple[Chunk, ...]], ...]:
    return tuple((peer, tuple(chunks)) for peer, chunks in messages.items())


@lru_cache(maxsize=4096)
def num_chunks(kind: str, algorithm: str, ranks_per_node: tuple[int, ...]) -> int:
    """Return the number of chunks of a step list's payload."""
    return collective_steps(kind, algorithm, ranks_per_node).num_chunks
