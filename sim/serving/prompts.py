"""Prompts that wait at a replica: their order, their admission, and the blocks of those that are half computed."""

from collections import deque
from dataclasses import dataclass

from sim.serving.batching import Batching
from sim.serving.blocks import BlockPool
from sim.serving.cells import cells
from sim.serving.records import Records
from sim.serving.requests import Requests


@dataclass(slots=True)
class Pending:
    """A prompt in the queue; after a preemption the prompt and the tokens that were emitted.

    ``total``: tokens to compute; ``computed``: those that are done or were found in memory. ``blocks``: private blocks
    held; ``pieces``: the names of its whole shared pieces; the first ``used`` of these are in use.
    """

    request: int
    total: int
    pieces: tuple[int, ...]
    computed: int = 0
    blocks: int = 0
    used: int = 0


class Prompts:
    """The queue of a replica. The replica gives the time; blocks come from its ``pool``."""

    def __init__(self, requests: Requests, records: Records, pool: BlockPool) -> None:
        self.requests, self.records, self.pool = requests, records, pool
        self.queue: deque[Pending] = deque()
        self._prompt_tokens, self._output_tokens = cells(requests.prompt_tokens), cells(requests.output_tokens)

    def __len__(self) -> int:
        return len(self.queue)

    def pieces_of(self, request: int) -> tuple[int, ...]:
        """Return the names of the whole shared pieces of a request's prompt."""
        if not self.requests.prefixes:
            return ()
        return self.requests.prefixes[request][: self._prompt_tokens[request] // self.requests.prefix_tokens]

    def output_tokens(self, request: int) -> int:
        """Return the tokens that a request wants."""
        return self._output_tokens[request]

    def most_tokens(self, request: int) -> int:
        """Return the tokens of a request's prompt and answer together."""
        return self._prompt_tokens[request] + self._output_tokens[request]

    def append(self, request: int) -> None:
        """Put a request at the end of the queue, with the tokens that it has emitted elsewhere."""
        self.queue.append(self._pending(request))

    def put_back(self, request: int) -> None:
        """Put a preempted request at the front of the queue."""
        self.queue.appendleft(self._pending(request))

    def cancel(self, request: int, now_s: float) -> None:
        """Take a request out of the queue, and free its blocks."""
        pending = next(pending for pending in self.queue if pending.request == request)
        self.queue.remove(pending)
        self._release(pending, now_s)

    def release_last(self, now_s: float) -> bool:
        """Free the blocks of the last half-computed prompt; return whether there was one."""
        holder = next((pending for pending in reversed(self.queue) if pending.blocks or pending.used), None)
        if holder is not None:
            self._release(holder, now_s)
        return holder is not None

    def release_all(self, now_s: float) -> None:
        """Free the blocks of all half-computed prompts."""
        for pending in self.queue:
            self._release(pending, now_s)

    def admit(self, batching: Batching, positions: int, num_rows: int, now_s: float) -> list[tuple[Pending, int]]:
        """Give the first prompts their blocks, and return them with the tokens that the next iteration computes.

        ``num_rows`` sequences decode, each with ``positions`` query positions. Prompts stay in the queue until they are
        computed.
        """
        if not self.queue:
            return []
        admitted = self._admission(batching, positions, num_rows)
        size = self.requests.prefix_tokens
        for pending, _ in admitted:  # all use their pieces before any takes blocks, which may drop unused pieces
            if not pending.computed:
                pending.computed = self._start(pending)
                pending.used = pending.computed // size
                self.pool.use(pending.pieces[: pending.used])
        for pending, share in admitted:
            self.records.start(pending.request, pending.computed, now_s)
            private = -((pending.used * size - pending.computed - share) // self.pool.block_tokens)
            self.pool.take(private - pending.blocks)
            pending.blocks = private
        return admitted

    def _pending(self, request: int) -> Pending:
        total = self._prompt_tokens[request] + self.records.emitted_of(request)
        return Pending(request, total, self.pieces_of(request))

    def _admission(self, batching: Batching, positions: int, num_rows: int) -> list[tuple[Pending, int]]:
        """Return the first prompts that the next iteration can compute, with their tokens."""
        found, blocks = list[tuple[Pending, int]](), self.pool.obtainable
        heads = iter(self.queue)
        lacking = (pending.total - self._start(pending) for pending in self.queue)
        for share in batching.shares(num_rows, positions, lacking):
            pending = next(heads)
            start = self._start(pending)
            wanted = self._blocks_wanted(pending, start, share)
            if num_rows + len(found) >= batching.max_rows or wanted > blocks:
                break
            blocks -= wanted
            found.append((pending, share))
        return found

    def _start(self, pending: Pending) -> int:
        """Return the tokens that a prompt does not compute: done before, or in memory; at least one is computed."""
        if pending.computed or not pending.pieces:
            return pending.computed
        size = self.requests.prefix_tokens
        known = min(self.pool.known(pending.pieces), (pending.total - 1) // size)
        return known * size

    def _blocks_wanted(self, pending: Pending, start: int, share: int) -> int:
        """Return the obtainable blocks that computing so many tokens takes, those of unused known pieces included."""
        size = self.requests.prefix_tokens
        used = pending.used if pending.computed else start // size
        private = -((used * size - start - share) // self.pool.block_tokens) - pending.blocks
        waking = 0 if pending.computed else self.pool.unused_of(pending.pieces[:used])
        return private + waking * self.pool.blocks_per_piece

    def _release(self, pending: Pending, now_s: float) -> None:
        """Free the blocks of a prompt, which is then computed from its beginning."""
        if pending.computed:
            self.records.lose_memory(pending.request, now_s)
        self.pool.give_back(pending.blocks)
        self.pool.leave(pending.pieces[: pending.used])
        pending.computed = pending.blocks = pending.used = 0
