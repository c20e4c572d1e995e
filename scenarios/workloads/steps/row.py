"""A step's row in a sweep: the results that a sweep compares; None for values that a textbook workload lacks."""

from collections.abc import Mapping, Sequence
from typing import Final

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.summaries.steps.algorithm import algorithm_words
from scenarios.summaries.steps.step_row import StepRow
from scenarios.workloads.steps.results import results_of
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
    Column("mean of steps", "mean_iteration_time_s", format_time),
    Column("goodput", "goodput", format_percent),
    Column("algorithm", "algorithm", lambda name: name if algorithm_words(name) else ""),
)


def row_of(scenario: StepScenario, run: SimulatedRun, pricing: Pricing) -> StepRow:
    """Return the row of a step. What a summary alone says, such as the interval, is not worked out: it takes longer."""
    live = max(run.peak_live_chunks(rank) for rank in run.programs)
    fullest = max(run.memory_of(rank).peak_bytes for rank in run.programs)
    found, sent = results_of(scenario, run), _sent_bytes(run, pricing)
    return StepRow(
        world_size=run.plan.mesh.size,
        iteration_time_s=run.iteration_time_s,
        tokens_per_s=found.rates.tokens_per_s,
        model_flop_per_s_per_device=found.rates.model_flop_per_s_per_device,
        mfu=found.rates.mfu,
        hfu=found.rates.hfu,
        bubble_fraction=found.bubble_fraction,
        exposed_communication_fraction=found.exposed_fraction,
        algorithm=scenario.algorithm,
        peak_memory_bytes=fullest if found.capacity_bytes else None,
        memory_capacity_bytes=found.capacity_bytes,
        fits_memory=found.fits_memory,
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
