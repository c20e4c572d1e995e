"""Collectives and messages whose other ranks have no file, or never take part."""

from collections import Counter
from collections.abc import Mapping, Sequence

from traces.chakra.node import Node


def lonely(ranks: Mapping[int, Sequence[Node]], groups: Mapping[str, tuple[int, ...]]) -> Counter[str]:
    """Return the number of collectives and messages without another end, by kind of doubt."""
    problems: Counter[str] = Counter()
    issued: dict[str, Counter[int]] = {}
    for rank, nodes in ranks.items():
        for node in nodes:
            if node.is_collective:
                issued.setdefault(node.group, Counter())[rank] += 1
            elif node.is_message and node.peer not in ranks:
                problems["peer_absent"] += 1
    for group, counts in issued.items():
        if {*groups.get(group, ranks)} - counts.keys():
            problems["member_absent"] += max(counts.values())
    return problems
