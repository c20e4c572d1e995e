"""Policies that share the GPUs among elastic jobs one by one: Optimus, and apathetic future sharing."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heapify, heapreplace

from sim.jobs.active import ActiveJob
from sim.jobs.policy import Change, Memoryless, View


class Shared(Memoryless):
    """At each decision every job gets its share; a job whose share is what it holds goes on."""

    name, why = "", ""

    @abstractmethod
    def shares(self, view: View) -> Mapping[int, int]:
        """Return the GPUs of each job by its index; a job that is missing gets none."""

    def changes(self, view: View) -> Sequence[Change]:
        """Return the changes to the shares; the smallest jobs get their nodes first."""
        shares = self.shares(view)
        changed = [each for each in view.active if shares.get(each.index, 0) != each.num_gpus]
        changed.sort(key=lambda each: (shares.get(each.index, 0), each.index))
        return [Change(each, shares.get(each.index, 0), self.why) for each in changed]


def rate(view: View, each: ActiveJob, num_gpus: int) -> float:
    """Return the work of a job in a second on GPUs of as few nodes as possible."""
    return each.job.work_per_s(num_gpus, view.num_nodes(num_gpus)) if num_gpus else 0.0


@dataclass(frozen=True)
class Optimus(Shared):
    """Each GPU goes to the job whose remaining time it shortens most (Peng et al., EuroSys 2018).

    Remaining work is known, as in the simulations of Pollux; Optimus itself fits it to the loss. Every job first gets
    one GPU; where there are too few, the shortest ones do, or with ``by_arrival`` the first.
    """

    by_arrival: bool = False
    name, why = "optimus", "shortens the remaining times most"

    def shares(self, view: View) -> Mapping[int, int]:
        """Return the shares."""
        order = view.active
        if not self.by_arrival:
            order = sorted(order, key=lambda each: (self._left_s(view, each, 1), each.index))
        shares = {each.index: 1 for each in order[: view.capacity]}
        gains = [(-self._gain_s(view, each, 1), each.index, each) for each in order[: view.capacity]]
        heapify(gains)
        for _ in range(view.capacity - len(shares)):
            gain, index, each = gains[0]
            if gain >= 0.0:
                break
            shares[index] += 1
            heapreplace(gains, (-self._gain_s(view, each, shares[index]), index, each))
        return shares

    def _gain_s(self, view: View, each: ActiveJob, num_gpus: int) -> float:
        """Return the time that one more GPU saves."""
        if num_gpus >= min(each.job.most_gpus, view.capacity):
            return 0.0
        return self._left_s(view, each, num_gpus) - self._left_s(view, each, num_gpus + 1)

    def _left_s(self, view: View, each: ActiveJob, num_gpus: int) -> float:
        """Return the time that a job has left on GPUs of as few nodes as possible."""
        assert each.job.training is not None
        return each.job.training.left_s(each.done(view.now_s), num_gpus, view.num_nodes(num_gpus))


class ApatheticFutureSharing(Shared):
    """Each GPU goes to the winner of comparisons of two jobs (AFS, Hwang et al., NSDI 2021).

    The job that would be done later wins if a GPU raises its speed by more, relative to the speed then, than that of
    the shorter one relative to its speed now: the shorter one leaves, and its GPUs become free.
    """

    name, why = "afs", "wins the comparison of gains"

    def shares(self, view: View) -> Mapping[int, int]:
        """Return the shares."""
        shares = {each.index: 0 for each in view.active}
        for _ in range(view.capacity):
            growing = [each for each in view.active if shares[each.index] < each.job.most_gpus]
            if not growing:
                break
            shares[reduce(lambda a, b: self._winner(view, shares, a, b), growing).index] += 1
        return shares

    def _winner(self, view: View, shares: Mapping[int, int], one: ActiveJob, other: ActiveJob) -> ActiveJob:
        """Return the job of two that gets the next GPU."""
        short, long = sorted((one, other), key=lambda each: (self._left_s(view, shares, each), each.index))
        for each in (short, long):
            if not shares[each.index]:
                return each
        now, more = rate(view, short, shares[short.index]), rate(view, short, shares[short.index] + 1)
        slow, fast = rate(view, long, shares[long.index]), rate(view, long, shares[long.index] + 1)
        return long if (fast - slow) / fast > (more - now) / now else short

    def _left_s(self, view: View, shares: Mapping[int, int], each: ActiveJob) -> float:
        """Return the remaining time at a job's present share; at no GPUs that at one."""
        return (each.job.work - each.done(view.now_s)) / rate(view, each, max(1, shares[each.index]))
