"""The number of replicas that an objective needs, and what smaller and larger services would do."""

from msgspec.structs import replace

from costmodels.units import format_percent, format_time
from scenarios.report.blocks import Only, Piece, Section, Table, Text
from scenarios.workloads.service.reading import ServiceScenario
from scenarios.workloads.service.summary import Capacity, CapacityPoint, ServiceSummary, summarise
from sim.serving.capacity import fewest_replicas
from sim.serving.service import Served, serve


def planned(scenario: ServiceScenario, wanted: float) -> tuple[ServiceScenario, Served, Capacity]:
    """Return the scenario with the fewest replicas that are enough, what came of it, and what was tried.

    Where none are enough it is the scenario of the whole cluster.
    """
    tried: dict[int, tuple[ServiceScenario, Served, ServiceSummary]] = {}

    def meets(num_replicas: int) -> bool:
        smaller = replace(scenario, spec=replace(scenario.spec, num_replicas=num_replicas))
        served = serve(smaller.spec, smaller.requests, smaller.cost)
        summary = summarise(smaller, served)
        tried[num_replicas] = smaller, served, summary
        return summary.met_slo_fraction >= wanted

    most = scenario.spec.num_replicas
    fewest = fewest_replicas(most, meets)
    chosen, served, _ = tried[most if fewest is None else fewest]
    points = [_point(summary) for _, (_, _, summary) in sorted(tried.items())]
    return chosen, served, Capacity(wanted_fraction=wanted, fewest_replicas=fewest, tried=points)


def _point(summary: ServiceSummary) -> CapacityPoint:
    ttft, tpot = summary.ttft_s, summary.tpot_s
    return CapacityPoint(
        num_replicas=summary.num_replicas,
        met_slo_fraction=summary.met_slo_fraction,
        ttft_p99_s=None if ttft is None else ttft.p99,
        tpot_p99_s=None if tpot is None else tpot.p99,
        busy_fraction=summary.busy_fraction,
    )


def capacity_section(capacity: Capacity) -> Section:
    """Return the part of the page that compares numbers of replicas."""
    rows = [
        (
            f"{point.num_replicas:,}",
            format_percent(point.met_slo_fraction),
            *("none" if time is None else format_time(time) for time in (point.ttft_p99_s, point.tpot_p99_s)),
            format_percent(point.busy_fraction),
        )
        for point in capacity.tried
    ]
    wanted, fewest = format_percent(capacity.wanted_fraction), capacity.fewest_replicas
    lead = (
        f"No number that the cluster has room for is enough for {wanted} of the requests."
        if fewest is None
        else f"{fewest:,} are the fewest of these with which {wanted} of the requests meet the objective."
    )
    head = ("replicas", "met the objective", "first token, 99 %", "per token, 99 %", "busy")
    said = Only("terminal", (Text((Piece(lead, "bad" if fewest is None else "strong"),), is_wrapped=True),))
    return Section("Replicas that the objective needs", (Table(head, rows), said), lead)
