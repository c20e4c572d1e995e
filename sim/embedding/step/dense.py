"""The dense layers of a click model's step beside their passes: zeroed gradients, their sums over ranks, updates."""

from typing import Final

from sim.embedding.step.spec import AXIS
from sim.plan.functions.tracing import ProgramTracer, TaskTracer
from sim.plan.words.op import Collective, CollectiveKind
from sim.plan.words.program import Program

BUCKET_BYTES: Final = 25 * 2**20
"""The largest bucket of gradients that are summed together, as in torch's DistributedDataParallel."""


def zero_gradients(t: TaskTracer) -> None:
    """Emit the zeroing of the gradients of the dense layers."""
    t.update("zero", "zero", (), [parameter.gradient for parameter in t.program.parameters.values()])


def gradient_bytes(program: Program) -> int:
    """Return the bytes of the gradients of the dense layers of a step's program."""
    return sum(program.buffers[name].num_bytes for name in program.tasks["zero_gradients"].ops[0].writes)


def sum_gradients(t: TaskTracer) -> None:
    """Emit the sums of the dense layers' gradients over all ranks, in buckets, the last layers first."""
    for place, bucket in enumerate(_buckets(t.program)):
        t.emit(Collective(f"all_reduce.{place}", CollectiveKind.ALL_REDUCE, (AXIS,), bucket, bucket, AXIS))


def _buckets(program: ProgramTracer) -> list[tuple[str, ...]]:
    """Return gradients in the order of backward, as many together as a bucket holds."""
    buckets, size = [list[str]()], 0
    for parameter in reversed(program.parameters.values()):
        num_bytes = program.buffers[parameter.gradient.name].num_bytes
        if buckets[-1] and size + num_bytes > BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter.gradient.name)
        size += num_bytes
    return [tuple(bucket) for bucket in buckets]


def update_layers(t: TaskTracer, learning_rate: float) -> None:
    """Emit a step of SGD of all dense layers."""
    gradients = [parameter.gradient for parameter in t.program.parameters.values()]
    values = [parameter.value for parameter in t.program.parameters.values()]
    size = sum(t.program.buffers[value.name].num_elements for value in values)
    t.update(
        "dense", "sgd_piece", gradients, values, axes=(), size=size, num_gradients=len(gradients),
        num_parameters=len(values), learning_rate=learning_rate,
    )  # fmt: skip
