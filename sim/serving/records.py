"""What happened to each request: times, preemptions, and what it waited for."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.serving.requests import Requests

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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

    def __post_init__(self) -> None:
        for name in ("started_s", "first_s", "finish_s", "lost_at_s", "left_at_s"):
            setattr(self, name, np.full(self.num_requests, np.nan))
        for name in ("preempted_s", "stalled_s", "moved_s"):
            setattr(self, name, np.zeros(self.num_requests))
        for name in ("emitted", "steps", "decoded", "cached", "preemptions", "replica"):
            setattr(self, name, np.zeros(self.num_requests, dtype=np.int64))
        self.refused, self.cancelled = np.zeros((2, self.num_requests), dtype=bool)

    def lose_memory(self, request: int, now_s: float) -> None:
        """Note that an answered request lost its memory; it waits from its first loss on."""
        self.arrive(request, now_s)
        if self.emitted[request] and np.isnan(self.lost_at_s[request]):
            self.lost_at_s[request] = now_s

    def leave(self, request: int, now_s: float) -> None:
        """Note that a request has its prompt computed, and goes to another replica."""
        self.left_at_s[request] = now_s

    def arrive(self, request: int, now_s: float) -> None:
        """Note that a request has reached the replica that decodes it, or will never do."""
        if not np.isnan(self.left_at_s[request]):
            self.moved_s[request] += now_s - self.left_at_s[request]
            self.left_at_s[request] = np.nan

    def start(self, request: int, num_cached: int, now_s: float) -> None:
        """Note that tokens of a request are computed, for the first time or again."""
        if np.isnan(self.started_s[request]):
            self.started_s[request], self.cached[request] = now_s, num_cached
        if not np.isnan(self.lost_at_s[request]):
            self.preempted_s[request] += now_s - self.lost_at_s[request]
            self.lost_at_s[request] = np.nan

    def decode(self, requests: Ints, num_steps: Ints, num_tokens: Ints) -> None:
        """Add decoding iterations and their tokens to each of some requests, as they leave their batch."""
        self.steps[requests] += num_steps
        self.decoded[requests] += num_tokens
        self.emitted[requests] += num_tokens

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
