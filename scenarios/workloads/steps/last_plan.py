"""The plan that was simulated last, and its prices: what the next of several steps has in common with it is kept."""

from msgspec import Struct

from backends.simulated import simulation_of
from scenarios.reading.documents.located import located
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.collector import collector_paused
from sim.engine.running.simulate import Simulation


class LastPlan(Struct):
    """Holds the simulation of one plan and one set of prices. Whoever simulates several steps has one of these.

    Steps have equal plans where all that a plan depends on is equal (``StepScenario.planned``): they differ in prices.
    Steps of another batch have alike plans (``StepScenario.batched``), whose compiled parts they share. Equal machines
    have equal prices (``StepScenario.priced``).

        last = LastPlan()
        runs = [repriced(last.simulation(scenario), last.pricing(scenario)) for scenario in scenarios]
    """

    _planned: bytes = b""
    _batched: bytes = b""
    _priced: bytes = b""
    _simulation: Simulation | None = None
    _pricing: Pricing | None = None

    @classmethod
    def priced_as(cls, scenario: StepScenario, pricing: Pricing) -> "LastPlan":
        """Return what knows the prices of one scenario."""
        return cls(_priced=scenario.priced, _pricing=pricing)

    @collector_paused()
    def simulation(self, scenario: StepScenario) -> Simulation:
        """Return the simulation of a decided scenario's plan: the last one, if that had an equal plan.

        Raises ScenarioError for a plan of more bytes than can be counted, CheckError for one that cannot run.
        """
        planned, batched = scenario.planned, scenario.batched
        if self._simulation is not None and planned == self._planned:
            return self._simulation
        before, self._simulation = self._simulation if batched == self._batched else None, None
        with located(scenario.document):
            plan = scenario.build_simulated()
        self._simulation, self._planned, self._batched = simulation_of(plan, like=before), planned, batched
        return self._simulation

    def pricing(self, scenario: StepScenario) -> Pricing:
        """Return the prices of a scenario: the last ones, if its machine is equal."""
        priced = scenario.priced
        if self._pricing is None or priced != self._priced:
            self._pricing, self._priced = scenario.pricing(), priced
        elif isinstance(self._pricing, ClusterPricing):
            self._pricing = self._pricing.for_another_plan()
        return self._pricing
