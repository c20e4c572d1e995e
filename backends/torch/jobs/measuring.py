"""The speeds of trainings, and the cost to start, rescale and resume them, measured on the slots of this machine.

Each training starts on as many teams of one slot as there are slots. Then half of the teams stop, and the others grow
to two slots, and so on; at the end the last one is stopped and resumed. With each size all teams train together for a
while, and then one of them alone: the faster it is alone, the more processors all of them would need. Equal trainings
are measured as one. Where there are few others, all is done several times.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from math import ceil
from pathlib import Path
from statistics import fmean, harmonic_mean
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from backends.execution.jobs import LiveTraining, MeasuredJobs
from backends.torch.jobs.slots import Slots
from backends.torch.jobs.teams import Crew, Teams

LEAST_STEPS: Final = 20
"""Least number of steps of each team in a measurement of speed: a process that waits for a core takes few."""
LEAST_ROUNDS: Final = 3
"""Least number of measurements of all sizes, over all trainings: others may compute while one is made."""
_ENDLESS: Final = 10**9
"""Epochs of a training that is only measured."""


class Rate(Struct, frozen=True):
    """Samples per second of a team alone, and beside others like it on all ``num_teams`` parts of the machine."""

    alone_per_s: float
    together_per_s: float
    num_teams: int

    @property
    def machine_share(self) -> float:
        """Return the part of the machine's processors that a team alone keeps busy."""
        return min(1.0, self.alone_per_s / (self.together_per_s * self.num_teams))


def mean_rate(rates: Sequence[Rate]) -> Rate:
    """Return the rate with the mean times of a sample."""
    return Rate(
        harmonic_mean([rate.alone_per_s for rate in rates]),
        harmonic_mean([rate.together_per_s for rate in rates]),
        rates[0].num_teams,
    )


def measure_jobs(
    trainings: Sequence[LiveTraining], num_slots: int, *, span_s: float, check: bool, timeout_s: float
) -> MeasuredJobs:
    """Return speeds and costs. ``span_s``: for which each speed is measured each time."""
    kinds = [replace(each, seed=0, num_epochs=_ENDLESS) for each in trainings]
    places = [place for place, kind in enumerate(kinds) if kinds.index(kind) == place]
    costs: dict[str, list[float]] = {"prepare": [], "start": [], "rescale": [], "resume": []}
    rounds: dict[int, list[Mapping[int, Rate]]] = {place: [] for place in places}
    with Slots(num_slots, check=check, timeout_s=timeout_s) as slots, TemporaryDirectory(prefix="jobs") as folder:
        _warm(slots, kinds[0], num_slots, Path(folder), timeout_s)
        for turn, place in product(range(ceil(LEAST_ROUNDS / len(places))), places):
            crews = [Crew(kinds[place], Path(folder) / f"{turn}.{place}.{each}") for each in range(num_slots)]
            teams = Teams(slots, crews, timeout_s, lambda _: None)
            rounds[place].append(_rates(teams, num_slots, span_s, costs))
    found = {
        place: {size: mean_rate([each[size] for each in those]) for size in those[0]} for place, those in rounds.items()
    }
    rates = [found[kinds.index(kind)] for kind in kinds]
    return MeasuredJobs(
        samples_per_s=[{size: rate.alone_per_s for size, rate in each.items()} for each in rates],
        machine_shares=[{size: rate.machine_share for size, rate in each.items()} for each in rates],
        prepare_s=fmean(costs["prepare"]),
        start_s=fmean(costs["start"]),
        resume_s=fmean(costs["resume"]),
        rescale_s=fmean(costs["rescale"]) if costs["rescale"] else 0.0,
    )


def _warm(slots: Slots, kind: LiveTraining, num_slots: int, folder: Path, timeout_s: float) -> None:
    """Train for a moment on all slots: their processes load what they need, and nobody measures that."""
    crew = Crew(kind, folder / "warm")
    crew.folder.mkdir()
    teams = Teams(slots, [crew], timeout_s, lambda _: None)
    teams.prepare({0: tuple(range(num_slots))})
    teams.hand_over({0: tuple(range(num_slots))})
    teams.pause([0])
    teams.hand_over({0: ()})


def _rates(teams: Teams, num_slots: int, span_s: float, costs: Mapping[str, list[float]]) -> Mapping[int, Rate]:
    """Return the rates by number of slots, and add what the changes took to the costs."""
    for crew in teams.crews:
        crew.folder.mkdir()
    found, size, running = dict[int, Rate](), 1, list[int]()
    while size <= num_slots:
        count = num_slots // size
        wanted = {job: tuple(range(job * size, (job + 1) * size)) for job in range(count)}
        stopped: dict[int, tuple[int, ...]] = {job: () for job in running if job >= count}
        with _timed(costs["prepare"]):
            teams.prepare(wanted)
        with _timed(costs["rescale" if running else "start"]):
            teams.pause(running)
            teams.hand_over(stopped | wanted)
        running = list(wanted)
        found[size] = _rate(teams, running, span_s)
        size *= 2
    teams.pause(running)
    last = {job: teams.crews[job].team for job in running}
    teams.hand_over(dict.fromkeys(running, ()))
    with _timed(costs["prepare"]):
        teams.prepare(last)
    with _timed(costs["resume"]):
        teams.hand_over(last)
    teams.pause(running)
    teams.hand_over(dict.fromkeys(running, ()))
    return found


def _rate(teams: Teams, running: Sequence[int], span_s: float) -> Rate:
    """Return the rate of one of the running teams alone; they all go on then."""
    together = _speed(teams, running, span_s)
    first, *others = running
    teams.pause(others)
    alone = _speed(teams, [first], span_s) if others else together
    teams.hand_over({job: teams.crews[job].team for job in others})
    return Rate(alone, together, len(running))


def _speed(teams: Teams, running: Sequence[int], span_s: float) -> float:
    """Return the mean speed of the running teams over a time that is doubled until each did enough; they go on then."""
    size = len(teams.crews[running[0]].team)
    least = LEAST_STEPS * teams.crews[running[0]].training.batch(size).size
    while True:
        done, taken_s = _progress(teams, running, span_s)
        if min(done) >= least:
            return sum(done) / len(running) / taken_s
        span_s *= 2.0


def _progress(teams: Teams, running: Sequence[int], span_s: float) -> tuple[Sequence[int], float]:
    """Return the samples of each running team over a time, and the time that it was in the end."""
    before, begin_s = [teams.crews[job].position for job in running], time.monotonic()
    while (left_s := begin_s + span_s - time.monotonic()) > 0.0:
        teams.hear(left_s)
    teams.pause(running)
    taken_s = time.monotonic() - begin_s
    done = [teams.crews[job].position - position for job, position in zip(running, before, strict=True)]
    teams.hand_over({job: teams.crews[job].team for job in running})
    return done, taken_s


@contextmanager
def _timed(into: list[float]) -> Iterator[None]:
    """Add the time of a block to a list."""
    begin_s = time.monotonic()
    yield
    into.append(time.monotonic() - begin_s)
