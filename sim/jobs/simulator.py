"""The event-driven simulation of a job mix: exact between events, on a plain SimPy environment.

Events are arrivals, finishes, attained services that a policy watches, and the instants that it asks for. All events of
one instant come before one decision. With rounds, decisions fall on their beginnings alone: a job that is done keeps
its GPUs until the round ends.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial

import simpy
from msgspec import Struct

from sim.engine.prices.activity import Resource
from sim.engine.running.sharing import fair_fractions
from sim.jobs.active import ActiveJob
from sim.jobs.cluster import SharedCluster
from sim.jobs.errors import JobsError
from sim.jobs.job import Job
from sim.jobs.outages import Failures, Outage
from sim.jobs.placement import consolidated, fewest_nodes, scattered
from sim.jobs.policy import Change, Decision, Policy
from sim.jobs.record import Record

ROUNDING: float = 1e-9
"""Relative error of the beginning of a round."""
MOST_FAILURES: float = 3.0
"""Mean number of failures of a job's nodes in the time that it needs to save anything."""

MACHINE: Resource = "machine"
"""The processors of the machine on which all jobs are processes."""

NO_FAILURES: Failures = Failures()


class Mix(Struct, frozen=True, kw_only=True):
    """Jobs, the GPUs of each node and their type, and how decisions take effect. Without types all GPUs are equal.

    ``start_s``, ``resume_s``, ``rescale_s``: for which a job holds GPUs without progress, at its first start, at later
    ones, and when a running job goes to other GPUs. ``prepare_s``: from a decision that gives jobs more or other GPUs
    until it takes effect. All jobs go on meanwhile as before, and nothing is decided. It goes with neither rounds nor
    failures.
    ``round_s``: the time between decisions; None decides at every event. ``failures``: of nodes.
    ``shared_network``: jobs on several nodes slow each other down where they meet on the network of a node.
    ``interference``: or, in its place, the fraction of its speed that such a job loses there, whoever it meets.
    ``packing_loss``: the fraction of its speed that a job loses which shares its GPUs, whoever it shares them with.
    ``scatter``: jobs whose nodes the policy leaves open get those with the most free GPUs, not few.
    ``whole_seconds``: the ends of epochs of other speeds count to the second, as in the simulator of Pollux.
    """

    jobs: Sequence[Job]
    gpus_per_node: Sequence[int]
    node_types: Sequence[str] = ()
    prepare_s: float = 0.0
    start_s: float = 0.0
    resume_s: float = 0.0
    rescale_s: float = 0.0
    round_s: float | None = None
    failures: Failures = NO_FAILURES
    shared_network: bool = False
    interference: float = 0.0
    packing_loss: float = 0.0
    scatter: bool = False
    whole_seconds: bool = False

    def __post_init__(self) -> None:
        if self.prepare_s and (self.round_s is not None or self.failures.listed or self.failures.mtbf_s is not None):
            raise ValueError("decisions of rounds, and those beside failures, take effect at once")
        most = sum(self.gpus_per_node)
        for outage in self.failures.listed:
            if outage.node >= len(self.gpus_per_node):
                rule = f"node {outage.node} fails, where the cluster has nodes 0 to {len(self.gpus_per_node) - 1}"
                raise JobsError("failures", rule, "write a node of the cluster")
        if self.failures.mtbf_s is not None:
            self._refuse_endless(self.failures.mtbf_s)
        for job in self.jobs:
            if job.num_gpus > most:
                rule = f"job {job.id} needs {job.num_gpus} GPUs, where the cluster has {most}"
                raise JobsError("cluster.num_nodes", rule, "add nodes, or leave the job out")

    def _refuse_endless(self, mtbf_s: float) -> None:
        """Raise JobsError for a job that would hardly ever save anything between two failures of its nodes."""
        for job in self.jobs:
            save_s = self.failures.save_every_s
            if job.training is not None:
                save_s = job.duration_s / job.training.num_epochs
            span_s = self.resume_s + min(save_s, job.duration_s)
            fails_s = mtbf_s / fewest_nodes(self.gpus_per_node, job.num_gpus)
            if span_s > MOST_FAILURES * fails_s:
                rule = f"a node of job {job.id} fails every {fails_s:.3g} s; it needs {span_s:.3g} s to save anything"
                raise JobsError("failures", rule, "write more time between failures, or let jobs save more often")


