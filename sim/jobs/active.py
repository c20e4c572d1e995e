"""A job in the cluster: what it has done, what it holds. Policies read it; only the simulator changes it."""

import math
from dataclasses import dataclass, field

from sim.jobs.job import Job
from sim.jobs.placement import Placement
from sim.jobs.speed.trainer import Trainer

ROUNDING = 1e-9
"""Relative error of a speed, and of the work after saved intervals."""


@dataclass(slots=True)
class ActiveJob:
    """A submitted job. All amounts are exact at any instant: those of a running job follow from its start.

    ``index``: its place in order of arrival. ``placement``: empty while it waits. ``ready_s``: the instant from which
    it makes progress, after its start, restart or change of GPUs. ``waiting_since_s``: the arrival, or the last stop.
    ``network_share``: part of its step's time for which it keeps the network of its nodes busy, if alone there.
    ``machine_share``: part of the processors of the machine on which all jobs are processes, 0 on GPUs of its own.
    ``num_failures``: stops by failures of nodes; ``lost_gpu_s``: service with progress that was lost by them.
    ``trainer``: how it trains, where its speed changes from epoch to epoch. ``partner``: the job that shares its GPUs,
    of whose service each of the two counts half; ``beside``: the one with whom its service is counted so.
    ``version``: counts starts, stops and the finish, so that an event planned before one of them is known to be stale.
    """

    job: Job
    index: int
    waiting_since_s: float
    placement: Placement = ()
    num_gpus: int = 0
    granted_s: float = 0.0
    ready_s: float = 0.0
    first_start_s: float | None = None
    num_preemptions: int = 0
    num_rescales: int = 0
    num_failures: int = 0
    lost_gpu_s: float = 0.0
    version: int = 0
    network_share: float = 0.0
    machine_share: float = 0.0
    trainer: Trainer | None = None
    partner: "ActiveJob | None" = field(default=None, compare=False, repr=False)
    beside: int | None = None
    _relative_speed: float = 1.0
    _fraction: float = 1.0
    _until: float = math.inf
    _alone_per_s: float = 0.0
    _work_per_s: float = 0.0
    _done: float = 0.0
    _saved: float = 0.0
    _held_s: float = 0.0
    _held_gpu_s: float = 0.0
    _useful_gpu_s: float = 0.0

    @property
    def is_running(self) -> bool:
        """Return whether it holds GPUs."""
        return bool(self.placement)

    @property
    def work_per_s(self) -> float:
        """Return the work that a running job does in a second, restarts not counted."""
        return self._work_per_s

    @property
    def share_gpus(self) -> float:
        """Return the GPUs whose service it receives: half of those that it shares."""
        return self.num_gpus if self.beside is None else 0.5 * self.num_gpus

    @property
    def fraction(self) -> float:
        """Return the speed of a running job, relative to that which it has alone on its GPUs."""
        return self._fraction

    @property
    def is_guest(self) -> bool:
        """Return whether it shares the GPUs of a job that came before."""
        return self.partner is not None and self.partner.index < self.index

    def done(self, now_s: float) -> float:
        """Return the work that is done, in the unit of the job's work."""
        return self._done + self._progress_s(now_s) * self._work_per_s

    def epochs(self, now_s: float) -> float:
        """Return the epochs that an elastic job has done."""
        assert self.job.training is not None
        return self.job.training.epochs(self.done(now_s))

    def remaining_s(self, now_s: float) -> float:
        """Return the training time that is left on the GPUs that it asked for, restarts not counted."""
        return (self.job.work - self.done(now_s)) * (self.job.duration_s / self.job.work)

    def held_s(self, now_s: float) -> float:
        """Return the time for which it held GPUs, restarts included."""
        return self._held_s + now_s - self.granted_s if self.placement else self._held_s

    def attained_gpu_s(self, now_s: float) -> float:
        """Return the service received: the GPUs times the time for which it held them, half of it beside a partner."""
        return self._held_gpu_s + self.share_gpus * (now_s - self.granted_s) if self.placement else self._held_gpu_s

    def useful_gpu_s(self, now_s: float) -> float:
        """Return the service with progress."""
        return self._useful_gpu_s + self.share_gpus * self._progress_s(now_s)

    @property
    def finishes_next(self) -> bool:
        """Return whether a running job is done before its speed changes."""
        return self._until >= self.job.work

    def finish_s(self) -> float:
        """Return the instant at which a running job is done if nothing changes, its speed included."""
        return self.ready_s + (self.job.work - self._done) / self._work_per_s

    def next_change_s(self) -> float:
        """Return the instant at which a running job is done, or its speed changes by itself, if nothing else does."""
        return self.ready_s + (min(self.job.work, self._until) - self._done) / self._work_per_s

    def instant_of_service(self, attained_gpu_s: float) -> float:
        """Return the instant at which a running job attains an amount of service if nothing changes."""
        return self.granted_s + (attained_gpu_s - self._held_gpu_s) / self.share_gpus

    def start(self, now_s: float, placement: Placement, delay_s: float, relative_speed: float = 1.0) -> None:
        """Give it GPUs; progress begins ``delay_s`` later, at a speed relative to that of its job."""
        self.first_start_s = now_s if self.first_start_s is None else self.first_start_s
        self.granted_s, self.ready_s, self.placement = now_s, now_s + delay_s, placement
        self.num_gpus = sum(count for _, count in placement)
        self._relative_speed, self._fraction = relative_speed, 1.0
        self.beside = self._partner_index
        self._set_pace()
        self.network_share = self.job.network_share(self.num_gpus, len(placement))
        self.machine_share = self.job.training.machine_share(self.num_gpus) if self.job.training else 0.0
        self.version += 1

    def saved(self, now_s: float, save_every_s: float) -> float:
        """Return the saved work: that of the last stop, of each epoch, or of each ``save_every_s`` of a rigid job."""
        if self.job.training is not None:
            return max(self._saved, self.job.training.saved(self.done(now_s)))
        return max(self._saved, math.floor(self.done(now_s) / save_every_s * (1.0 + ROUNDING)) * save_every_s)

    def save(self, now_s: float) -> None:
        """Take note that its state is saved now."""
        self._saved = self.done(now_s)

    def stop(self, now_s: float) -> None:
        """Take its GPUs; nothing that is done is lost."""
        self._done, self._held_s, self.waiting_since_s = self.done(now_s), self.held_s(now_s), now_s
        self._held_gpu_s, self._useful_gpu_s = self.attained_gpu_s(now_s), self.useful_gpu_s(now_s)
        self.placement, self.num_gpus, self.beside = (), 0, None
        self.version += 1

    def slow(self, now_s: float, fraction: float) -> bool:
        """Let a running job go on at a fraction of the speed that it has alone; return whether that is another one."""
        if abs(fraction - self._fraction) <= ROUNDING:
            return False
        self._useful_gpu_s, self._done = self.useful_gpu_s(now_s), self.done(now_s)
        self.ready_s, self._fraction = max(now_s, self.ready_s), fraction
        self._work_per_s = fraction * self._alone_per_s
        self.version += 1
        return True

    @property
    def is_divided_anew(self) -> bool:
        """Return whether a partner came, or left, since its service was counted last."""
        return self.beside != self._partner_index

    def divide(self, now_s: float) -> None:
        """Count from now on the service that is due beside a partner, or without one."""
        self._held_s, self._held_gpu_s = self.held_s(now_s), self.attained_gpu_s(now_s)
        self._useful_gpu_s, self._done = self.useful_gpu_s(now_s), self.done(now_s)
        self.granted_s, self.ready_s, self.beside = now_s, max(now_s, self.ready_s), self._partner_index
        self.version += 1

    def begin_epoch(self, ended_s: float) -> None:
        """Begin the next epoch; the one before has ended at an instant, about now."""
        self._useful_gpu_s += self.share_gpus * (ended_s - self.ready_s)
        self._done, self.ready_s = self._until, ended_s
        self._set_pace()
        self.version += 1

    def adapt(self, now_s: float) -> bool:
        """Let a running job choose its batch anew; return whether it has another speed then."""
        if self.trainer is None or not self.trainer.adapts or now_s < self.ready_s:
            return False
        before = self._alone_per_s
        self._useful_gpu_s, self._done, self.ready_s = self.useful_gpu_s(now_s), self.done(now_s), now_s
        self._set_pace()
        self.version += self._alone_per_s != before
        return self._alone_per_s != before

    def begin(self, now_s: float) -> None:
        """Take note that a running job makes progress from now on: in a live run nobody knows when before."""
        self.ready_s = now_s

    def observe(self, now_s: float, done: float, work_per_s: float) -> None:
        """Take note of the work that a running job has done, and of its speed, both measured now."""
        self._useful_gpu_s = self.useful_gpu_s(now_s)
        self._done, self._work_per_s, self.ready_s = done, work_per_s, now_s

    def lose(self, saved: float) -> None:
        """Fall back to saved work after a failure that has stopped it; the service of what is lost was of no use."""
        if self._done > saved:
            kept_gpu_s = self._useful_gpu_s * saved / self._done
            self.lost_gpu_s += self._useful_gpu_s - kept_gpu_s
            self._useful_gpu_s, self._done = kept_gpu_s, saved

    def _set_pace(self) -> None:
        """Find the speed that it has on its GPUs from now on."""
        if self.trainer is None:
            self._alone_per_s = self._relative_speed * self.job.work_per_s(self.num_gpus, len(self.placement))
        else:
            pace = self.trainer.pace(tuple(count for _, count in self.placement), self._done)
            self._alone_per_s, self._until = self._relative_speed * pace.work_per_s, pace.until
        self._work_per_s = self._fraction * self._alone_per_s

    @property
    def _partner_index(self) -> int | None:
        return None if self.partner is None else self.partner.index

    def _progress_s(self, now_s: float) -> float:
        """Return the time with progress since it got its GPUs."""
        return max(0.0, now_s - self.ready_s) if self.placement else 0.0
