"""The contents of a Chakra trace, op by op."""

from typing import Final

from msgspec import Struct

from traces.doubt import Doubt
from traces.timeline import COLLECTIVE_KINDS, MESSAGE_KINDS

NO_RANK: Final = -1
HOST: Final = "host"
COLLECTIVES: Final = frozenset({*COLLECTIVE_KINDS, "gather", "scatter"})


class Node(Struct, frozen=True, kw_only=True):
    """An op of one rank.

    ``kind``: as in a timeline (``compute``, ``copy``, a collective's, ``send``, ``recv``); HOST for an op of the CPU;
        empty for a node that only holds other nodes up.
    ``after``: the ids of the nodes that must end before.
    ``num_bytes``: bytes read and written by a kernel, or the payload of a message or collective, as in a timeline.
    ``group``: the process group of a collective, empty for all ranks.
    ``duration_s``: for a send the busy time of the sender, for a receive the travel time of the message after that.
    """

    id: int
    name: str
    kind: str
    after: tuple[int, ...] = ()
    duration_s: float = 0.0
    num_bytes: int = 0
    flop: int = 0
    group: str = ""
    peer: int = NO_RANK
    tag: int = 0
    stream: str = ""

    @property
    def on_device(self) -> bool:
        """Return whether the op uses the device or the network."""
        return self.kind not in {"", HOST}

    @property
    def is_collective(self) -> bool:
        """Return whether all ranks of a process group take part."""
        return self.kind in COLLECTIVES

    @property
    def is_message(self) -> bool:
        """Return whether the op is one end of a message."""
        return self.kind in MESSAGE_KINDS


class ChakraTrace(Struct, frozen=True):
    """The nodes of each rank, and the ranks of each named process group."""

    ranks: dict[int, tuple[Node, ...]]
    groups: dict[str, tuple[int, ...]]
    warnings: tuple[Doubt, ...] = ()
