"""The training of an application from measured tables: its speed on any placement, epoch by epoch.

Work is in useful samples: progress in steps of the least batch, multiplied by that batch. Rules are those of the
simulator of Pollux (OSDI 2021, github.com/petuum/adaptdl).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.jobs.speed.batches import BatchLimits, Goodput, SplitBatch
from sim.jobs.speed.fitted_step import Tried, fitted_step
from sim.jobs.speed.measured_epochs import MeasuredEpochs
from sim.jobs.speed.placed_steps import PlacedSteps
from sim.jobs.speed.step_time import StepTime
from sim.jobs.speed.trainer import Counts, Pace, Trainer
from traces.measured_trainings import RecordedTraining

Floats = NDArray[np.float64]


class Application:
    """The tables of an application, and its limits. Jobs that train it share one."""

    def __init__(self, recorded: RecordedTraining) -> None:
        self.steps, self.epochs = PlacedSteps(recorded.steps), MeasuredEpochs(recorded.epochs)
        least, most = self.steps.local_batches
        most = min(most, recorded.limits.most_local_batch or most)
        self.limits = BatchLimits(self.epochs.batches[0], self.epochs.batches[-1], least, most)
        self.chosen_batch = recorded.limits.chosen_batch
        self._most_gpus = recorded.limits.most_gpus
        self._fits: dict[tuple[tuple[Tried, tuple[float, float]], ...], StepTime] = {}
        self.epoch_ends = [end * self.limits.least for end in self.epochs.ends]
        """Work at the end of each epoch."""

    def most_gpus(self, batch: int) -> int:
        """Return the most GPUs that share a batch."""
        return self._most_gpus or batch // self.limits.least_local

    def split(self, batch: int, num_gpus: int) -> SplitBatch:
        """Return a fixed batch on some GPUs; one GPU accumulates what is larger than the least batch."""
        return self.limits.split(batch, num_gpus, int(num_gpus == 1 and batch > self.limits.least))

    def fitted(self, measured: Mapping[Tried, tuple[float, float]]) -> StepTime:
        """Return the fit of a step to some measurements; jobs that measured the same share it."""
        key = tuple(sorted(measured.items()))
        if key not in self._fits:
            self._fits[key] = fitted_step(dict(key))
        return self._fits[key]

    def step_s(self, counts: Counts, split: SplitBatch) -> float:
        """Return the seconds of a step, accumulated micro-steps included."""
        step_s, sync_s = self.steps.times_s(counts, split.local)
        return step_s + (step_s - sync_s) * split.accumulated

    def rates(self, counts: Counts, split: SplitBatch) -> Floats:
        """Return the useful samples per second in each epoch."""
        gains = self.epochs.gains(sum(counts) * split.local * (split.accumulated + 1))
        return np.array(gains) * (self.limits.least / self.step_s(counts, split))

    def mean_rate(self, counts: Counts, split: SplitBatch) -> float:
        """Return the useful samples per second of a whole training."""
        works = np.diff(self.epoch_ends, prepend=0.0)
        return float(works.sum() / (works / self.rates(counts, split)).sum())


@dataclass(frozen=True)
class FixedBatch:
    """A training whose batch is given: a speed, and a way to train.

    FixedBatch(Application(recorded), batch=512).samples_per_s(num_gpus=4, num_nodes=1)
    """

    application: Application
    batch: int
    _rates: dict[tuple[Counts, SplitBatch], list[float]] = field(default_factory=dict, repr=False, compare=False)
    _expected: dict[tuple[int, int], float] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.application.epochs.check(self.batch)

    @property
    def most_gpus(self) -> int:
        """Return the most GPUs that share the batch."""
        return self.application.most_gpus(self.batch)

    @property
    def epoch_ends(self) -> list[float]:
        """Return the work at the end of each epoch."""
        return self.application.epoch_ends

    def samples_per_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the useful samples per second over the whole training."""
        counts = self.application.steps.counts(num_gpus, num_nodes)
        return self.application.mean_rate(counts, self.application.split(self.batch, num_gpus))

    def network_share(self, num_gpus: int, num_nodes: int) -> float:
        """Return the part of a step's time in its synchronisation."""
        counts, split = self.application.steps.counts(num_gpus, num_nodes), self.application.split(self.batch, num_gpus)
        return self.application.steps.times_s(counts, split.local)[1] / self.application.step_s(counts, split)

    def left_s(self, done: float, num_gpus: int, num_nodes: int) -> float:
        """Return the time of the steps that are left, as Optimus's oracle in the artifact has it.

        The steps of the epoch in course count as not begun, and those of the last one as a single step. One GPU always
        accumulates.
        """
        epoch = self.application.epochs.epoch_at(done / self.application.limits.least)
        return self._left_steps[epoch] * self._expected_s(num_gpus, num_nodes)

    @property
    def adapts(self) -> bool:
        """Return False: the batch stays."""
        return False

    @property
    def estimate(self) -> None:
        """Return None: nothing is measured."""

    def trainer(self) -> Trainer:
        """Return how a job trains: all jobs do alike."""
        return self

    def pace(self, counts: Counts, done: float) -> Pace:
        """Return the speed in the epoch in course, and the work at its end."""
        split = self.application.split(self.batch, sum(counts))
        if (counts, split) not in self._rates:
            self._rates[counts, split] = self.application.rates(counts, split).tolist()
        epoch = self.application.epochs.epoch_at(done / self.application.limits.least)
        return Pace(self._rates[counts, split][epoch], self.application.epoch_ends[epoch])

    @cached_property
    def _left_steps(self) -> list[float]:
        """Return the steps that are left in each epoch."""
        iterations = self.application.epochs.iterations(self.batch)
        return [*(iterations[-1] - iterations[:-1]).tolist(), 1.0]

    def _expected_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the seconds of a step that the oracle expects."""
        key = num_gpus, num_nodes
        if key not in self._expected:
            split = self.application.limits.split(self.batch, num_gpus, int(num_gpus == 1))
            counts = self.application.steps.counts(num_gpus, num_nodes)
            self._expected[key] = self.application.step_s(counts, split)
        return self._expected[key]


@dataclass(frozen=True)
class ChosenBatch:
    """A training that chooses the batch of most goodput, by what it measured so far: that of Pollux."""

    application: Application

    @property
    def most_gpus(self) -> int:
        """Return the most GPUs that share the largest batch."""
        return self.application.most_gpus(self.application.limits.most)

    @property
    def epoch_ends(self) -> list[float]:
        """Return the work at the end of each epoch."""
        return self.application.epoch_ends

    def samples_per_s(self, num_gpus: int, num_nodes: int) -> float:
        """Return the useful samples per second over the whole training, with the best measured batch all the time."""
        return max(each.samples_per_s(num_gpus, num_nodes) for each in self._fixed if each.most_gpus >= num_gpus)

    def network_share(self, num_gpus: int, num_nodes: int) -> float:
        """Return the part of a step's time in its synchronisation, with that batch."""
        fixed = [each for each in self._fixed if each.most_gpus >= num_gpus]
        best = max(fixed, key=lambda each: each.samples_per_s(num_gpus, num_nodes))
        return best.network_share(num_gpus, num_nodes)

    def left_s(self, done: float, num_gpus: int, num_nodes: int) -> float:
        """Return the time that is left at that speed."""
        return (self.epoch_ends[-1] - done) / self.samples_per_s(num_gpus, num_nodes)

    def trainer(self) -> Trainer:
        """Return a trainer that has measured nothing."""
        return Adaptive(self.application)

    @cached_property
    def _fixed(self) -> list[FixedBatch]:
        return [FixedBatch(self.application, batch) for batch in self.application.epochs.batches]


