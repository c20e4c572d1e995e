"""Published step times, ready for simulation with varying constants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.calibration.document import CalibratedProfile
from costmodels.profile import Profile
from costmodels.software import Software
from scenarios.calibration.tables import refuse_twice
from scenarios.errors import Origin, ScenarioError
from scenarios.fitting.constants import Constant, applied
from scenarios.validation.published import entry_of, where_of
from scenarios.workloads.loading import step_from_mapping
from scenarios.workloads.steps.running import plan_of
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import Simulation
from sim.plan.words.program import Plan
from traces.published import PublishedRow, PublishedTable, load_table

FITTED: Final = "fitted"
"""Name of the group of rows to which constants are fitted, in tables with groups."""
OF_STEPS: Final = frozenset(
    {"iteration_time_s", "tokens_per_s", "model_flop_per_s_per_device", "hardware_flop_per_s_per_device"}
)
"""Predictions that are times or rates of steps."""
Array = NDArray[np.float64]


class StepFacts(Struct, frozen=True):
    """A measured step: its time, whether constants are fitted to it, and its values of the constants."""

    name: str
    measured_s: float
    fitted: bool
    software: Software
    profile: Profile


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A measured step with its plan and cluster. It caches its compiled plan and its last prediction."""

    facts: StepFacts
    simulation: Simulation
    pricing: ClusterPricing
    _last: dict[tuple[Software, Profile], float] = field(default_factory=dict, repr=False)

    @property
    def plan(self) -> Plan:
        """Return the plan of the step."""
        return self.simulation.plan

    def predicted_s(self, constants: Mapping[Constant, float]) -> float:
        """Return the step time with those of these constants that its scenario has."""
        pricing = applied(self.pricing, constants)
        key = (pricing.software, pricing.profile)
        if key not in self._last:
            self._last.clear()
            self._last[key] = self.simulation.run(pricing).iteration_time_s
        return self._last[key]


class StepsHere(Struct, frozen=True):
    """Measured steps that this process simulates."""

    steps: Sequence[MeasuredStep]

    @property
    def facts(self) -> list[StepFacts]:
        """Return the facts of every step."""
        return [step.facts for step in self.steps]

    def predicted_s(self, constants: Mapping[Constant, float], which: Sequence[int]) -> Array:
        """Return the times of some of the steps with these constants."""
        return np.array([self.steps[place].predicted_s(constants) for place in which])


def measured_steps(
    tables: Sequence[Path], profile: CalibratedProfile | None = None, part: slice = slice(None)
) -> list[MeasuredStep]:
    """Return the steps of tables of step times or rates, or a part of them. Without groups all rows are fitted.

    ``profile``: a profile in place of the rows' own.

    Raises TraceError for a bad table. Raises ScenarioError for a table named twice or of other measurements, for a row
    that is no scenario, and for a row of another machine than the profile's.
    """
    refuse_twice(tables)
    loaded = [load_table(path) for path in tables]
    for table in loaded:
        if table.prediction not in OF_STEPS:
            raise _unfit(table, f"these are not times or rates of steps, but {table.prediction}")
    rows = [(table, row) for table in loaded for row in table.rows]
    return [_step(table, row, profile) for table, row in rows[part]]


def _step(table: PublishedTable, row: PublishedRow, profile: CalibratedProfile | None) -> MeasuredStep:
    scenario = step_from_mapping(entry_of(table, row), table.path, where_of(table, row))
    if profile is not None and scenario.cluster is not None:
        refuse_other_machine(profile, scenario.cluster.node, table, row)
        scenario = replace(scenario, cluster=replace(scenario.cluster, calibrated=profile))
    scenario = scenario.decided()
    pricing, simulation, measured_s = scenario.pricing(), Simulation(plan_of(scenario)), row.measured
    if not isinstance(pricing, ClusterPricing):
        raise _unfit(table, "the times of a textbook workload are stated, so nothing can be fitted to them")
    if table.prediction != "iteration_time_s":
        run = simulation.run(pricing)
        rate = getattr(scenario.rates(run), table.prediction)
        assert rate is not None  # only textbook workloads have none
        measured_s = rate * run.iteration_time_s / row.measured
    fitted = row.group in {FITTED, ""}
    facts = StepFacts(f"{table.name}: {row.name}", measured_s, fitted, pricing.software, pricing.profile)
    return MeasuredStep(facts, simulation, pricing)


def refuse_other_machine(profile: CalibratedProfile, node: str, table: PublishedTable, row: PublishedRow) -> None:
    """Raise ScenarioError for a row of a machine for which a profile does not hold."""
    if not profile.holds_for(node):
        rule = f"the row is of {node}, and {profile.profile.name} is a profile of {profile.node}"
        raise ScenarioError(Origin(option=where_of(table, row)), "", rule, "name tables of the profile's machine")


def _unfit(table: PublishedTable, rule: str) -> ScenarioError:
    return ScenarioError(Origin(str(table.path)), "measured.prediction", rule, "name a table of iteration_time_s")
