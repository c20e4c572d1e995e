"""The workers of all jobs, and the conversations by which a job goes from some slots to others.

    new workers:  Prepare -> Ready            the old ones train meanwhile
    old workers:  Pause -> Paused             after the same step
    all workers:  HandOver -> Running, or Released by those that leave

A job that is done before its workers pause keeps its slots to the end. A job that loses a worker is broken: its other
workers leave it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from backends.execution.errors import RankError
from backends.execution.jobs import Compared, LiveTraining
from backends.torch.jobs.messages import (
    Abandon,
    Broken,
    EpochDone,
    Finished,
    HandOver,
    Order,
    Pause,
    Paused,
    Prepare,
    Ready,
    Repeat,
    Repeated,
    Report,
    Running,
)
from backends.torch.jobs.slot_choice import Team
from backends.torch.jobs.slots import Gone, Slots

_GRACE_S: Final = 2.0
"""Time for which the error of a worker waits for the end of another one, its cause."""


@dataclass
class Crew:
    """The workers of one job. ``members``: slots with a worker; ``team``: those that train, in order of rank.

    ``position``: samples done at the last report; ``saved``: samples that a failure cannot lose. ``heard_s``: when the
    last worker was heard of to be done, on the clock ``time.monotonic``.
    """

    training: LiveTraining
    folder: Path
    team: Team = ()
    members: set[int] = field(default_factory=set)
    position: int = 0
    saved: int = 0
    running: dict[int, Running] = field(default_factory=dict)
    ends: dict[int, Finished] = field(default_factory=dict)
    heard_s: float = 0.0
    compared: Compared | None = None
    trouble: str = ""
    lost_slot: bool = False

    @property
    def is_done(self) -> bool:
        """Return whether all workers have done all epochs."""
        return bool(self.team) and all(slot in self.ends for slot in self.team)

    @property
    def result(self) -> Finished:
        """Return the report of rank 0 of a job that is done."""
        return next(end for end in self.ends.values() if end.steps)

    @property
    def agrees(self) -> bool:
        """Return whether the last reports of all ranks had the same parameters and momentum."""
        reports: Mapping[int, Running | Finished] = self.ends or self.running
        return len({report.digest for report in reports.values()}) <= 1


class Teams:
    """The crews of all jobs, by their place. ``on_epoch``: called with a job's place and its report of an epoch."""

    def __init__(self, slots: Slots, crews: Sequence[Crew], timeout_s: float, on_epoch: Callable[[EpochDone], None]):
        self.crews = crews
        self._slots, self._timeout_s, self._on_epoch = slots, timeout_s, on_epoch
        self._answers: set[tuple[int, int]] = set()

    @property
    def broken(self) -> Sequence[int]:
        """Return the jobs that lost a worker and whose others have still to leave."""
        return [job for job, crew in enumerate(self.crews) if crew.trouble]

    def hear(self, timeout_s: float) -> bool:
        """Take note of one report; return whether there was one in time."""
        heard = self._slots.hear(timeout_s)
        if heard is not None:
            self._note(*heard)
        return heard is not None

    def prepare(self, teams: Mapping[int, Team]) -> None:
        """Have workers get ready on the slots of future teams that lack them."""
        for job, team in teams.items():
            crew = self.crews[job]
            new = [slot for slot in team if slot not in crew.members]
            crew.members.update(new)
            self._ask(new, Prepare(job, crew.training, str(crew.folder)))
        self._await([(job, slot) for job, team in teams.items() for slot in team if slot not in self.crews[job].team])

    def pause(self, jobs: Iterable[int]) -> None:
        """Have jobs pause after a step each; one that is done, or broken, does not."""
        pairs = [(job, slot) for job in jobs for slot in self.crews[job].team]
        for job in jobs:
            self._ask([slot for slot in self.crews[job].team if slot in self.crews[job].members], Pause(job))
        self._await(pairs)

    def hand_over(self, teams: Mapping[int, Team]) -> None:
        """Let prepared or paused jobs go on on their new slots; on none, they are saved."""
        for job, team in teams.items():
            crew = self.crews[job]
            crew.running.clear()
            self._ask(sorted(crew.members), HandOver(job, next(self._slots.meetings), crew.team, team))
        self._await([(job, slot) for job in teams for slot in self.crews[job].members])
        for job, team in teams.items():
            if not self.crews[job].trouble:
                self.crews[job].team = team
                self.crews[job].saved = self.crews[job].saved if team else self.crews[job].position

    def leave(self, jobs: Iterable[int]) -> None:
        """Have workers that wait leave their jobs."""
        pairs = [(job, slot) for job in jobs for slot in self.crews[job].members - set(self.crews[job].team)]
        for job, slot in pairs:
            self._ask([slot], Abandon(job))
        self._await(pairs)

    def clear(self, job: int) -> None:
        """Wait until the other workers of a broken job have left it. Raises RankError where no process had ended."""
        crew = self.crews[job]
        self._await([(job, slot) for slot in crew.members])
        deadline_s = time.monotonic() + _GRACE_S
        while not crew.lost_slot:
            if not self.hear(deadline_s - time.monotonic()):
                raise RankError(f"a worker failed: {crew.trouble}")
        crew.team, crew.trouble, crew.lost_slot, crew.position = (), "", False, crew.saved
        crew.ends.clear()

    def repeat(self, num_slots: int) -> None:
        """Train all jobs, which are done, once more on one process each, and compare."""
        for job, crew in enumerate(self.crews):
            crew.members.add(job % num_slots)
            self._ask([job % num_slots], Repeat(job, crew.training, crew.result.steps, crew.result.parameters))
        self._await([(job, job % num_slots) for job in range(len(self.crews))])

    def _ask(self, slots: Sequence[int], order: Order) -> None:
        self._answers.difference_update((order.job, slot) for slot in slots)
        self._slots.tell(slots, order)

    def _await(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Wait until all workers of (job, slot) have answered, or are gone. Raises RankError for one that does not."""
        pairs, deadline_s = list(pairs), time.monotonic() + self._timeout_s
        while missing := [
            slot for job, slot in pairs if slot in self.crews[job].members and (job, slot) not in self._answers
        ]:
            if not self.hear(deadline_s - time.monotonic()) and time.monotonic() >= deadline_s:
                raise RankError(f"slot {missing[0]} has not answered for {self._timeout_s:g} s")

    def _note(self, slot: int, report: Report | Gone) -> None:
        if isinstance(report, Gone):
            for job, crew in enumerate(self.crews):
                if slot in crew.members or (slot in crew.team and crew.trouble):
                    crew.lost_slot = True
                    self._lose(job, slot, f"the process of slot {slot} has ended")
            return
        crew = self.crews[report.job]
        if isinstance(report, EpochDone):
            crew.position = crew.saved = report.position
            self._on_epoch(report)
            return
        self._answers.add((report.job, slot))
        if isinstance(report, Repeated):
            crew.compared = report.compared
        elif isinstance(report, Paused):
            crew.position = report.position
        elif isinstance(report, Running):
            crew.running[slot] = report
            crew.position = report.position
        elif isinstance(report, Finished):
            crew.ends[slot], crew.heard_s = report, time.monotonic()
            crew.members.discard(slot)
        elif isinstance(report, Broken):
            self._lose(report.job, slot, report.message)
        elif not isinstance(report, Ready):
            crew.members.discard(slot)

    def _lose(self, job: int, slot: int, trouble: str) -> None:
        """Take note that a worker is gone; the others of its job must leave."""
        crew = self.crews[job]
        crew.members.discard(slot)
        if not crew.trouble:
            crew.trouble = trouble
            for other in sorted(crew.members):
                self._ask([other], Abandon(job))
