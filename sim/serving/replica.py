"""One replica of a service: prompts that wait, rows that decode, and a clock of iterations on SimPy.

Iterations that only decode, with the same rows, are one event: their times follow from the growing context. A request
that comes meanwhile ends the run after the iteration in progress, if it could be let in.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import simpy
from msgspec import Struct
from numpy.typing import NDArray

from sim.serving.batching import Batching
from sim.serving.blocks import BlockPool
from sim.serving.decoding.method import Decoding
from sim.serving.prices.cost import IterationCost
from sim.serving.prices.microbatches import Chunk
from sim.serving.prompts import Pending, Prompts
from sim.serving.records import Records
from sim.serving.requests import Requests
from sim.serving.rows import Rows

_LONGEST_RUN: Final = 512


class Setup(Struct, frozen=True):
    """What all replicas of a service share. ``finished``: called with every request that is done."""

    requests: Requests
    records: Records
    cost: IterationCost
    batching: Batching
    decoding: Decoding
    seed: int
    finished: Callable[[int], None]


class Replica:
    """A replica at work. ``busy_s``: seconds of iterations; ``stall_s``: of those in which no row decoded."""

    def __init__(self, index: int, world: simpy.Environment, setup: Setup, pool: BlockPool) -> None:
        self.index, self.world, self.setup, self.pool = index, world, setup, pool
        self.waiting = Prompts(setup.requests, setup.records, pool)
        self.rows = Rows()
        self.pieces: dict[int, tuple[int, ...]] = {}
        self.chunks: list[tuple[Pending, int]] = []
        self.ends_s: NDArray[np.float64] = np.zeros(0)
        self.started_s = self.busy_s = self.stall_s = 0.0
        self.version = 0
        self.is_busy, self.decodes, self.is_up = False, False, True

    @property
    def outstanding(self) -> int:
        """Return the requests that wait or run here."""
        return len(self.waiting) + len(self.rows)

    def known_pieces(self, request: int) -> int:
        """Return how many first pieces of a request's prompt are in memory."""
        return self.pool.known(self.waiting.pieces_of(request))

    def accept(self, request: int) -> None:
        """Put a request into the queue. One that could never fit is refused."""
        records, requests = self.setup.records, self.setup.requests
        records.replica[request] = self.index
        most = (
            int(requests.prompt_tokens[request] + requests.output_tokens[request]) - 1 + self.setup.decoding.positions
        )
        if -(-most // self.pool.block_tokens) > self.pool.most_of_one:
            records.refused[request] = True
            self.setup.finished(request)
            return
        self.waiting.append(request)
        self._wake()

    def cancel(self, request: int) -> None:
        """Take a request that has no token yet out of the queue, and free its blocks."""
        self.waiting.cancel(request, self.world.now)
        self.chunks = [(pending, tokens) for pending, tokens in self.chunks if pending.request != request]
        self._shorten()

    def fail(self) -> list[int]:
        """Stop at once and lose all memory; emitted tokens stay. Returns the unfinished requests, in order.

        Iterations that end at this instant have ended; what is done of the one in progress is lost.
        """
        if self.is_busy:
            self._break_off()
        lost = self.rows.ids.tolist() + [pending.request for pending in self.waiting.queue] + self._lose_others()
        for request in lost:
            self.setup.records.lose_memory(request, self.world.now)
        self._drop(np.ones(len(self.rows), dtype=bool))
        self.waiting.release_all(self.world.now)
        self.waiting.queue.clear()
        self.chunks = []
        self.pool.forget()
        self.version += 1
        self.is_busy = self.is_up = False
        return sorted(lost)

    def _lose_others(self) -> list[int]:
        """Free the blocks of requests that neither wait nor decode, and return them."""
        return []

    def _break_off(self) -> None:
        """End a run of iterations at this instant: keep those that have ended, and count the time of the last."""
        done, span_s = self._done(), self.world.now - self.started_s
        if done == len(self.ends_s):
            self._complete()
            return
        self.busy_s += span_s
        if self.decodes and done:
            self.rows.decode_plainly(done)
        elif not self.decodes and len(self.rows):
            self.stall_s += span_s

    def _done(self) -> int:
        """Return the iterations of the run that have ended."""
        return int(np.searchsorted(self.ends_s, self.world.now - self.started_s, side="right"))

    def _wake(self) -> None:
        """Begin an iteration, or end a run of iterations early where the queue's first might be let in."""
        if not self.is_busy:
            self._begin()
        elif len(self.waiting) == 1 and len(self.rows) < self.setup.batching.max_rows:
            self._shorten()

    def _shorten(self) -> None:
        """End a run after the iteration that is in progress, and free the blocks of those that fall away."""
        done = self._done() + 1
        if self.is_busy and done < len(self.ends_s):
            self.ends_s = self.ends_s[:done]
            needed = self.rows.blocks_for(done, self.pool.block_tokens)
            self.pool.give_back(int(np.add.reduce(self.rows.blocks - needed)))
            self.rows.blocks[:] = needed
            self._schedule()

    # --- an iteration: what it computes, and for how long ------------------------------------------------------

    def _begin(self) -> None:
        """Choose what the next iterations compute, give it its blocks, and start the clock; else be idle."""
        mixes = self.setup.batching.mixes
        whole = self._make_room() if mixes else True
        self.chunks = self._admit() if whole else []
        decodes = len(self.rows) > 0 and (mixes or not self.chunks)
        count = self._run_length(whole) if decodes else 1
        if not len(self.rows) and not self.chunks:
            self.waiting.release_all(self.world.now)
            self.chunks = self._admit()
        self.decodes = decodes and len(self.rows) > 0
        self.is_busy = self.decodes or bool(self.chunks)
        if not self.is_busy:
            return
        self.ends_s = self._durations_s(count).cumsum()
        self.started_s = self.world.now
        self._schedule()

    def _durations_s(self, count: int) -> NDArray[np.float64]:
        cost, decoding, rows = self.setup.cost, self.setup.decoding, len(self.rows)
        chunks = [Chunk(tokens, pending.computed) for pending, tokens in self.chunks]
        if not self.decodes:
            return cost.pass_s(0, 1, np.zeros(1), chunks)
        contexts = np.arange(count, dtype=np.float64) + self.rows.sum_held / rows
        times = cost.pass_s(rows, decoding.positions, contexts, chunks)
        return times if decoding.is_plain else times + decoding.draft_s(rows)

    def _schedule(self) -> None:
        self.version += 1
        delay_s = max(0.0, self.started_s + float(self.ends_s[-1]) - self.world.now)
        self.world.timeout(delay_s, self.version).callbacks.append(self._end_if_meant)

    def _end_if_meant(self, event: simpy.Event) -> None:
        """End a run of iterations, unless it was given another end, or broken off."""
        if event.value == self.version:
            self._end()

    def _run_length(self, whole: bool) -> int:
        """Return how many iterations the rows decode together, and give them the blocks for these.

        Until one finishes or blocks run out; one with drafts, with prompts beside it, or where somebody had to go
        (not ``whole``), who may be let in again after it.
        """
        if whole and not self.chunks and self.setup.decoding.is_plain:
            count = min(self.rows.least_left, _LONGEST_RUN)
            while count and not self._hold_blocks(count):
                count //= 2
            if count:
                return count
        if not self.setup.batching.mixes:
            self._make_room()
        return 1

    def _hold_blocks(self, num_tokens: int) -> bool:
        """Give the rows the blocks that they need for so many tokens more; none where they are not obtainable.

        Returns whether they were.
        """
        rows = self.rows
        needed = rows.blocks_for(num_tokens, self.pool.block_tokens)
        more = int(np.add.reduce(np.maximum(needed - rows.blocks, 0)))
        if more > self.pool.obtainable:
            return False
        if more:
            self.pool.take(more)
            np.maximum(rows.blocks, needed, out=rows.blocks)
        return True

    def _make_room(self) -> bool:
        """Give the rows blocks for an iteration, and preempt the latest until there are enough.

        Returns whether nobody had to go.
        """
        whole = True
        while not self._hold_blocks(self.setup.decoding.positions):
            whole = False
            if not self.waiting.release_last(self.world.now):
                self._preempt()
        return whole

    def _preempt(self) -> None:
        """Put the latest row back to the front of the queue, to be computed again."""
        last = len(self.rows) - 1
        request, records = int(self.rows.ids[last]), self.setup.records
        self._drop(np.arange(last + 1) == last)
        records.preemptions[request] += 1
        records.lose_memory(request, self.world.now)
        self.waiting.put_back(request)

    def _admit(self) -> list[tuple[Pending, int]]:
        """Return the first prompts of the queue with the tokens that the next iteration computes; they have blocks."""
        return self.waiting.admit(self.setup.batching, self.setup.decoding.positions, len(self.rows), self.world.now)

    def _drop(self, which: NDArray[np.bool_]) -> list[int]:
        """Take rows out of the batch and free their blocks; return their requests."""
        rows, records = self.rows, self.setup.records
        gone = rows.ids[which]
        requests: list[int] = gone.tolist()
        self.pool.give_back(sum(rows.blocks[which].tolist()))
        for request in requests:
            self.pool.leave(self.pieces.pop(request, ()))
        records.stalled_s[gone] += self.stall_s - rows.stall_s[which]
        records.decode(gone, rows.steps[which], rows.decoded[which])
        rows.remove(which)
        return requests

    # --- the end of an iteration -----------------------------------------------------------------------------

    def _end(self) -> None:
        self._complete()
        self._begin()

    def _complete(self) -> None:
        """Count what the iterations that have just ended computed."""
        count, span_s = len(self.ends_s), float(self.ends_s[-1])
        self.busy_s += span_s
        if self.decodes:
            self._emit(count)
        elif len(self.rows):
            self.stall_s += span_s
        for pending, share in self.chunks:
            pending.computed += share
            if pending.computed == pending.total:
                self._join(pending)
        self.chunks = []

    def _emit(self, count: int) -> None:
        """Add the tokens of iterations to the rows, and let those go that have all of theirs."""
        records, rows, decoding = self.setup.records, self.rows, self.setup.decoding
        if decoding.is_plain:
            rows.decode_plainly(count)
        else:
            drawn = decoding.drawn(self.setup.seed, rows.ids, records.steps[rows.ids] + rows.steps)
            rows.decode(np.minimum(drawn, rows.left))
        if not rows.least_left:
            self._finish(rows.left == 0)

    def _finish(self, done: NDArray[np.bool_]) -> None:
        finished = self._drop(done)
        self.setup.records.finish_s[finished] = self.world.now
        for request in finished:
            self.setup.finished(request)

    def _join(self, pending: Pending) -> None:
        """Move a computed prompt to the rows: it emits a token."""
        records, request = self.setup.records, pending.request
        self.waiting.queue.remove(pending)
        fresh = pending.pieces[pending.used :]
        self.pool.share(fresh)
        pending.blocks -= len(fresh) * self.pool.blocks_per_piece
        self.pieces[request] = pending.pieces
        if np.isnan(records.first_s[request]):
            records.first_s[request] = self.world.now
        records.emitted[request] += 1
        self._keep(pending, int(self.setup.requests.output_tokens[request] - records.emitted[request]))

    def _keep(self, pending: Pending, left: int) -> None:
        """Let a request decode whose prompt is computed, or finish where it wants no more tokens."""
        shared = len(pending.pieces) * self.setup.requests.prefix_tokens
        self.rows.add(pending.request, pending.total, left, pending.blocks, shared, self.stall_s)
        if not left:
            self._finish(np.arange(len(self.rows)) == len(self.rows) - 1)
