"""The controller of a live job mix: the simulator's policies on real workers, in real time.

Decisions fall where they do in the simulation: at arrivals, finishes, attained services and instants that the policy
asks for. Progress is what workers report at the end of each epoch; between reports it is reckoned by the last speed.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from backends.execution.jobs import Event, HandedOver, JobsExecution, JobsRequest
from backends.torch.jobs.messages import EpochDone
from backends.torch.jobs.slot_choice import Team, chosen_slots, placement_of
from backends.torch.jobs.slots import Slots
from backends.torch.jobs.teams import Crew, Teams
from sim.jobs.active import ActiveJob
from sim.jobs.cluster import SharedCluster
from sim.jobs.errors import JobsError
from sim.jobs.policy import Change
from sim.jobs.training import MeasuredCurve


def run_jobs(request: JobsRequest) -> JobsExecution:
    """Return what came of a job mix on processes of this machine.

    Raises RankError where a worker fails or does not answer, JobsError where a policy leaves jobs waiting for ever.
    """
    count = sum(request.slots_per_node)
    with (
        TemporaryDirectory(prefix="jobs") as folder,
        Slots(count, check=request.check, timeout_s=request.timeout_s) as slots,
    ):
        return Controller(request, slots, Path(folder)).run()


class Controller:
    """Time, the policy, and the book of who holds what."""

    def __init__(self, request: JobsRequest, slots: Slots, folder: Path) -> None:
        self._request, self._slots, self._policy = request, slots, request.policy
        self._cluster = SharedCluster(request.slots_per_node)
        order = sorted(range(len(request.jobs)), key=lambda place: request.jobs[place].arrival_s)
        self._arrivals = deque(request.jobs[place] for place in order)
        self._jobs: list[ActiveJob] = []
        crews = [Crew(request.trainings[place], folder / str(index)) for index, place in enumerate(order)]
        for crew in crews:
            crew.folder.mkdir()
        self._teams = Teams(slots, crews, request.timeout_s, self._epoch_done)
        self._points: list[list[tuple[float, float]]] = [[] for _ in order]
        self._handed_over: list[HandedOver] = []
        self._state = self._policy.start()
        self._is_due, self._wakes_s = False, math.inf
        self._begin_s = 0.0

    def run(self) -> JobsExecution:
        """Let all jobs come, run and finish."""
        self._begin_s = time.monotonic()
        while self._arrivals or self._cluster.waiting or self._cluster.running:
            heard = self._teams.hear(0.0 if self._is_due else self._next_s() - self._now_s())
            while heard:
                heard = self._teams.hear(0.0)
            self._settle()
            self._arrive()
            if self._is_due or self._wakes_s <= self._now_s():
                self._decide()
        return self._execution()

    def _now_s(self) -> float:
        return time.monotonic() - self._begin_s

    def _next_s(self) -> float:
        """Return the next instant at which something happens by itself. Raises JobsError where nothing ever will."""
        arrival_s = self._arrivals[0].arrival_s if self._arrivals else math.inf
        next_s = min(arrival_s, self._wakes_s)
        if next_s < math.inf:
            return next_s
        if not self._cluster.running:
            first = self._cluster.waiting[0].job.id
            rule = f"{self._policy.name} left jobs waiting for ever, the first of them {first}"
            raise JobsError("policy", rule, "choose another policy, or more nodes")
        return self._now_s() + 1.0

    def _arrive(self) -> None:
        now_s = self._now_s()
        while self._arrivals and self._arrivals[0].arrival_s <= now_s:
            self._jobs.append(self._cluster.submit(self._arrivals.popleft(), len(self._jobs), now_s))
            self._is_due = True

    def _epoch_done(self, report: EpochDone) -> None:
        """Take note of the progress of a job, and of its validation."""
        each, crew, points = self._jobs[report.job], self._teams.crews[report.job], self._points[report.job]
        epoch = report.position // crew.training.samples_per_epoch
        del points[epoch:]
        points.append((report.loss, report.accuracy))
        assert each.job.training is not None
        each.job = replace(each.job, training=replace(each.job.training, curve=MeasuredCurve(tuple(points))))
        if each.is_running and each.ready_s < math.inf:
            each.observe(self._now_s(), report.position, report.samples_per_s or each.work_per_s)

    def _settle(self) -> None:
        """Take note of jobs that are done, and put broken ones back into the queue."""
        for index in self._teams.broken:
            self._teams.clear(index)
            each = self._jobs[index]
            if each.is_running:
                now_s = self._now_s()
                self._cluster.note(Change(each, 0, "a worker ended"), now_s)
                self._cluster.fail(each, now_s, self._teams.crews[index].saved)
            else:
                each.lose(self._teams.crews[index].saved)
            self._is_due = True
        for each in [each for each in self._cluster.running.values() if self._teams.crews[each.index].is_done]:
            now_s, crew = self._now_s(), self._teams.crews[each.index]
            finish_s = crew.heard_s - self._begin_s
            each.observe(finish_s, each.job.work, each.work_per_s)
            self._cluster.finish(each)
            self._cluster.leave(each, finish_s, now_s)
            crew.team = ()
            self._is_due = True
            self._handed_over.append(HandedOver(finish_s, each.job.id, "finish", (), 0.0, 0.0, crew.agrees))

    def _decide(self) -> None:
        self._is_due, self._wakes_s = False, math.inf
        if self._cluster.waiting or self._cluster.running:
            self._state, decision = self._policy.decide(self._state, self._cluster.view(self._now_s()))
            self._apply(decision.changes)
            self._wakes_s = min(decision.wake_s or math.inf, self._next_service_s())

    def _next_service_s(self) -> float:
        """Return the next instant at which a running job attains a service that the policy watches."""
        return min(
            (each.instant_of_service(limit) for each in self._cluster.running.values()
             for limit in self._policy.watched_gpu_s if each.attained_gpu_s(self._now_s()) < limit), default=math.inf
        )  # fmt: skip

    def _apply(self, changes: Sequence[Change]) -> None:
        """Take jobs from slots and to slots. Jobs that are done or broken meanwhile stay as they are."""
        decided_s, crews = self._now_s(), self._teams.crews
        held = {index: crews[index].team for index in self._cluster.running}
        teams: dict[int, Team] = {change.job.index: () for change in changes}
        teams |= chosen_slots(changes, held, self._request.slots_per_node)
        self._teams.prepare({index: team for index, team in teams.items() if team})
        self._teams.pause([index for index in teams if crews[index].team])
        stale = [index for index in teams if crews[index].trouble or crews[index].is_done]
        self._teams.leave([index for index in stale if crews[index].is_done])
        self._settle()
        changes = [change for change in changes if change.job.index not in stale]
        paused_s = self._now_s()
        events = [self._event(change) for change in changes]
        for change in changes:
            self._cluster.note(change, paused_s)
            if change.job.is_running:
                change.job.observe(paused_s, crews[change.job.index].position, change.job.work_per_s)
                self._cluster.release(change.job, paused_s, goes_on=change.num_gpus > 0)
        for change in changes:
            if change.num_gpus:
                placement = placement_of(teams[change.job.index], self._request.slots_per_node)
                self._cluster.grant(change.job, placement, paused_s, math.inf)
        self._teams.hand_over({change.job.index: teams[change.job.index] for change in changes})
        now_s = self._now_s()
        for change, event in zip(changes, events, strict=True):
            index = change.job.index
            if crews[index].trouble:
                continue
            if change.num_gpus:
                change.job.begin(now_s)
            self._handed_over.append(
                HandedOver(decided_s, change.job.job.id, event, teams[index], now_s - decided_s, now_s - paused_s,
                           crews[index].agrees)
            )  # fmt: skip

    def _event(self, change: Change) -> Event:
        if not change.num_gpus:
            return "stop"
        if change.job.is_running:
            return "rescale"
        return "start" if change.job.first_start_s is None else "resume"

    def _execution(self) -> JobsExecution:
        crews = dict(zip([each.job.id for each in self._jobs], self._teams.crews, strict=True))
        if self._request.check:
            self._teams.repeat(sum(self._request.slots_per_node))
        return JobsExecution(
            record=self._cluster.record(),
            handed_over=self._handed_over,
            num_ended=self._slots.num_ended,
            steps={name: crew.result.steps for name, crew in crews.items()},
            compared={name: crew.compared for name, crew in crews.items() if crew.compared is not None},
        )
