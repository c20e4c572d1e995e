"""The plan that was simulated last: steps that differ in prices alone build, check and compile it once."""

from dataclasses import dataclass

from backends.simulated import simulation_of
from scenarios.reading.documents.located import located
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.running.collector import collector_paused
from sim.engine.running.simulate import Simulation


@dataclass
class LastPlan:
    """Holds the simulation of one plan. Whoever simulates several steps has one of these, for as long as that takes.

    Steps have equal plans where all that a plan depends on is equal (``StepScenario.planned``).

        last = LastPlan()
        runs = [repriced(last.simulation(scenario), scenario.pricing()) for scenario in scenarios]
    """

    _planned: bytes = b""
    _simulation: Simulation | None = None

    @collector_paused()
    def simulation(self, scenario: StepScenario) -> Simulation:
        """Return the simulation of a decided scenario's plan: the last one, if that had an equal plan.

        Raises ScenarioError for a plan of more bytes than can be counted, CheckError for one that cannot run.
        """
        planned = scenario.planned
        if self._simulation is None or planned != self._planned:
            self._simulation = None  # so that there are never two
            with located(scenario.document):
                plan = scenario.build()
            self._simulation, self._planned = simulation_of(plan), planned
        return self._simulation