def simulate_jobs(mix: Mix, policy: Policy) -> Record:
    """Return the record of a job mix under a policy, from the first arrival until all jobs are done.

        record = simulate_jobs(Mix(jobs=jobs, gpus_per_node=[4]), ShortestRemainingTime())

    Raises JobsError where a policy leaves jobs waiting for ever.
    """
    return _World(mix, policy).run()


class _World:
    """The state of a simulation."""

    def __init__(self, mix: Mix, policy: Policy) -> None:
        self._mix, self._policy, self._state = mix, policy, policy.start()
        self._environment = simpy.Environment()
        self._cluster = SharedCluster(
            mix.gpus_per_node, policy.ranking, mix.node_types, scattered if mix.scatter else consolidated
        )
        self._jobs = sorted(mix.jobs, key=lambda job: job.arrival_s)
        self._done: list[tuple[ActiveJob, float]] = []
        """Jobs that are done, with their finish, whose GPUs the round still holds."""
        self._unfinished = len(self._jobs)
        live = any(job.training is not None and job.training.machine_shares for job in mix.jobs)
        packs = any(job.gpu_use.memory < 1.0 for job in mix.jobs)
        self._meets = mix.shared_network or mix.interference > 0.0 or live or packs
        """Whether jobs slow each other down anywhere."""
        self._decides_at_s = math.inf
        self._wakes_at_s: float | None = None
        self._preparing: Sequence[Change] = ()
        """Changes that have been decided and take effect once new workers are ready."""
        self._attaining: list[tuple[float, int, int, ActiveJob]] = []
        """When policies begin to count a watched service as attained, index and version of the job, and the job."""

    def run(self) -> Record:
        """Let time pass until nothing happens any more, and return what happened."""
        for index, job in enumerate(self._jobs):
            self._at(job.arrival_s, partial(self._arrive, job, index))
        for node in range(len(self._mix.gpus_per_node)):
            self._expect_failure(self._mix.failures.of_node(node))
        self._environment.run()
        if waiting := self._cluster.waiting:
            rule = (
                f"{self._policy.name} left {len(waiting)} jobs waiting for ever, the first of them {waiting[0].job.id}"
            )
            raise JobsError("policy", rule, "choose another policy, or more nodes")
        return self._cluster.record()

    def _at(self, instant_s: float, act: Callable[[], None]) -> None:
        """Call a function at an instant."""
        delay_s = max(0.0, instant_s - self._environment.now)
        timeout = self._environment.timeout(delay_s)
        assert timeout.callbacks is not None
        timeout.callbacks.append(lambda _: act())

    def _expect_failure(self, outages: Iterator[Outage]) -> None:
        """Plan the next failure of a node; after the last job none happens."""
        outage = next(outages, None)
        if outage is not None and self._unfinished:
            self._at(outage.start_s, partial(self._fail, outage, outages))

    def _fail(self, outage: Outage, outages: Iterator[Outage]) -> None:
        """Stop the jobs of a node, each with the work that it saved, and take the node out until it is repaired."""
        if not self._unfinished:
            return
        now_s, node = self._environment.now, outage.node
        for each, finish_s in [done for done in self._done if _is_on(done[0], node)]:
            self._cluster.leave(each, finish_s, now_s)
            self._done.remove((each, finish_s))
        for each in [each for each in self._cluster.running.values() if _is_on(each, node)]:
            self._cluster.note(Change(each, 0, f"node {node} failed"), now_s)
            self._cluster.fail(each, now_s, each.saved(now_s, self._mix.failures.save_every_s))
        self._cluster.node_down(outage)
        self._share(now_s)
        self._at(outage.end_s, partial(self._repair, node, outages))
        self._decide_soon()

    def _repair(self, node: int, outages: Iterator[Outage]) -> None:
        self._cluster.node_up(node)
        self._expect_failure(outages)
        self._decide_soon()

    def _arrive(self, job: Job, index: int) -> None:
        self._cluster.submit(job, index, self._environment.now)
        self._decide_soon()

    def _decide_soon(self) -> None:
        """Decide after all events of this instant, or at the beginning of the next round."""
        now_s, round_s = self._environment.now, self._mix.round_s
        instant_s = now_s if round_s is None else math.ceil(now_s / round_s * (1.0 - ROUNDING)) * round_s
        if instant_s < self._decides_at_s:
            self._decides_at_s = instant_s
            self._at(instant_s, lambda: self._decide_if_due(instant_s))

    def _decide_if_due(self, instant_s: float) -> None:
        if self._decides_at_s == instant_s and not self._preparing:
            self._decides_at_s = math.inf
            self._decide()

    def _decide(self) -> None:
        now_s = self._environment.now
        self._leave_done(now_s)
        self._rank_what_rounds_up(now_s)
        view = self._cluster.view(now_s)
        if not view.capacity or (not view.waiting and not view.running):
            return
        self._state, decision = self._policy.decide(self._state, view)
        if self._mix.prepare_s and any(change.needs_new_gpus for change in decision.changes):
            self._preparing = decision.changes
            self._share(now_s)
            self._at(now_s + self._mix.prepare_s, partial(self._take_effect, decision))
        else:
            self._take_effect(decision)

    def _leave_done(self, now_s: float) -> None:
        """Free the GPUs of jobs that are done."""
        for each, finish_s in self._done:
            self._cluster.leave(each, finish_s, now_s)
        self._done.clear()

    def _take_effect(self, decision: Decision) -> None:
        """Let a decision take effect, for the jobs that are not done meanwhile, and decide again where that is due."""
        now_s, changes = self._environment.now, decision.changes
        if self._preparing:
            done = {each.index for each, _ in self._done}
            changes = [change for change in changes if change.job.index not in done]
            self._preparing = ()
            self._leave_done(now_s)
            if self._decides_at_s <= now_s or (decision.wake_s is not None and decision.wake_s <= now_s):
                self._decides_at_s = math.inf
                self._decide_soon()
        self._apply(changes, now_s)
        self._adapt({change.job.index for change in changes}, now_s)
        self._wake_again(now_s, decision.wake_s)

    def _rank_what_rounds_up(self, now_s: float) -> None:
        """Rank jobs again whose service is a watched one up to rounding, where that of others is: all fall together."""
        while self._attaining and self._attaining[0][0] <= now_s:
            *_, version, each = heapq.heappop(self._attaining)
            if each.version == version:
                self._cluster.rank_again(each, now_s)

    def _wake_again(self, now_s: float, wake_s: float | None) -> None:
        """Plan the next decision that no event brings; it takes the place of the one that was planned before."""
        self._wakes_at_s = now_s + self._mix.round_s if self._mix.round_s is not None else wake_s
        active = self._cluster.running or self._cluster.waiting
        if self._wakes_at_s is not None and self._wakes_at_s > now_s and active:
            self._at(self._wakes_at_s, partial(self._wake, self._wakes_at_s))

    def _wake(self, planned_s: float) -> None:
        if self._wakes_at_s == planned_s:
            self._decide_soon()

    def _apply(self, changes: Sequence[Change], now_s: float) -> None:
        """Take the GPUs of all jobs that stop or go to others, then give them theirs."""
        for change in changes:
            self._cluster.note(change, now_s)
            if change.job.is_running:
                self._cluster.release(change.job, now_s, goes_on=change.num_gpus > 0)
        for change in changes:
            if change.num_gpus:
                self._start(change, now_s)
        self._share(now_s)

    def _adapt(self, changed: Set[int], now_s: float) -> None:
        """Let the jobs that go on choose their batches anew."""
        for index, each in self._cluster.running.items():
            if index not in changed and each.adapt(now_s):
                self._cluster.rank_again(each, now_s)
                self._expect(each, now_s)

    def _start(self, change: Change, now_s: float) -> None:
        """Give a job its GPUs."""
        each, placement = change.job, change.placed_on(self._cluster.free)
        self._cluster.grant(each, placement, now_s, self._delay_s(each), change.beside)
        self._expect(each, now_s)

    def _share(self, now_s: float) -> None:
        """Find the speeds anew of all jobs that meet: on networks, on processors of one machine, or on GPUs."""
        if not self._meets:
            return
        fair, kept = self._fair(), self._kept()
        for index, each in self._cluster.running.items():
            divided = self._cluster.divide(each, now_s)
            if each.slow(now_s, fair.get(index, 1.0) * kept.get(index, 1.0)) or divided:
                self._cluster.rank_again(each, now_s)
                self._expect(each, now_s)

    def _fair(self) -> dict[int, float]:
        """Return the fraction of its speed that each job keeps which needs a resource that others need too."""
        shares = {index: found for index, each in self._cluster.running.items() if (found := self._shares_of(each))}
        fractions = fair_fractions([*shares.values(), *self._shares_of_new_workers()])
        return dict(zip(shares, fractions, strict=False))

    def _shares_of_new_workers(self) -> list[dict[Resource, float]]:
        """Return the part of the processors that each worker needs which gets ready: that of one which trains."""
        jobs = [(change.job.job.training, change.num_gpus - change.job.num_gpus) for change in self._preparing]
        shares = [training.machine_share(1) for training, count in jobs if training for _ in range(count)]
        return [{MACHINE: share} for share in shares if share]

    def _shares_of(self, each: ActiveJob) -> dict[Resource, float]:
        """Return the part of each shared resource that a job alone keeps busy; of GPUs those of its partner, too."""
        if each.machine_share:
            return {MACHINE: each.machine_share}
        found: dict[Resource, float] = {}
        if self._mix.shared_network and each.network_share:
            found = {node: each.network_share for node, _ in each.placement}
        if each.partner is not None:
            found["gpus", min(each.index, each.partner.index)] = each.job.gpu_use.time
        return found

    def _kept(self) -> dict[int, float]:
        """Return the fraction that each job keeps that meets a partner, or on several nodes any other job.

        On nodes, jobs that are done count until a round ends.
        """
        jobs = self._cluster.running
        partners = {index: each.partner for index, each in jobs.items()}
        found = {index: 1.0 - self._mix.packing_loss for index, its in partners.items() if its and its.index in jobs}
        if not self._mix.interference:
            return found
        wide = [each for each in jobs.values() if len(each.placement) > 1]
        done = [each for each, _ in self._done if len(each.placement) > 1]
        crowd = Counter(node for each in (*wide, *done) for node, _ in each.placement)
        for each in wide:
            if any(crowd[node] > 1 for node, _ in each.placement):
                found[each.index] = found.get(each.index, 1.0) * (1.0 - self._mix.interference)
        return found

    def _expect(self, each: ActiveJob, now_s: float) -> None:
        """Plan a running job's finish or next epoch, and the services that its policy watches."""
        ends_s = each.next_change_s()
        self._at_version(each, ends_s, lambda: self._end_epoch(each, ends_s))
        attained = each.attained_gpu_s(now_s) * (1.0 + ROUNDING)
        for limit in self._policy.watched_gpu_s:
            if attained < limit:
                self._at_version(each, each.instant_of_service(limit), lambda: self._attain(each))
                counted_s = each.instant_of_service(limit / (1.0 + ROUNDING))
                heapq.heappush(self._attaining, (counted_s, each.index, each.version, each))

    def _attain(self, each: ActiveJob) -> None:
        """Take note that a running job has attained a watched service."""
        self._cluster.rank_again(each, self._environment.now)
        self._decide_soon()

    def _delay_s(self, each: ActiveJob) -> float:
        """Return the time without progress of a job that gets GPUs."""
        if each.index in self._cluster.running:
            return self._mix.rescale_s
        return self._mix.start_s if each.first_start_s is None else self._mix.resume_s

    def _at_version(self, each: ActiveJob, instant_s: float, act: Callable[[], None]) -> None:
        """Call a function at an instant, unless the job has started or stopped in between."""
        version = each.version

        def act_if_same() -> None:
            if each.version == version:
                act()

        self._at(instant_s, act_if_same)

    def _end_epoch(self, each: ActiveJob, ends_s: float) -> None:
        """Begin the next epoch of another speed; after the last one, note that the job is done.

        Its GPUs are free at the decision that follows.
        """
        counted_s = round(ends_s) if self._mix.whole_seconds and each.trainer is not None else ends_s
        if not each.finishes_next:
            each.begin_epoch(counted_s)
            self._cluster.rank_again(each, self._environment.now)
            self._expect(each, self._environment.now)
            return
        self._unfinished -= 1
        self._cluster.finish(each)
        self._done.append((each, counted_s))
        self._share(self._environment.now)
        self._decide_soon()


def _is_on(each: ActiveJob, node: int) -> bool:
    """Return whether a job holds GPUs of a node."""
    return any(place == node for place, _ in each.placement)
