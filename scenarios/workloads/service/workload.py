"""A service of a model: requests come, wait, are computed in batches, and are answered token by token."""

from msgspec.structs import replace

from costmodels.units import format_percent, format_time, format_tokens_rate
from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.effort import Announce
from scenarios.workloads.service.capacity import planned
from scenarios.workloads.service.outcome import ServiceOutcome, ServiceRow
from scenarios.workloads.service.reading import ServiceScenario, read_service
from scenarios.workloads.service.schema import UNREAD, ServiceScenarioFile
from scenarios.workloads.service.starter import STARTER
from scenarios.workloads.service.summary import summarise
from scenarios.workloads.workload import Column, Detail, Workload
from sim.serving.service import serve


class Service(Workload[ServiceScenario]):
    """Times to the first token and per token, goodput, and what requests wait for."""

    name = "service"
    what = "a service of a model: requests, batches, paged memory of keys and values, replicas"
    schema = ServiceScenarioFile
    starter = STARTER
    row_type = ServiceRow
    columns = (
        Column("first token, 50 %", "ttft_p50_s", format_time),
        Column("99 %", "ttft_p99_s", format_time),
        Column("per token, 50 %", "tpot_p50_s", format_time),
        Column("99 %", "tpot_p99_s", format_time),
        Column("latency, mean", "mean_latency_s", format_time),
        Column("output", "output_tokens_per_s", format_tokens_rate),
        Column("goodput", "goodput_per_s", lambda rate: f"{rate:.2f} requests/s"),
        Column("met the objective", "met_slo_fraction", format_percent),
    )
    order, ordered_by = "mean_latency_s", "mean latency"
    point = "simulated service"
    has_plan = False
    has_size = True
    unread = UNREAD

    def read(self, document: Document, overrides: tuple[str, ...]) -> ServiceScenario:
        """Return the scenario of a document."""
        return read_service(document, overrides, self)

    def simulate(
        self,
        scenario: ServiceScenario,
        *,
        detail: Detail | None = None,
        fold: bool = True,
        announce: Announce | None = None,
    ) -> ServiceOutcome:
        """Return what came of the requests."""
        wanted, capacity = scenario.slo.share, None
        if wanted is None:
            served = serve(scenario.spec, scenario.requests, scenario.cost)
        else:
            scenario, served, capacity = planned(scenario, wanted)
        return ServiceOutcome(scenario, served, replace(summarise(scenario, served), capacity=capacity))

    def sized(self, scenario: ServiceScenario) -> ServiceOutcome:
        """Return what came of the requests with the fewest replicas that meet the objective."""
        if scenario.slo.share is None:
            rule = "a plan of a service seeks the fewest replicas that meet an objective, and none is stated"
            remedy = "write slo: {ttft: 1 s, tpot: 50 ms, share: 0.99}"
            raise ScenarioError(scenario.document.origin(("service",)), "service.slo.share", rule, remedy)
        return self.simulate(scenario)
