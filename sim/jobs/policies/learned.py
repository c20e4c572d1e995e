"""A learned policy: each GPU goes to the job of the highest score, a product of powers of what is known of the job.

It stands for policies learned by reinforcement, such as the baseline of ONES (SC 2021), whose weights and state are not
published. Shortest epochs first, least service first and largest gain first are special cases of it. Durations are not
known; speeds are, as to Optimus. ``benchmarks/learned_policy.py`` trains the powers.
"""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from sim.jobs.active import ActiveJob
from sim.jobs.policies.shares import Shared, rate
from sim.jobs.policy import View


class Weights(Struct, frozen=True, forbid_unknown_fields=True):
    """The powers. The logarithm of a job's score is the sum of these weights times features of about -1 to 1.

    ``service``: GPU-seconds so far. ``age``: time since the arrival. ``epochs``: done. ``loss``: the part of the first
    loss that is gone; ``accuracy``: both after the last whole epoch. ``asked``: GPUs asked for. ``epoch_time``: on one
    GPU. ``first``: whether it would be the job's first GPU. ``gain``: of speed, over the speed on one GPU.
    ``promised``: GPUs it gets already; ``crowding``: the same times the jobs per GPU. ``kept``: whether it holds the
    GPU now.
    """

    service: float = 0.0
    age: float = 0.0
    epochs: float = 0.0
    loss: float = 0.0
    accuracy: float = 0.0
    asked: float = 0.0
    epoch_time: float = 0.0
    first: float = 0.0
    gain: float = 0.0
    promised: float = 0.0
    crowding: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True)
class Learned(Shared):
    """GPUs are given one by one; ties go to the job that came first. No job gets a GPU that makes it slower.

    Meant for rounds of 60 s.
    """

    weights: Weights
    name, why = "learned", "the highest score"

    def shares(self, view: View) -> Mapping[int, int]:
        """Return the shares."""
        bidders = [_Bidder(self.weights, view, each) for each in view.active]
        bids = [(-bidder.score, place) for place, bidder in enumerate(bidders)]
        heapq.heapify(bids)
        for _ in range(view.capacity):
            if not bids:
                break
            _, place = heapq.heappop(bids)
            bidders[place].take()
            if bidders[place].score > -math.inf:
                heapq.heappush(bids, (-bidders[place].score, place))
        return {each.index: bidder.num_gpus for each, bidder in zip(view.active, bidders, strict=True)}


class _Bidder:
    """A job that bids for one GPU after the other. ``score``: for the next one; minus infinity if it is of no use."""

    def __init__(self, weights: Weights, view: View, each: ActiveJob) -> None:
        self.num_gpus = 0
        self._weights, self._view, self._each = weights, view, each
        self._alone = self._next = rate(view, each, 1)
        self._most = min(each.job.most_gpus, view.capacity)
        self._crowding = (len(view.waiting) + len(view.running)) / view.capacity
        self._known = self._score_of_job()
        self.score = self._known + weights.first + weights.kept * self._is_kept

    @property
    def _is_kept(self) -> bool:
        """Return whether the job holds the next GPU already."""
        return self._each.num_gpus > self.num_gpus

    def take(self) -> None:
        """Take one more GPU."""
        self.num_gpus += 1
        now = self._next
        if self.num_gpus >= self._most:
            self.score = -math.inf
            return
        self._next = rate(self._view, self._each, self.num_gpus + 1)
        self.score = self._score_of_next((self._next - now) / self._alone)

    def _score_of_job(self) -> float:
        """Return the part of the score that is the same for all its GPUs."""
        weights, each, now_s = self._weights, self._each, self._view.now_s
        training = each.job.training
        assert training is not None
        epochs = each.epochs(now_s)
        seen = float(int(epochs))
        return (
            weights.service * math.log1p(each.attained_gpu_s(now_s)) / 10.0
            + weights.age * math.log1p(now_s - each.job.arrival_s) / 10.0
            + weights.epochs * math.log1p(epochs) / 5.0
            + weights.loss * (1.0 - training.curve.loss(seen) / training.curve.loss(0.0))
            + weights.accuracy * training.curve.accuracy_after(seen)
            + weights.asked * math.log2(each.job.num_gpus) / 5.0
            + weights.epoch_time * math.log1p(training.samples_per_epoch / self._alone) / 10.0
        )

    def _score_of_next(self, gain: float) -> float:
        """Return the score for one GPU more than it has, which raises its speed by ``gain`` times that on one."""
        if gain <= 0.0:
            return -math.inf
        weights, promised = self._weights, math.log2(1 + self.num_gpus) / 5.0
        return (
            self._known
            + weights.gain * math.log(gain) / 5.0
            + (weights.promised + weights.crowding * self._crowding) * promised
            + weights.kept * self._is_kept
        )
