"""A step's row in a sweep: the results that a sweep compares; None for values that a textbook workload lacks."""

from collections.abc import Mapping, Sequence
from typing import Final

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.summaries.steps.algorithm import algorithm_words
from scenarios.summaries.steps.step import StepSummary
from scenarios.summaries.steps.step_row import StepRow
from scenarios.workloads.steps.scenario import StepScenario
from scenarios.workloads.workload import Column
from sim.engine.findings.sent import sent_bytes
from sim.engine.prices.activity import Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.run import SimulatedRun
from sim.plan.words.stream import Purpose, stream_of

COLUMNS: Final[Sequence[Column]] = (
    Column("time", "iteration_time_s", format_time),
    Column("memory", "peak_memory_bytes", format_bytes),
    Column("fits", "fits_memory", lambda fits: "yes" if fits else "NO"),
    Column("tokens/s", "tokens_per_s", lambda rate: f"{rate:,.0f}"),
    Column("MFU", "mfu", format_percent),
    Column("bubble", "bubble_fraction", format_percent),
    Column("exposed", "exposed_communication_fraction", format_percent),
    Column("sent", "sent_bytes_per_rank", format_bytes),
    Column("pp sent", "pipeline_sent_bytes_per_rank", format_bytes),
    Column("live", "peak_live_activations", lambda live: f"{live:.4g}"),
    Column("algorithm", "algorithm", lambda name: name if algorithm_words(name) else ""),
)


def row_of(summary: StepSummary, scenario: StepScenario, run: SimulatedRun, pricing: Pricing) -> StepRow:
    """Return the row of a step."""
    live = max(role.peak_live_microbatches for role in summary.roles)
    fullest = max(role.peak_memory_bytes for role in summary.roles)
    sent = _sent_bytes(run, pricing)
    return StepRow(
        world_size=summary.world_size,
        iteration_time_s=summary.iteration_time_s,
        tokens_per_s=summary.tokens_per_s,
        model_flop_per_s_per_device=summary.model_flop_per_s_per_device,
        mfu=summary.mfu,
        hfu=summary.hfu,
        bubble_fraction=summary.bubble_fraction,
        exposed_communication_fraction=summary.exposed_communication_fraction,
        algorithm=summary.algorithm,
        peak_memory_bytes=fullest if summary.memory_capacity_bytes else None,
        memory_capacity_bytes=summary.memory_capacity_bytes,
        fits_memory=summary.fits_memory,
        sent_bytes_per_rank=None if sent is None else sum(sent.values()),
        tensor_sent_bytes_per_rank=_of(sent, Purpose.TENSOR),
        pipeline_sent_bytes_per_rank=_of(sent, Purpose.PIPELINE),
        data_sent_bytes_per_rank=_of(sent, Purpose.DATA),
        expert_sent_bytes_per_rank=_of(sent, Purpose.EXPERT),
        peak_live_microbatches=live,
        peak_live_activations=live / (scenario.pipeline.virtual_stages * scenario.pipeline.num_slices),
    )


def _sent_bytes(run: SimulatedRun, pricing: Pricing) -> dict[str, float] | None:
    """Return the bytes that the mean rank sends in a step, by stream; None where times are stated."""
    if not isinstance(pricing, ClusterPricing):
        return None
    return {stream: num_bytes / run.plan.num_steps for stream, num_bytes in sent_bytes(run, pricing).items()}


def _of(sent: Mapping[str, float] | None, purpose: Purpose) -> float | None:
    """Return the bytes on streams of one purpose."""
    if sent is None:
        return None
    return sum((num_bytes for stream, num_bytes in sent.items() if stream_of(stream).purpose is purpose), 0.0)
