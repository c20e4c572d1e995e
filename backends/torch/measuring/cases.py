"""Which kernels to measure: those of training steps, in the shapes and types that models of several sizes have."""

from collections.abc import Iterator, Sequence
from typing import Final

from backends.torch.measuring.benchmarks import (
    Benchmark,
    CollectiveBenchmark,
    HandoffBenchmark,
    KernelBenchmark,
    MessageBenchmark,
)
from costmodels.calibration.samples import CollectiveSample, KernelSample, Sample
from costmodels.kernels import KERNELS
from sim.plan.buffer import Buffer
from sim.plan.description import kernel_work
from sim.plan.op import CollectiveKind, Compute
from sim.plan.program import Program
from sim.training.builder import build_dense_training
from sim.training.spec import DenseTraining, ParallelSpec, Precision, TrainingSpec, TransformerSpec

_SIZES: Final = {
    "cpu": ((64, 32, 2, 128), (96, 64, 4, 512), (128, 128, 2, 1024), (256, 128, 2, 2048), (512, 256, 1, 4096)),
    "cuda": ((1024, 1024, 1, 8192), (2048, 2048, 1, 16384), (4096, 2048, 2, 32000), (8192, 4096, 1, 32000)),
}
"""Hidden size, sequence length, sequences per micro-batch, vocabulary."""

_PRECISIONS: Final[dict[str, tuple[Precision, ...]]] = {"cpu": ("fp32", "fp64", "bf16"), "cuda": ("bf16", "fp16")}
_HEAD_SIZES: Final = {"cpu": 16, "cuda": 128}
_SHARDS: Final = (1, 2)
"""Tensor-parallel degrees, the sequence split too: they bring narrower products, slices and sums."""

_PAYLOADS: Final = {"cpu": (1 << 10, 1 << 24), "cuda": (1 << 10, 1 << 29)}
_UNTIMED: Final = frozenset({"delay", "none"})
_COLLECTIVES: Final = (
    CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.BROADCAST,
)  # fmt: skip


def kernel_benchmarks(device: str) -> list[KernelBenchmark]:
    """Return every distinct kernel call of the training steps of some models, smaller models first."""
    found: dict[str, KernelBenchmark] = {}
    for job in _jobs(device):
        for program in build_dense_training(job, "calibration").programs:
            for op in (op for task in program.tasks.values() for op in task.ops):
                if isinstance(op, Compute) and KERNELS[op.kernel].family not in _UNTIMED:
                    buffers = {name: program.buffers[name] for name in (*op.reads, *op.writes)}
                    key = _key(op, list(buffers.values()))
                    found.setdefault(key, KernelBenchmark(key, op, buffers))
    return list(found.values())


def network_benchmarks(device: str, processes: int) -> list[Benchmark]:
    """Return handoffs between streams, and collectives and messages over sizes and groups; sizes grow fourfold."""
    least, most = _PAYLOADS[device]
    sizes = [least << shift for shift in range(0, (most // least).bit_length(), 2)]
    groups = [2**power for power in range(1, processes.bit_length()) if 2**power <= processes]
    if processes not in groups and processes > 1:
        groups.append(processes)
    found: list[Benchmark] = [HandoffBenchmark(hands_over=True), HandoffBenchmark(hands_over=False)]
    found += [MessageBenchmark(size) for size in sizes] if groups else []
    found += [
        CollectiveBenchmark(kind, size - size % (4 * g), g) for g in groups for kind in _COLLECTIVES for size in sizes
    ]
    return found


def sample_of(benchmark: Benchmark, seconds: float, handoff_s: float) -> Sample | None:
    """Return a measurement as the fit takes it; None for a handoff.

    A collective of a plan starts on another thread than the kernel before it, and so does the kernel after it: two
    handoffs are added to its time. Messages have them within.
    """
    if isinstance(benchmark, KernelBenchmark):
        buffers, op = list(benchmark.buffers.values()), benchmark.op
        program = Program({}, benchmark.buffers, {}, ())
        dtype = next((b.dtype for b in buffers if "float" in b.dtype), "float32")
        family = KERNELS[op.kernel].family
        return KernelSample(
            key=benchmark.key, family=family, dtype=dtype, work=kernel_work(program, op), seconds=seconds,
            kernel=op.kernel,
        )  # fmt: skip
    if isinstance(benchmark, CollectiveBenchmark):
        kind, group, total_s = str(benchmark.kind), (benchmark.group,), seconds + 2 * handoff_s
    elif isinstance(benchmark, MessageBenchmark):
        kind, group, total_s = "send_recv", (2,), seconds
    else:
        return None
    return CollectiveSample(
        key=benchmark.key, kind=kind, num_bytes=benchmark.num_bytes, ranks_per_node=group, seconds=total_s
    )


def _jobs(device: str) -> Iterator[DenseTraining]:
    for hidden, sequence, batch, vocabulary in _SIZES[device]:
        heads = hidden // _HEAD_SIZES[device]
        gpt = TransformerSpec(
            family="gpt", num_layers=1, hidden_size=hidden, num_heads=heads, num_kv_heads=heads,
            sequence_length=sequence, vocab_size=vocabulary, ffn_hidden_size=4 * hidden, tied_embeddings=True,
            attention="core", dropout=0.1,
        )  # fmt: skip
        llama = TransformerSpec(
            family="llama", num_layers=1, hidden_size=hidden, num_heads=heads, num_kv_heads=heads,
            sequence_length=sequence, vocab_size=vocabulary, ffn_hidden_size=3 * hidden, tied_embeddings=False,
            attention="flash", dropout=0.0,
        )  # fmt: skip
        for model in (gpt, llama):
            for precision in _PRECISIONS[device]:
                for shards in _SHARDS:
                    training = TrainingSpec(global_batch_size=batch, microbatch_size=batch, precision=precision)
                    parallel = ParallelSpec(tensor_degree=shards, sequence_parallel=shards > 1)
                    yield DenseTraining(model=model, training=training, parallel=parallel)


def _key(op: Compute, buffers: Sequence[Buffer]) -> str:
    """Return kernel, shapes, types and attributes; names and salts make no difference."""
    shapes = " ".join(f"{b.dtype}{list(b.shape)}" for b in buffers)
    attributes = " ".join(f"{name}={value}" for name, value in sorted(op.attributes.items()) if name != "salt")
    return f"{op.kernel} {shapes} {attributes}".strip()
