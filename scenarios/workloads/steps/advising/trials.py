"""Trials of changes: each is checked, laid out, held against memory and simulated, within a predicted cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from scenarios.errors import ScenarioError
from scenarios.summaries.steps.advice import AdviceLevel, TriedChange, UntriedChange
from scenarios.workloads.steps.cost import CostModel
from scenarios.workloads.steps.findings.changes import Overrides, merged
from scenarios.workloads.steps.last_plan import LastPlan
from scenarios.workloads.steps.running import SimulatedStep, run_plan, simulated_plan_of
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.workload import with_changes
from sim.engine.running.memory import memory_use
from sim.engine.running.run import SimulatedRun
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Plan

QUICK_S: Final = 5.0
"""Predicted seconds of all quick trials together."""
MOST_S: Final = 120.0
"""A trial of a longer prediction is estimated, or left out, even where all are asked for."""


class Trial(Struct, frozen=True):
    """A change that was tried: the scenario with it, and its run where it was simulated."""

    change: TriedChange
    scenario: StepScenario
    run: SimulatedRun | None = None


@dataclass
class Trials:
    """All trials for one simulated step, none twice.

    A change that is refused, or changes nothing, or trains by another algorithm, is no change and leaves no trace.
    Steps on an equal machine share its prices: kernels and routes that one trial has priced are known to the next.
    """

    found: SimulatedStep
    level: AdviceLevel
    tried: list[Trial] = field(default_factory=list)
    not_tried: list[UntriedChange] = field(default_factory=list)
    _spent_s: float = 0.0
    _known: list[StepScenario] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scenario = self.found.scenario
        self._last = LastPlan.priced_as(self.scenario, self.found.pricing)
        self._known.append(self.scenario)
        plan, causes = self.found.run.plan, self.scenario.counterfactuals()
        uneven = any("stragglers" in override for cause in causes for override in cause.overrides)
        self._cost = CostModel.of(self.found.run, uneven=uneven)
        self._alike_s = self._cost.building_s(plan) + self._cost.simulating_s(plan, self.scenario.pipeline.schedule)

    def attempt(self, *changes: Overrides) -> Trial | None:
        """Return the trial of changes together; None where there is none to be had, or it would cost too much."""
        overrides = merged(*changes)
        changed = self._changed(overrides)
        if changed is None:
            return None
        if not self._affords(self._alike_s):
            self.not_tried.append(UntriedChange(set=overrides, predicted_s=self._alike_s))
            return None
        try:
            changed = changed.decided()
            plan = simulated_plan_of(changed)
        except ScenarioError:  # no choice of what to shard fits
            return None
        self._spent_s += self._cost.building_s(plan)
        peak_bytes, fits = memory_of(plan, changed)
        if fits is False:
            return self._noted(overrides, changed, None, peak_bytes, fits=fits)
        return self._simulated(overrides, changed, plan, (peak_bytes, fits))

    def time_without(self, overrides: Overrides) -> float | None:
        """Return the step time with other overrides, whatever memory it takes; None where it would cost too much."""
        try:
            changed = with_changes(self.scenario, overrides).decided()
            if not self._affords(self._alike_s):
                return None
            plan = simulated_plan_of(changed)
            self._spent_s += self._alike_s
            return run_plan(changed, plan).iteration_time_s
        except ScenarioError:
            return None

    def _changed(self, overrides: Overrides) -> StepScenario | None:
        """Return the scenario with overrides, None where that is not valid, or nothing new."""
        try:
            changed = with_changes(self.scenario, overrides)
        except ScenarioError:
            return None
        if changed.algorithm != self.scenario.algorithm or any(changed.job == known.job for known in self._known):
            return None
        self._known.append(changed)
        return changed

    def _affords(self, predicted_s: float) -> bool:
        left_s = QUICK_S - self._spent_s if self.level == "quick" else MOST_S
        return predicted_s <= left_s

    def _simulated(
        self, overrides: Overrides, changed: StepScenario, plan: Plan, memory: tuple[int | None, bool | None]
    ) -> Trial | None:
        """Return the trial of a change that fits, simulated or estimated."""
        peak_bytes, fits = memory
        predicted_s = self._cost.simulating_s(plan, changed.pipeline.schedule)
        try:
            if self._affords(predicted_s):
                self._spent_s += predicted_s
                run = run_plan(changed, plan, self._last.pricing(changed))
                return self._noted(overrides, changed, run.iteration_time_s, peak_bytes, fits=fits, run=run)
            time_s = self._estimated_s(changed, predicted_s + self._cost.building_s(plan))
        except ScenarioError:  # an algorithm that cannot serve the groups that there are now
            return None
        if time_s is None:
            self.not_tried.append(UntriedChange(set=overrides, predicted_s=predicted_s))
            return None
        return self._noted(overrides, changed, time_s, peak_bytes, fits=fits, estimated=True)

    def _estimated_s(self, changed: StepScenario, whole_s: float) -> float | None:
        """Return the step time extrapolated from two steps with fewer micro-batches; None where these cost too much.

        Once a pipeline is full, each further round of micro-batches takes as long as the one before. ``whole_s``: the
        predicted cost of the whole step.
        """
        number, counts = changed.job.num_microbatches, few_microbatches(changed)
        shorter = [short for count in counts if (short := changed.with_microbatches(count)) is not None]
        predicted_s = len(counts) * self._alike_s + whole_s * sum(counts) / number
        if len(shorter) < len(counts) or number < 2 * counts[-1] or not self._affords(predicted_s):
            return None
        self._spent_s += predicted_s
        first_s, second_s = (
            run_plan(short, simulated_plan_of(short), self._last.pricing(short)).iteration_time_s for short in shorter
        )
        return second_s + (second_s - first_s) * (number - counts[1]) / (counts[1] - counts[0])

    def note_unfit(self, overrides: Overrides) -> None:
        """Note a change that takes more memory than another one that does not fit."""
        if (changed := self._changed(overrides)) is not None:
            self._noted(overrides, changed, None, None, fits=False)

    def _noted(
        self, overrides: Overrides, changed: StepScenario, time_s: float | None, peak_bytes: int | None,
        *, fits: bool | None, run: SimulatedRun | None = None, estimated: bool = False,
    ) -> Trial:  # fmt: skip
        gain = None if time_s is None else self.found.summary.iteration_time_s / time_s - 1.0
        change = TriedChange(
            set=overrides, fits_memory=fits, peak_memory_bytes=peak_bytes, iteration_time_s=time_s, gain=gain,
            estimated=estimated,
        )  # fmt: skip
        self.tried.append(Trial(change, changed, run))
        return self.tried[-1]


def few_microbatches(scenario: StepScenario) -> tuple[int, int]:
    """Return two numbers of micro-batches that fill the pipeline."""
    ranks = scenario.pipeline.degree
    fewest = 2 * ranks if scenario.pipeline.schedule not in ("1f1b", "interleaved_1f1b") or ranks == 1 else ranks
    return fewest, 2 * fewest


def memory_of(plan: Plan, scenario: StepScenario) -> tuple[int | None, bool | None]:
    """Return the fullest rank's peak in bytes, and whether all fit on device and host; None: nothing is held."""
    device = scenario.device
    if device is None:
        return None, None
    peak_bytes = max(memory_use(program).peak_bytes for program in plan.programs)
    return peak_bytes, peak_bytes <= scenario.software.room_bytes(device) and _fits_host(plan, scenario)


def _fits_host(plan: Plan, scenario: StepScenario) -> bool:
    if scenario.cluster is None:
        return True
    per_node, host = min(scenario.cluster.devices_per_node, plan.mesh.size), scenario.cluster.node_spec.host
    rooms = {Tier.HOST: host.memory_bytes, Tier.NVME: 0 if host.storage is None else host.storage.capacity_bytes}
    peaks = {tier: max(memory_use(program, tier).peak_bytes for program in plan.programs) for tier in rooms}
    return all(peaks[tier] * per_node <= room_bytes for tier, room_bytes in rooms.items())


def by_time(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Yield trials, the fastest first, those without a time last."""
    none_s = float("inf")
    yield from sorted(trials, key=lambda t: none_s if t.change.iteration_time_s is None else t.change.iteration_time_s)
