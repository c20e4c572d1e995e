"""What happened to each request: times, preemptions, and what it waited for."""

from dataclasses import dataclass, field
from math import isnan, nan

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.serving.cells import Cells, cells
from sim.serving.requests import Requests
from sim.serving.rows.row import GoneRow

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class _Cells(Struct, frozen=True):
    """The columns of ``Records`` that replicas write request by request."""

    started_s: Cells[float]
    first_s: Cells[float]
    finish_s: Cells[float]
    lost_at_s: Cells[float]
    left_at_s: Cells[float]
    preempted_s: Cells[float]
    stalled_s: Cells[float]
    moved_s: Cells[float]
    emitted: Cells[int]
    steps: Cells[int]
    decoded: Cells[int]
    cached: Cells[int]


@dataclass(slots=True)
class Records:
    """A row of each array per request. Times are seconds; an instant that never came is NaN.

    ``started_s``: its first tokens were computed; ``first_s``, ``finish_s``: its first and last token came. Seconds
    that it waited: ``preempted_s`` without its memory, from each loss until its tokens began to be computed again;
    ``stalled_s`` in the batch while only prompts of others were computed, ``moved_s`` from its prompt's replica to one
    that decodes. ``lost_at_s``, ``left_at_s``: the instant of a loss, or of a computed prompt, that it still waits for.
    ``emitted``: tokens; ``steps``: decoding iterations, which gave ``decoded`` of them; ``cached``:
    tokens of the prompt that were not computed, since another request had left them there.
    """

    num_requests: int
    started_s: Floats = field(init=False)
    first_s: Floats = field(init=False)
    finish_s: Floats = field(init=False)
    lost_at_s: Floats = field(init=False)
    left_at_s: Floats = field(init=False)
    preempted_s: Floats = field(init=False)
    stalled_s: Floats = field(init=False)
    moved_s: Floats = field(init=False)
    emitted: Ints = field(init=False)
    steps: Ints = field(init=False)
    decoded: Ints = field(init=False)
    cached: Ints = field(init=False)
    preemptions: Ints = field(init=False)
    replica: Ints = field(init=False)
    refused: NDArray[np.bool_] = field(init=False)
    cancelled: NDArray[np.bool_] = field(init=False)
    _cells: _Cells = field(init=False)

    def __post_init__(self) -> None:
        for name in ("started_s", "first_s", "finish_s", "lost_at_s", "left_at_s"):
            setattr(self, name, np.full(self.num_requests, np.nan))
        for name in ("preempted_s", "stalled_s", "moved_s"):
            setattr(self, name, np.zeros(self.num_requests))
        for name in ("emitted", "steps", "decoded", "cached", "preemptions", "replica"):
            setattr(self, name, np.zeros(self.num_requests, dtype=np.int64))
        self.refused, self.cancelled = np.zeros((2, self.num_requests), dtype=bool)
        self._cells = _Cells(*(cells(getattr(self, name)) for name in _Cells.__struct_fields__))

    def lose_memory(self, request: int, now_s: float) -> None:
        """Note that an answered request lost its memory; it waits from its first loss on."""
        self.arrive(request, now_s)
        of = self._cells
        if of.emitted[request] and isnan(of.lost_at_s[request]):
            of.lost_at_s[request] = now_s

    def leave(self, request: int, now_s: float) -> None:
        """Note that a request has its prompt computed, and goes to another replica."""
        self._cells.left_at_s[request] = now_s

    def arrive(self, request: int, now_s: float) -> None:
        """Note that a request has reached the replica that decodes it, or will never do."""
        of = self._cells
        if not isnan(of.left_at_s[request]):
            of.moved_s[request] += now_s - of.left_at_s[request]
            of.left_at_s[request] = nan

    def start(self, request: int, num_cached: int, now_s: float) -> None:
        """Note that tokens of a request are computed, for the first time or again."""
        of = self._cells
        if isnan(of.started_s[request]):
            of.started_s[request], of.cached[request] = now_s, num_cached
        if not isnan(of.lost_at_s[request]):
            of.preempted_s[request] += now_s - of.lost_at_s[request]
            of.lost_at_s[request] = nan

    def emitted_of(self, request: int) -> int:
        """Return the tokens of a request so far."""
        return self._cells.emitted[request]

    def emit_one(self, request: int, now_s: float) -> int:
        """Note that a request's prompt is computed, which yields a token; return its tokens so far."""
        of = self._cells
        if isnan(of.first_s[request]):
            of.first_s[request] = now_s
        of.emitted[request] += 1
        return of.emitted[request]

    def decode(self, gone: GoneRow, stall_s: float) -> None:
        """Add the decoding iterations and tokens of a row that leaves its batch, at this clock of stalls."""
        of, request = self._cells, gone.request
        of.stalled_s[request] += stall_s - gone.stall_s
        of.steps[request] += gone.steps
        of.decoded[request] += gone.decoded
        of.emitted[request] += gone.decoded

    def finish(self, request: int, now_s: float) -> None:
        """Note that a request has all its tokens."""
        self._cells.finish_s[request] = now_s

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Return which requests got all their tokens."""
        return ~np.isnan(self.finish_s)

    def ttft_s(self, requests: Requests) -> Floats:
        """Return the time to the first token, from arrival."""
        return self.first_s - requests.arrival_s

    def tpot_s(self) -> Floats:
        """Return the time per output token after the first; NaN for one token."""
        later = np.where(self.emitted > 1, self.emitted - 1.0, np.nan)
        return (self.finish_s - self.first_s) / later

    def latency_s(self, requests: Requests) -> Floats:
        """Return the time from arrival to the last token."""
        return self.finish_s - requests.arrival_s
