"""Replicas that compute prompts alone, and replicas that decode alone; see ``handover``."""

from collections import deque
from collections.abc import Callable

import simpy

from sim.serving.blocks import BlockPool
from sim.serving.handover import Handover
from sim.serving.prompts import Pending
from sim.serving.replica import Replica
from sim.serving.rows.row import Row
from sim.serving.setup import Setup


class PromptReplica(Replica):
    """Computes prompts, and keeps their blocks until a decoding replica has them.

    ``ready``: computed prompts; ``hand_over``: called with each, and its tokens and those that it still wants.
    """

    def __init__(
        self, index: int, world: simpy.Environment, setup: Setup, pool: BlockPool,
        hand_over: Callable[[int, int, int, int], None],
    ) -> None:  # fmt: skip
        super().__init__(index, world, setup, pool)
        self.ready: dict[int, Pending] = {}
        self.hand_over = hand_over

    @property
    def outstanding(self) -> int:
        """Return the requests that wait, run, or are still held here."""
        return super().outstanding + len(self.ready)

    def release(self, request: int) -> None:
        """Free the blocks of a prompt that has left."""
        self._free(request)
        if not self.is_busy:
            self._begin()

    def _keep(self, pending: Pending, left: int) -> None:
        request = pending.request
        self.ready[request] = pending
        if left:
            self.setup.records.leave(request, self.world.now)
            self.hand_over(self.index, request, pending.total, left)
            return
        self._free(request)
        self.setup.records.finish(request, self.world.now)
        self.setup.finished(request)

    def _free(self, request: int) -> None:
        self.pool.give_back(self.ready.pop(request).blocks)
        self.pool.leave(self.pieces.pop(request))

    def _lose_others(self) -> list[int]:
        lost = list(self.ready)
        for request in lost:
            self._free(request)
        return lost


class DecodeReplica(Replica):
    """Decodes requests whose prompts were computed elsewhere.

    ``offered``: requests that wait for room; ``coming``: those whose blocks are reserved and that are on their way;
    ``arrived``: those that join at the next iteration. ``fetch``: called when a request may come; ``again``: called
    with a request that lost its memory.
    """

    def __init__(
        self, index: int, world: simpy.Environment, setup: Setup, pool: BlockPool,
        fetch: Callable[[Handover], None], again: Callable[[int], None],
    ) -> None:  # fmt: skip
        super().__init__(index, world, setup, pool)
        self.offered, self.arrived = deque[Handover](), list[Handover]()
        self.coming: dict[int, Handover] = {}
        self.fetch, self.again = fetch, again

    @property
    def outstanding(self) -> int:
        """Return the requests that decode here, or will."""
        return super().outstanding + len(self.offered) + len(self.coming) + len(self.arrived)

    def offer(self, handover: Handover) -> None:
        """Put a computed prompt at the end of those that wait for room."""
        self.offered.append(handover)
        self._take_in()
        if self.offered:
            self._shorten()  # blocks that are held for later iterations are room
            self._take_in()

    def withdraw(self, handover: Handover) -> None:
        """Forget a request whose keys and values are lost before they were here."""
        if handover.request in self.coming:
            del self.coming[handover.request]
            self.pool.give_back(self._blocks_of(handover))
            self._take_in()
        else:
            self.offered.remove(handover)

    def arrive(self, handover: Handover) -> None:
        """Let a request whose keys and values are here join at the next iteration."""
        del self.coming[handover.request]
        self.arrived.append(handover)
        if self.is_busy:
            self._shorten()
        else:
            self._begin()

    def unplaced(self) -> list[Handover]:
        """Return the requests that are not here yet, and forget them; their keys and values are at their senders."""
        found = [*self.coming.values(), *self.offered]
        self.pool.give_back(sum(map(self._blocks_of, self.coming.values())))
        self.coming.clear()
        self.offered.clear()
        return found

    def _begin(self) -> None:
        for handover in self.arrived:
            self.setup.records.arrive(handover.request, self.world.now)
            self.rows.add(Row(handover.request, handover.tokens, handover.left, 0, self.stall_s))
        self.arrived.clear()
        super()._begin()
        if self.offered:
            self._shorten()
            self._take_in()

    def _take_in(self) -> None:
        """Reserve blocks for those offered, in order, while there is room."""
        while self.offered:
            here = len(self.rows) + len(self.arrived) + len(self.coming)
            blocks = self._blocks_of(self.offered[0])
            if here >= self.setup.batching.max_rows or blocks > self.pool.obtainable:
                return
            handover = self.offered.popleft()
            self.pool.take(blocks)
            self.coming[handover.request] = handover
            self.fetch(handover)

    def _blocks_of(self, handover: Handover) -> int:
        return -(-handover.tokens // self.pool.block_tokens)

    def _compute_again(self, request: int) -> None:
        self.again(request)

    def _lose_others(self) -> list[int]:
        lost = [handover.request for handover in self.arrived]
        self.pool.give_back(sum(map(self._blocks_of, self.arrived)))
        self.arrived.clear()
        return lost
