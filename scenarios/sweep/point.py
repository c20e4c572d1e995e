"""One point of a sweep: simulated, and what came out as plain values. Runs in whatever process it is sent to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scenarios.reading.loader import Scenario
from scenarios.report.thumbnail import Thumbnail, thumbnail
from scenarios.running.runner import Result, pricing_of, simulate
from scenarios.sweep.refusal import REFUSALS, one_line
from sim.engine.findings.sent import sent_bytes
from sim.engine.prices.pricing import ClusterPricing
from sim.training.spec.job import TextbookTraining

FROM_SUMMARY: Final = (
    "world_size", "iteration_time_s", "tokens_per_s", "model_flop_per_s_per_device", "mfu", "hfu", "bubble_fraction",
    "exposed_communication_fraction", "algorithm",
)  # fmt: skip

SENT: Final = {
    "tensor_sent_bytes_per_rank": "tp",
    "pipeline_sent_bytes_per_rank": "pp",
    "data_sent_bytes_per_rank": "dp",
    "expert_sent_bytes_per_rank": "ep",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What a sweep tells of a point, by result key; ``picture`` where it was asked for."""

    values: Mapping[str, Any]
    picture: Thumbnail | None = None


def measure(scenario: Scenario, with_picture: bool) -> Measured | str:
    """Return what the simulation of a scenario says, or in one line why there is none."""
    try:
        result = simulate(scenario, detail="task" if with_picture else None)
    except REFUSALS as error:
        return one_line(error)
    return Measured(values_of(result), thumbnail(result.timeline) if with_picture else None)


def values_of(result: Result) -> dict[str, Any]:
    """Return the result keys of one point; null is what a textbook workload does not have."""
    summary, scenario = result.summary, result.scenario
    fullest = max(role["peak_memory_bytes"] for role in summary["roles"])
    live = max(role["peak_live_microbatches"] for role in summary["roles"])
    return {
        **{key: summary[key] for key in FROM_SUMMARY},
        "peak_memory_bytes": fullest if summary["memory_capacity_bytes"] else None,
        "memory_capacity_bytes": summary["memory_capacity_bytes"],
        "fits_memory": summary["fits_memory"],
        **_sent(result),
        "peak_live_microbatches": live,
        "peak_live_activations": live / _parts(scenario),
    }


def pipeline_degree(scenario: Scenario) -> int:
    """Return how many ranks a pipeline has."""
    job = scenario.job
    return (job.pipeline if isinstance(job, TextbookTraining) else job.parallel.pipeline).degree


def _parts(scenario: Scenario) -> int:
    """Return in how many parts the live activations of a rank's micro-batch are counted."""
    job = scenario.job
    pipeline = job.pipeline if isinstance(job, TextbookTraining) else job.parallel.pipeline
    return pipeline.virtual_stages * pipeline.num_slices


def _sent(result: Result) -> dict[str, float | None]:
    """Return the bytes that the mean rank sends, all and by axis."""
    pricing = pricing_of(result.scenario)
    if not isinstance(pricing, ClusterPricing):
        return dict.fromkeys(("sent_bytes_per_rank", *SENT))
    num_steps = result.run.plan.num_steps
    sent = {axis: num_bytes / num_steps for axis, num_bytes in sent_bytes(result.run, pricing).items()}
    return {"sent_bytes_per_rank": sum(sent.values()), **{key: sent.get(axis, 0.0) for key, axis in SENT.items()}}
