"""One replica of a service: prompts that wait, rows that decode, and a clock of iterations on SimPy.

Iterations that only decode, with the same rows, are one event: their times follow from the growing context. A request
that comes meanwhile ends the run after the iteration in progress, if it could be let in.
"""

from typing import Final

import simpy

from sim.serving.blocks import BlockPool
from sim.serving.prices.microbatches import Chunk
from sim.serving.prices.steps import OneIteration, Run
from sim.serving.prompts import Pending, Prompts
from sim.serving.rows.row import GoneRow, Row
from sim.serving.setup import Setup

_LONGEST_RUN: Final = 512


class Replica:
    """A replica at work. ``busy_s``: seconds of iterations; ``stall_s``: of those in which no row decoded.

    ``run``: the iterations in progress, which began at ``started_s``. ``decodes``: rows decode in them.
    """

    def __init__(self, index: int, world: simpy.Environment, setup: Setup, pool: BlockPool) -> None:
        self.index, self.world, self.setup, self.pool = index, world, setup, pool
        self.waiting = Prompts(setup.requests, setup.records, pool)
        self.rows = setup.rows(pool.block_tokens)
        self.pieces: dict[int, tuple[int, ...]] = {}
        self.chunks: list[tuple[Pending, int]] = []
        self.run: Run = OneIteration(0.0)
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
        records = self.setup.records
        records.replica[request] = self.index
        most = self.waiting.most_tokens(request) - 1 + self.setup.decoding.positions
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
        rows = self.rows.take_all()
        lost = [gone.request for gone in rows] + [pending.request for pending in self.waiting.queue]
        lost += self._lose_others()
        for gone in rows:
            self._drop(gone)
        for request in lost:
            self.setup.records.lose_memory(request, self.world.now)
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
        self._shorten()
        self.pool.note_peak()
        span_s = self.world.now - self.started_s
        ended = self.run.ended(span_s)
        if ended == self.run.count:
            self._complete()
            return
        self.busy_s += span_s
        if self.decodes and ended:
            self.rows.decode(ended)
        elif not self.decodes and len(self.rows):
            self.stall_s += span_s

    def _wake(self) -> None:
        """Begin an iteration, or end a run of iterations early where the queue's first might be let in."""
        if not self.is_busy:
            self._begin()
        elif len(self.waiting) == 1 and len(self.rows) < self.setup.batching.max_rows:
            self._shorten()

    def _shorten(self) -> None:
        """End a run after the iteration that is in progress, and free the blocks of those that fall away."""
        if not self.is_busy or self.run.count == 1:
            return
        count = self.run.ended(self.world.now - self.started_s) + 1
        if count < self.run.count:
            self.run = self.run.first(count)
            self.pool.give_back(self.rows.loosen(count))
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
        self.run, self.started_s = self._run(count), self.world.now
        self._schedule()

    def _run(self, count: int) -> Run:
        """Return so many iterations of the chosen rows and chunks."""
        cost, decoding, rows = self.setup.cost, self.setup.decoding, len(self.rows)
        chunks = [Chunk(tokens, pending.computed) for pending, tokens in self.chunks]
        if not self.decodes:
            return OneIteration(cost.pass_s(0, 1, 0.0, chunks))
        draft_s = decoding.draft_s(rows)
        if not chunks:
            return self.rows.run(cost.steps(rows, decoding.positions), count, draft_s)
        context = self.rows.sum_held / rows
        return OneIteration(cost.pass_s(rows, decoding.positions, context, chunks) + draft_s)

    def _schedule(self) -> None:
        self.version += 1
        delay_s = max(0.0, self.started_s + self.run.span_s - self.world.now)
        self.world.timeout(delay_s, self.version).callbacks.append(self._end_if_meant)

    def _end_if_meant(self, event: simpy.Event) -> None:
        """End a run of iterations, unless it was given another end, or broken off, and begin the next."""
        if event.value == self.version:
            self._complete()
            self._begin()

    def _run_length(self, whole: bool) -> int:
        """Return how many iterations the rows decode together, and give them the blocks for these.

        Until one finishes or blocks run out; one with prompts beside it, or where somebody had to go (not ``whole``),
        who may be let in again after it.
        """
        if whole and not self.chunks:
            count = self.rows.steps_left(_LONGEST_RUN)
            while count and not self._hold_blocks(count):
                count //= 2
            if count:
                return count
        if not self.setup.batching.mixes:
            self._make_room()
        return 1

    def _hold_blocks(self, num_steps: int) -> bool:
        """Give the rows the blocks that they need for so many steps more; none where they are not obtainable.

        Returns whether they were.
        """
        lacking = self.rows.lacking(num_steps)
        if lacking > self.pool.obtainable:
            return False
        self.rows.hold(num_steps)
        if lacking:
            self.pool.take(lacking)
        return True

    def _make_room(self) -> bool:
        """Give the rows blocks for an iteration, and preempt the latest until there are enough.

        Returns whether nobody had to go.
        """
        whole = True
        while not self._hold_blocks(1):
            whole = False
            if not self.waiting.release_last(self.world.now):
                self._preempt()
        return whole

    def _preempt(self) -> None:
        """Let the latest row go, to be computed again."""
        records, gone = self.setup.records, self.rows.take_last()
        self._drop(gone)
        records.preemptions[gone.request] += 1
        records.lose_memory(gone.request, self.world.now)
        self._compute_again(gone.request)

    def _compute_again(self, request: int) -> None:
        """Put a preempted request to the front of the queue."""
        self.waiting.put_back(request)

    def _admit(self) -> list[tuple[Pending, int]]:
        """Return the first prompts of the queue with the tokens that the next iteration computes; they have blocks."""
        return self.waiting.admit(self.setup.batching, self.setup.decoding.positions, len(self.rows), self.world.now)

    def _drop(self, gone: GoneRow) -> None:
        """Free the blocks of a row that has left, and note what it decoded."""
        self.pool.give_back(gone.blocks)
        self.pool.leave(self.pieces.pop(gone.request, ()))
        self.setup.records.decode(gone, self.stall_s)

    # --- the end of an iteration -----------------------------------------------------------------------------

    def _complete(self) -> None:
        """Count what the iterations that have just ended computed."""
        self.pool.note_peak()
        span_s = self.run.span_s
        self.busy_s += span_s
        if self.decodes:
            self.rows.decode(self.run.count)
            self._finish_done()
        elif len(self.rows):
            self.stall_s += span_s
        for pending, share in self.chunks:
            pending.computed += share
            if pending.computed == pending.total:
                self._join(pending)
        self.chunks = []

    def _finish_done(self) -> None:
        """Let the rows go that have all of their tokens."""
        done = self.rows.take_done()
        for gone in done:
            self._drop(gone)
            self.setup.records.finish(gone.request, self.world.now)
        for gone in done:
            self.setup.finished(gone.request)

    def _join(self, pending: Pending) -> None:
        """Move a computed prompt to the rows: it emits a token."""
        request = pending.request
        self.waiting.queue.remove(pending)
        fresh = pending.pieces[pending.used :]
        self.pool.share(fresh)
        pending.blocks -= len(fresh) * self.pool.blocks_per_piece
        self.pieces[request] = pending.pieces
        emitted = self.setup.records.emit_one(request, self.world.now)
        self._keep(pending, self.waiting.output_tokens(request) - emitted)

    def _keep(self, pending: Pending, left: int) -> None:
        """Let a request decode whose prompt is computed, or finish where it wants no more tokens."""
        shared = len(pending.pieces) * self.setup.requests.prefix_tokens
        self.rows.add(Row(pending.request, pending.total, left, shared, self.stall_s))
        if not left:
            self._finish_done()
