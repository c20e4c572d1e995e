"""Policies that never preempt: first in, first out, strictly or with later jobs that fit, and shortest job first."""

from collections.abc import Sequence

from sim.jobs.policy import Change, Memoryless, View, start_fitting


class FifoStrict(Memoryless):
    """Jobs start in order of arrival; a job that does not fit blocks all behind it."""

    name = "fifo"

    def changes(self, view: View) -> Sequence[Change]:
        """Return the starts of the first waiting jobs until one does not fit."""
        free, found = view.free_gpus, []
        for each in view.waiting:
            if each.job.num_gpus > free:
                break
            free -= each.job.num_gpus
            found.append(Change(each, each.job.num_gpus, "first in the queue"))
        return found


class FifoFitFirst(Memoryless):
    """Jobs start in order of arrival; a job that does not fit is skipped."""

    name = "fifo_fit_first"

    def changes(self, view: View) -> Sequence[Change]:
        """Return the starts of waiting jobs that fit."""
        return start_fitting(view, view.waiting, "first in the queue that fits")


class ShortestJobFirst(Memoryless):
    """The shortest waiting job that fits starts first; its duration is known."""

    name = "sjf"

    def changes(self, view: View) -> Sequence[Change]:
        """Return the starts of the shortest waiting jobs that fit."""
        if view.free_gpus <= 0:
            return ()
        order = sorted(view.waiting, key=lambda each: (each.remaining_s(view.now_s), each.index))
        return start_fitting(view, order, "shortest waiting job that fits")
