"""The cases of a calibration: kernels of training steps of several model sizes, and network benchmarks."""

from collections.abc import Iterator, Sequence
from typing import Final

from backends.execution.measuring.benchmarks import (
    Benchmark,
    CollectiveBenchmark,
    HandoffBenchmark,
    MessageBenchmark,
    WindowBenchmark,
)
from backends.execution.measuring.steps import KernelCall, StepKernels
from costmodels.calibration.samples import CollectiveSample, KernelSample
from costmodels.kernels import KERNELS
from sim.plan.facts.description import kernel_work
from sim.plan.words.op import CollectiveKind
from sim.plan.words.program import Program
from sim.training.pipeline.rules import Schedule
from sim.training.spec.job import DenseTraining, ParallelSpec, PipelineSpec, Precision, TrainingSpec
from sim.training.spec.models.model import TransformerSpec
from sim.training.steps.builder import build_dense_training
from sim.training.tensor.one_dimensional import OneDimensional

_SIZES: Final = {
    "cpu": (
        (64, 32, 2, 128, 16), (96, 64, 4, 512, 48), (128, 128, 2, 1024, 32), (256, 128, 2, 2048, 64),
        (512, 256, 1, 4096, 64),
    ),
    "cuda": (
        (1024, 1024, 1, 8192, 128), (2048, 2048, 1, 16384, 128), (4096, 2048, 2, 32000, 128),
        (8192, 4096, 1, 32000, 128),
    ),
}  # fmt: skip
"""Hidden size, sequence length, sequences per micro-batch, vocabulary, head size."""

_DEPTHS: Final = {"cpu": (2, 2), "cuda": (1, 1)}
"""Layers, and micro-batches of a step: so many that no kernel finds the last written data in a cache."""

_PRECISIONS: Final[dict[str, tuple[Precision, ...]]] = {"cpu": ("fp32", "fp64", "bf16"), "cuda": ("bf16", "fp16")}
_WAYS: Final = ((1, 1), (2, 1), (1, 2))
"""Tensor-parallel ranks (with sequence parallelism), and slices per sequence. These steps add narrower products, sums,
and kernels that slice and append.
"""

_PAYLOADS: Final = {"cpu": (1 << 10, 1 << 24), "cuda": (1 << 10, 1 << 29)}
_COLLECTIVES: Final = (
    CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.BROADCAST,
)  # fmt: skip


def kernel_steps(device: str, processes: int, precisions: Sequence[Precision] = ()) -> list[StepKernels]:
    """Return training steps of several models, in order of size. Together they have every kernel in several shapes.

    ``precisions``: the wanted precisions; if empty, all precisions calibrated on the device.
    """
    found = []
    for key, job in _jobs(device, precisions or _PRECISIONS[device]):
        if job.parallel.tensor.degree <= processes:
            kind = job.model.family, job.training.precision, job.parallel.tensor.degree, job.parallel.pipeline.schedule
            found.append(StepKernels(key, build_dense_training(job, "calibration"), kind))
    return found


def network_benchmarks(device: str, processes: int) -> list[WindowBenchmark]:
    """Return benchmarks of handoffs, and of collectives and messages for several groups and sizes (factor 4)."""
    least, most = _PAYLOADS[device]
    sizes = [least << shift for shift in range(0, (most // least).bit_length(), 2)]
    groups = [2**power for power in range(1, processes.bit_length()) if 2**power <= processes]
    if processes not in groups and processes > 1:
        groups.append(processes)
    found: list[WindowBenchmark] = [HandoffBenchmark(hands_over=True), HandoffBenchmark(hands_over=False)]
    found += [MessageBenchmark(size) for size in sizes] if groups else []
    found += [
        CollectiveBenchmark(kind, size - size % (4 * g), g) for g in groups for kind in _COLLECTIVES for size in sizes
    ]
    return found


def kernel_sample(call: KernelCall, seconds: float) -> KernelSample:
    """Return a measured kernel call as a sample for the fit."""
    program = Program({}, call.buffers, {}, ())
    dtype = next((b.dtype for b in call.buffers.values() if "float" in b.dtype), "float32")
    return KernelSample(
        key=call.key, family=KERNELS[call.op.kernel].family, dtype=dtype, work=kernel_work(program, call.op),
        seconds=seconds, kernel=call.op.kernel,
    )  # fmt: skip


def network_sample(
    benchmark: Benchmark, seconds: float, handoff_s: float, compute_share: float | None = None
) -> CollectiveSample | None:
    """Return a measured collective or message as a sample for the fit; None for a handoff.

    In a plan a collective runs on another thread than the kernels before and after it. So the time of two handoffs is
    added to its time. The measured time of a message includes its handoffs.
    """
    if isinstance(benchmark, CollectiveBenchmark):
        kind, group, total_s = str(benchmark.kind), (benchmark.group,), seconds + 2 * handoff_s
    elif isinstance(benchmark, MessageBenchmark):
        kind, group, total_s = "send_recv", (2,), seconds
    else:
        return None
    return CollectiveSample(
        key=benchmark.key, kind=kind, num_bytes=benchmark.num_bytes, ranks_per_node=group, seconds=total_s,
        compute_share=compute_share,
    )  # fmt: skip


def _jobs(device: str, precisions: Sequence[Precision]) -> Iterator[tuple[str, DenseTraining]]:
    layers, microbatches = _DEPTHS[device]
    for hidden, sequence, batch, vocabulary, head in _SIZES[device]:
        heads = hidden // head
        gpt = TransformerSpec(
            family="gpt", num_layers=layers, hidden_size=hidden, num_heads=heads, num_kv_heads=heads,
            sequence_length=sequence, vocab_size=vocabulary, ffn_hidden_size=4 * hidden, tied_embeddings=True,
            attention="core", dropout=0.1,
        )  # fmt: skip
        llama = TransformerSpec(
            family="llama", num_layers=layers, hidden_size=hidden, num_heads=heads, num_kv_heads=heads,
            sequence_length=sequence, vocab_size=vocabulary, ffn_hidden_size=3 * hidden, tied_embeddings=False,
            attention="flash", dropout=0.0,
        )  # fmt: skip
        for model in (gpt, llama):
            for precision in precisions:
                for shards, slices in _WAYS:
                    training = TrainingSpec(
                        global_batch_size=batch * microbatches, microbatch_size=batch, precision=precision
                    )
                    parts = (sequence // slices,) * slices if slices > 1 else ()
                    schedule: Schedule = "terapipe" if parts else "1f1b"
                    pipeline = PipelineSpec(degree=1, schedule=schedule, token_slices=parts)
                    tensor = OneDimensional(degree=shards, sequence_parallel=shards > 1)
                    parallel = ParallelSpec(tensor=tensor, pipeline=pipeline)
                    key = f"{model.family} {hidden} x {batch} x {sequence} {precision}, {shards} ranks, {slices} slices"
                    yield key, DenseTraining(model=model, training=training, parallel=parallel)
