"""Directed links as arrays: their ends, kinds and rates."""

from collections.abc import Callable, Iterable
from enum import IntEnum
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
AnyInts = npt.NDArray[np.integer[Any]]

NONE = -1
"""Padding of rows of unequal length: no link."""


class LinkKind(IntEnum):
    """The kind of a link: its technology, or the network levels that it joins."""

    NVLINK = 0
    NVSWITCH = 1
    PORT = 2
    """A device's link to the other devices of its node, of any other technology: shared memory, PCIe, ..."""
    PCIE = 3
    HOST = 4
    SOCKET = 5
    MEMORY = 6
    """The memory of a node's host, to whatever reads and writes it."""
    DRIVES = 7
    """A node's drives, to its host's memory."""
    NIC = 8
    LEAF_SPINE = 9
    SPINE_CORE = 10
    TORUS = 11
    LOCAL = 12
    GLOBAL = 13

    @property
    def words(self) -> str:
        """Return the name of the kind for people."""
        return _WORDS[self]


_WORDS = {
    LinkKind.NVLINK: "nvlink",
    LinkKind.NVSWITCH: "nvswitch port",
    LinkKind.PORT: "device port",
    LinkKind.PCIE: "pcie",
    LinkKind.HOST: "device-host (nvlink, c2c)",
    LinkKind.SOCKET: "socket-socket (upi, x-bus)",
    LinkKind.MEMORY: "host memory",
    LinkKind.DRIVES: "drives",
    LinkKind.NIC: "nic",
    LinkKind.LEAF_SPINE: "leaf-spine",
    LinkKind.SPINE_CORE: "spine-core",
    LinkKind.TORUS: "torus",
    LinkKind.LOCAL: "inside a dragonfly group",
    LinkKind.GLOBAL: "between dragonfly groups",
}


class Cable(Struct, frozen=True, kw_only=True):
    """One direction of a link. ``message_s``: time for which each message occupies the link, whatever its size."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    message_s: float = 0.0

    def times(self, count: float) -> "Cable":
        """Return ``count`` parallel cables as one.

        The bandwidths add up, and messages occupy it for 1/``count`` of the time.
        """
        return Cable(
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * count,
            latency_s=self.latency_s,
            message_s=self.message_s / count,
        )


class LinkTable(Struct, frozen=True):
    """Columns of equal length, one row per directed link; ``source`` and ``target`` are vertex numbers of a graph."""

    source: IntArray
    target: IntArray
    kind: npt.NDArray[np.int8]
    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    message_s: FloatArray

    def __len__(self) -> int:
        return len(self.source)

    @property
    def pattern(self) -> "LinkTable":
        """Return the table whose kinds and rates it repeats: itself."""
        return self

    def moved(self, source: AnyInts, target: AnyInts) -> "MovedLinks":
        """Return the links between other vertices; for more vertices than links, the links are repeated in order."""
        return MovedLinks(np.asarray(source, np.int32), np.asarray(target, np.int32), self)


class MovedLinks(Struct, frozen=True):
    """Links between vertices of their own, whose kinds and rates are those of a table, over and over."""

    source: IntArray
    target: IntArray
    pattern: LinkTable


def one_way(source: AnyInts, target: AnyInts, kind: LinkKind, cable: Cable) -> LinkTable:
    """Return equal links from each source to the target of the same index."""
    count = len(source)
    return LinkTable(
        np.asarray(source, np.int32),
        np.asarray(target, np.int32),
        np.full(count, kind, np.int8),
        np.full(count, cable.bandwidth_bytes_per_s),
        np.full(count, cable.latency_s),
        np.full(count, cable.message_s),
    )


def two_way(first: AnyInts, second: AnyInts, kind: LinkKind, cable: Cable) -> LinkTable:
    """Return ``len(first)`` links from first to second, then as many back, in the same order."""
    return one_way(np.concatenate([first, second]), np.concatenate([second, first]), kind, cable)


def joined(tables: Iterable[LinkTable | MovedLinks]) -> LinkTable:
    """Return the rows of all tables, one table after the other."""
    parts = list(tables) or [one_way(np.zeros(0, int), np.zeros(0, int), LinkKind.NIC, Cable(bandwidth_bytes_per_s=1))]
    source, target = np.concatenate([part.source for part in parts]), np.concatenate([part.target for part in parts])
    kind = _written(np.empty(len(source), np.int8), parts, attrgetter("kind"))
    columns = (attrgetter(name) for name in ("bandwidth_bytes_per_s", "latency_s", "message_s"))
    return LinkTable(source, target, kind, *(_written(np.empty(len(source)), parts, column) for column in columns))


def _written(
    column: npt.NDArray[Any],
    parts: Iterable[LinkTable | MovedLinks],
    column_of: Callable[[LinkTable], npt.NDArray[Any]],
) -> npt.NDArray[Any]:
    """Return a column with those of parts written into it, one after the other: copies would fill memory."""
    rest = column
    for part in parts:
        mine, rest = rest[: len(part.source)], rest[len(part.source) :]
        if len(mine):
            mine.reshape(-1, len(part.pattern))[:] = column_of(part.pattern)
    return column


def num_hops(hops: AnyInts) -> npt.NDArray[np.int64]:
    """Return the number of links in each row of routes [routes, links], in which -1 is no link."""
    counts = np.zeros(len(hops), np.int64)
    for links in hops.T:
        counts += links != NONE
    return counts
