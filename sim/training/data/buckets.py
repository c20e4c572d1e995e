"""Which gradients are synchronised together, and in which order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from sim.plan.functions.tracing import Parameter
from sim.plan.words.buffer import BYTES_PER_ELEMENT
from sim.training.spec.parallelism.mesh_axes import CONTEXT_AXIS, EXPERT_AXIS

TIED_SOURCE = "embedding.word"


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that travel as one flat vector.

    ``partial_axes``: axes other than those of data and context parallelism over which they must be summed first.
    ``tied``: also summed over the first and the last pipeline rank, which both hold the parameter.
    """

    index: int
    parameters: tuple[Parameter, ...]
    partial_axes: tuple[str, ...] = ()
    tied: bool = False

    @property
    def of_experts(self) -> bool:
        """Return whether these are experts that the ranks of ``ep`` share out, of which none has what others have."""
        return is_shared_out(self.parameters[0])


def is_shared_out(parameter: Parameter) -> bool:
    """Return whether the ranks of ``ep`` each hold a part of a parameter, as they do of experts."""
    return parameter.value.layout.get(EXPERT_AXIS) is not None


def make_buckets(
    groups: Mapping[int, Sequence[Parameter]], *, bucket_bytes: int, overlap: bool, data_axis: str, tied: bool
) -> list[Bucket]:
    """Return the buckets in the order in which their gradients get ready.

    Backward runs the last virtual stage first and the last parameter first. Gradients that another axis
    must sum, and the tied embedding, wait for the very last backward, so they go in buckets of their own
    at the end and hold up nobody. Without ``overlap`` all ordinary gradients are one bucket, ready only
    when the last one is (Megatron-LM v3's blocking all_reduce after the pipeline flush). Experts that ranks share out
    have fewer replicas than the rest, and buckets of their own.
    """
    ready = [list(reversed(groups[stage])) for stage in sorted(groups, reverse=True)]
    ordinary = [[p for p in group if not _waits(p, data_axis, tied)] for group in ready]
    together = ordinary if overlap else [list(chain(*ordinary))]
    alike = [[p for p in group if is_shared_out(p) is shared] for group in together for shared in (False, True)]
    chunks = [part for group in alike for part in _cut(group, bucket_bytes if overlap else 0)]
    flat = [p for group in ready for p in group]
    summed = [p for p in flat if _other_axes(p, data_axis) and not (tied and p.source == TIED_SOURCE)]
    late = [p for p in flat if tied and p.source == TIED_SOURCE]
    buckets: list[tuple[list[Parameter], tuple[str, ...], bool]] = [(chunk, (), False) for chunk in chunks]
    buckets += [(summed, _other_axes(summed[0], data_axis), False)] if summed else []
    buckets += [(late, (), True)] if late else []
    return [Bucket(i, tuple(chunk), axes, tie) for i, (chunk, axes, tie) in enumerate(b for b in buckets if b[0])]


def _other_axes(parameter: Parameter, data_axis: str) -> tuple[str, ...]:
    return tuple(axis for axis in parameter.gradient.layout.partial_axes if axis not in (data_axis, CONTEXT_AXIS))


def _waits(parameter: Parameter, data_axis: str, tied: bool) -> bool:
    return bool(_other_axes(parameter, data_axis)) or (tied and parameter.source == TIED_SOURCE)


def _cut(parameters: Iterable[Parameter], bucket_bytes: int) -> Iterable[list[Parameter]]:
    """Cut a sequence into runs of at least ``bucket_bytes`` each, the last one excepted."""
    chunk: list[Parameter] = []
    size = 0
    for parameter in parameters:
        chunk.append(parameter)
        size += parameter.gradient.spec.num_elements * BYTES_PER_ELEMENT[parameter.gradient.dtype]
        if bucket_bytes and size >= bucket_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