class Adaptive:
    """Chooses the batch of most goodput by a fit to its measurements, one for each placement and batch that it ran.

    Gradients are those of the batch before. Where nothing was measured, the batch is the least that its GPUs allow.
    """

    adapts = True

    def __init__(self, application: Application) -> None:
        self._application = application
        self._measured: dict[Tried, tuple[float, float]] = {}
        self._step: StepTime | None = None
        self._gradients = 0.0, 0.0
        self._choices: dict[tuple[int, int], SplitBatch] = {}

    @property
    def estimate(self) -> Goodput | None:
        """Return the goodput by the fit."""
        if self._step is None:
            return None
        return Goodput(self._step, *self._gradients, self._application.limits)

    def pace(self, counts: Counts, done: float) -> Pace:
        """Choose the batch, measure its step, and return the speed in the epoch in course."""
        application = self._application
        num_nodes, num_gpus = len(counts), sum(counts)
        split = self._chosen(num_nodes, num_gpus)
        epoch = application.epochs.epoch_at(done / application.limits.least)
        batch = num_gpus * split.local * (split.accumulated + 1)
        self._measure(Tried(num_nodes, num_gpus, split.local), application.steps.times_s(counts, split.local))
        gradients = application.epochs.statistics(batch, epoch)
        if gradients != self._gradients:
            self._gradients, self._choices = gradients, {}
        gain = application.epochs.gains(batch)[epoch]
        rate = gain * application.limits.least / application.step_s(counts, split)
        return Pace(rate, application.epoch_ends[epoch])

    def _chosen(self, num_nodes: int, num_gpus: int) -> SplitBatch:
        application, estimate = self._application, self.estimate
        if application.chosen_batch is not None:
            return application.split(application.chosen_batch, num_gpus)
        if estimate is None:
            limits = application.limits
            return application.split(max(limits.least, limits.least_local * num_gpus), num_gpus)
        if (num_nodes, num_gpus) not in self._choices:
            self._choices[num_nodes, num_gpus] = estimate.best(num_nodes, num_gpus)
        return self._choices[num_nodes, num_gpus]

    def _measure(self, tried: Tried, times_s: tuple[float, float]) -> None:
        """Fit the step anew to one more measurement; what was measured before is left as it is."""
        if tried not in self._measured:
            self._measured[tried] = times_s
            self._step, self._choices = self._application.fitted(self._measured), {}
