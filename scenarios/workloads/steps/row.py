"""A step's row in a sweep: plain values by result key; None for values that a textbook workload lacks."""

from collections.abc import Sequence
from typing import Any, Final

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.summaries.algorithm import algorithm_words
from scenarios.summaries.step import StepSummary
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.workload import Column
from sim.engine.findings.sent import sent_bytes
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.run import SimulatedRun
from sim.plan.words.stream import Purpose, stream_of

COLUMNS: Final[Sequence[Column]] = (
    Column("time", "iteration_time_s", format_time),
    Column("tokens/s", "tokens_per_s", lambda rate: f"{rate:,.0f}"),
    Column("MFU", "mfu", format_percent),
    Column("bubble", "bubble_fraction", format_percent),
    Column("exposed", "exposed_communication_fraction", format_percent),
    Column("memory", "peak_memory_bytes", format_bytes),
    Column("fits", "fits_memory", lambda fits: "yes" if fits else "NO"),
    Column("sent", "sent_bytes_per_rank", format_bytes),
    Column("pp sent", "pipeline_sent_bytes_per_rank", format_bytes),
    Column("live", "peak_live_activations", lambda live: f"{live:.4g}"),
    Column("algorithm", "algorithm", lambda name: name if algorithm_words(name) else ""),
)

FROM_SUMMARY: Final = (
    "world_size", "iteration_time_s", "tokens_per_s", "model_flop_per_s_per_device", "mfu", "hfu", "bubble_fraction",
    "exposed_communication_fraction", "algorithm",
)  # fmt: skip

SENT: Final = {
    "tensor_sent_bytes_per_rank": Purpose.TENSOR,
    "pipeline_sent_bytes_per_rank": Purpose.PIPELINE,
    "data_sent_bytes_per_rank": Purpose.DATA,
    "expert_sent_bytes_per_rank": Purpose.EXPERT,
}


def row_of(summary: StepSummary, scenario: StepScenario, run: SimulatedRun, pricing: Pricing) -> dict[str, Any]:
    """Return the row of a step."""
    live = max(role.peak_live_microbatches for role in summary.roles)
    fullest = max(role.peak_memory_bytes for role in summary.roles)
    return {
        **{key: getattr(summary, key) for key in FROM_SUMMARY},
        "peak_memory_bytes": fullest if summary.memory_capacity_bytes else None,
        "memory_capacity_bytes": summary.memory_capacity_bytes,
        "fits_memory": summary.fits_memory,
        **_sent(run, pricing),
        "peak_live_microbatches": live,
        "peak_live_activations": live / (scenario.pipeline.virtual_stages * scenario.pipeline.num_slices),
    }


def _sent(run: SimulatedRun, pricing: Pricing) -> dict[str, float | None]:
    """Return the bytes that the mean rank sends: all, and by the purpose of their streams."""
    if not isinstance(pricing, ClusterPricing):
        return dict.fromkeys(("sent_bytes_per_rank", *SENT))
    sent = {stream: num_bytes / run.plan.num_steps for stream, num_bytes in sent_bytes(run, pricing).items()}
    by_purpose = dict.fromkeys(SENT.values(), 0.0)
    for stream, num_bytes in sent.items():
        if (purpose := stream_of(stream).purpose) in by_purpose:
            by_purpose[purpose] += num_bytes
    return {"sent_bytes_per_rank": sum(sent.values()), **{key: by_purpose[purpose] for key, purpose in SENT.items()}}
