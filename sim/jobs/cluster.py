"""A shared cluster: waiting jobs, running jobs, free GPUs, and their record. Simulations and live runs share it.

It knows no clock: every change comes with its instant.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from sim.jobs.active import ActiveJob
from sim.jobs.job import Job
from sim.jobs.order import Order, Ordered, Ranking
from sim.jobs.outages import Outage
from sim.jobs.placement import FreeGpus, Place, Placement, consolidated
from sim.jobs.policy import Change, View
from sim.jobs.record import Allocation, Decided, FinishedJob, Record


class SharedCluster:
    """The jobs of a cluster and the GPUs that they hold.

    ``waiting``: in order of arrival. ``running``: by index.
    """

    def __init__(
        self,
        gpus_per_node: Sequence[int],
        ranking: Ranking | None = None,
        node_types: Sequence[str] = (),
        place_on: Place = consolidated,
    ) -> None:
        self.waiting: list[ActiveJob] = []
        self.running: dict[int, ActiveJob] = {}
        self.free = FreeGpus(gpus_per_node, node_types, place_on)
        self._types = node_types
        self._gpus_per_node = tuple(gpus_per_node)
        self._up = self._gpus_per_node
        """GPUs of each node, 0 where it is down."""
        self._waiting_gpus = 0
        self._ranking = ranking
        self._ranked_waiting, self._ranked_running = Order(), Order()
        """Kept where the policy has a ranking."""
        self._finished: list[FinishedJob] = []
        waiting, running = self._ranked_waiting.jobs, self._ranked_running.jobs
        self._ordered = None if ranking is None else Ordered(waiting, running, ranking.most)
        self._decisions: list[Decided] = []
        self._allocations: list[Allocation] = []
        self._outages: list[Outage] = []
        self._divided = set[int]()
        """Jobs whose allocation began where a partner came or left."""

    def view(self, now_s: float) -> View:
        """Return what a policy sees."""
        return View(
            now_s=now_s,
            waiting=self.waiting,
            running=self.running,
            free_gpus=self.free.total,
            waiting_gpus=self._waiting_gpus,
            gpus_per_node=self._up,
            ordered=self._ordered,
            node_types=self._types,
        )

    def record(self) -> Record:
        """Return what happened."""
        jobs = sorted(self._finished, key=lambda each: each.index)
        return Record(
            sum(self._gpus_per_node), self._gpus_per_node, jobs, self._decisions, self._allocations, self._outages
        )

    def submit(self, job: Job, index: int, now_s: float) -> ActiveJob:
        """Let a job wait from now on; ``index``: its place in order of arrival."""
        each = ActiveJob(job, index, now_s, trainer=job.trainer())
        self._wait(each, now_s)
        return each

    def note(self, change: Change, now_s: float) -> None:
        """Record a decision."""
        self._decisions.append(Decided(now_s, change.job.job.id, change.num_gpus, change.why))

    def release(self, each: ActiveJob, now_s: float, *, goes_on: bool) -> None:
        """Take the GPUs of a running job; it waits from now on, with its state saved, unless it goes on elsewhere."""
        self._stop(each, now_s)
        if goes_on:
            each.num_rescales += 1
        else:
            each.save(now_s)
            each.num_preemptions += 1
            self._leave_running(each, now_s)

    def fail(self, each: ActiveJob, now_s: float, saved: float) -> None:
        """Take the GPUs of a running job that failed; it waits from now on, with the work that was saved."""
        self._stop(each, now_s)
        each.lose(saved)
        each.num_failures += 1
        self._leave_running(each, now_s)

    def node_down(self, outage: Outage) -> None:
        """Take a node on which no job runs any more out of the cluster."""
        self._outages.append(outage)
        self.free.take_node(outage.node)
        self._up = (*self._up[: outage.node], 0, *self._up[outage.node + 1 :])

    def node_up(self, node: int) -> None:
        """Give a node back to the cluster."""
        count = self._gpus_per_node[node]
        self._up = (*self._up[:node], count, *self._up[node + 1 :])
        self.free.give_back(((node, count),))

    def grant(
        self, each: ActiveJob, placement: Placement, now_s: float, delay_s: float, beside: ActiveJob | None = None
    ) -> None:
        """Give a job its GPUs, free ones or all of a running job ``beside`` it; progress begins ``delay_s`` later."""
        if beside is None:
            self.free.take(placement)
        else:
            each.partner, beside.partner = beside, each
        types = {self._types[node] for node, _ in placement} if self._types else ()
        each.start(now_s, placement, delay_s, min((each.job.speed_on(name) for name in types), default=1.0))
        if each.index not in self.running:
            del self.waiting[bisect_left(self.waiting, each.index, key=lambda other: other.index)]
            self._waiting_gpus -= each.job.num_gpus
            self.running[each.index] = each
            if self._ranking is not None:
                self._ranked_waiting.remove(each)
        if self._ranking is not None:
            self._ranked_running.add(each, self._ranking.running(each, now_s))

    def divide(self, each: ActiveJob, now_s: float) -> bool:
        """Record the GPUs of a job anew from now on whose partner came or left; return whether one did."""
        if not each.is_divided_anew:
            return False
        if now_s > each.granted_s:
            self._record(each, now_s)
            self._divided.add(each.index)
        each.divide(now_s)
        return True

    def rank_again(self, each: ActiveJob, now_s: float) -> None:
        """Take note that a running job has attained a service that the policy watches."""
        if self._ranking is not None:
            self._ranked_running.remove(each)
            self._ranked_running.add(each, self._ranking.running(each, now_s))

    def finish(self, each: ActiveJob) -> None:
        """Take note that a running job is done; it holds its GPUs until ``leave``."""
        each.version += 1
        del self.running[each.index]
        if self._ranking is not None:
            self._ranked_running.remove(each)

    def leave(self, each: ActiveJob, finish_s: float, now_s: float) -> None:
        """Free the GPUs of a job that was done at ``finish_s``."""
        self._give_back(each, now_s)
        assert each.first_start_s is not None
        self._finished.append(
            FinishedJob(
                job=each.job,
                index=each.index,
                first_start_s=each.first_start_s,
                finish_s=finish_s,
                held_s=each.held_s(finish_s),
                service_gpu_s=each.attained_gpu_s(now_s),
                useful_gpu_s=each.useful_gpu_s(finish_s),
                idle_gpu_s=each.share_gpus * (now_s - finish_s),
                lost_gpu_s=each.lost_gpu_s,
                num_preemptions=each.num_preemptions,
                num_rescales=each.num_rescales,
                num_failures=each.num_failures,
            )
        )

    def _stop(self, each: ActiveJob, now_s: float) -> None:
        self._give_back(each, now_s)
        each.stop(now_s)
        if self._ranking is not None:
            self._ranked_running.remove(each)

    def _leave_running(self, each: ActiveJob, now_s: float) -> None:
        del self.running[each.index]
        self._wait(each, now_s)

    def _wait(self, each: ActiveJob, now_s: float) -> None:
        insort(self.waiting, each, key=lambda other: other.index)
        self._waiting_gpus += each.job.num_gpus
        if self._ranking is not None:
            self._ranked_waiting.add(each, self._ranking.waiting(each, now_s))

    def _give_back(self, each: ActiveJob, now_s: float) -> None:
        """Free the GPUs of a job, or leave them to the one that shares them."""
        self._record(each, now_s)
        self._divided.discard(each.index)
        other = each.partner
        if other is None:
            self.free.give_back(each.placement)
        else:
            each.partner, other.partner = None, None

    def _record(self, each: ActiveJob, now_s: float) -> None:
        """Record the GPUs that a job held since they were granted, or divided anew."""
        stays = each.index in self._divided
        self._allocations.append(Allocation(each.index, each.placement, each.granted_s, now_s, each.beside, stays))
