"""Gradient buckets: the gradients of one collective, and the order of the buckets."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from msgspec import Struct

from sim.plan.functions.tracing import Parameter
from sim.plan.words.buffer import BYTES_PER_ELEMENT
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS, EXPERT_AXIS, is_context

TIED_SOURCE = "embedding.word"
AxesOf = Mapping[str, tuple[str, ...]]
"""By a parameter's source: ``other_axes`` of it."""


class Bucket(Struct, frozen=True):
    """Gradients that one collective reduces as one flat vector.

    ``partial_axes``: axes over which the gradients must be summed first, other than those of data and context
        parallelism.
    ``tied``: the gradient is also summed over the first and the last pipeline rank, which both hold the parameter.
    """

    index: int
    parameters: tuple[Parameter, ...]
    partial_axes: tuple[str, ...] = ()
    tied: bool = False

    @property
    def of_experts(self) -> bool:
        """Return whether the bucket holds experts that are split over ``ep``: each rank's experts differ."""
        return is_shared_out(self.parameters[0]) or bool(self.holders)

    @property
    def holders(self) -> tuple[int, ...]:
        """Return the positions along ``ep`` that have a copy of the bucket's experts; empty: they have no replicas."""
        return self.parameters[0].holders


def is_shared_out(parameter: Parameter) -> bool:
    """Return whether a parameter is split over the ranks of ``ep``, as experts are."""
    return parameter.value.layout.get(EXPERT_AXIS) is not None


def make_buckets(
    groups: Mapping[int, Sequence[Parameter]], *, bucket_bytes: int, overlap: bool, tied: bool
) -> list[Bucket]:
    """Return the buckets in the order in which their gradients are complete.

    Backward runs the last virtual stage first and the last parameter first. Two kinds of gradient are complete only
    after the very last backward: those with unusual partial axes, such as gradients of norms, and the tied embedding.
    They have buckets of their own at the end, so that they delay no other bucket. Without ``overlap`` all ordinary
    gradients are one bucket, which is complete with its last gradient (Megatron-LM v3's blocking all_reduce after the
    pipeline flush). Experts that are split over ``ep`` have fewer replicas than other parameters, and so buckets of
    their own. Experts with replicas come last: a bucket for those with the same holders, in the order of these, which
    all ranks share.
    """
    all_ready = [list(reversed(groups[stage])) for stage in sorted(groups, reverse=True)]
    ready = [[p for p in group if not p.holders] for group in all_ready]
    flat = [p for group in ready for p in group]
    axes_of = {p.source: other_axes(p) for p in flat}
    usual = _usual_axes(flat, axes_of)
    late = [p for p in flat if tied and p.source == TIED_SOURCE]
    at_once = {source for source, axes in axes_of.items() if axes == usual}.difference(p.source for p in late)
    ordinary = [[p for p in group if p.source in at_once] for group in ready]
    together = ordinary if overlap else [list(chain(*ordinary))]
    alike = chain.from_iterable(map(_whole_and_shared_out, together))
    chunks = [part for group in alike for part in _cut(group, bucket_bytes if overlap else 0)]
    summed = [p for p in flat if axes_of[p.source] != usual and not (tied and p.source == TIED_SOURCE)]
    buckets: list[tuple[list[Parameter], tuple[str, ...], bool]] = [(chunk, usual, False) for chunk in chunks]
    buckets += [(chunk, axes, False) for axes, chunk in _by_axes(summed, axes_of).items()]
    buckets += [(late, other_axes(late[0]), True)] if late else []
    buckets += [(chunk, (), False) for chunk in _by_holders(chain(*all_ready))]
    return [Bucket(i, tuple(chunk), axes, tie) for i, (chunk, axes, tie) in enumerate(b for b in buckets if b[0])]


def other_axes(parameter: Parameter) -> tuple[str, ...]:
    """Return the axes over which a gradient must still be summed, without those of data and context parallelism."""
    partial = parameter.gradient.layout.partial_axes
    return tuple(axis for axis in partial if axis != DATA_AXIS and not is_context(axis))


def _by_axes(parameters: Iterable[Parameter], axes_of: AxesOf) -> dict[tuple[str, ...], list[Parameter]]:
    """Group parameters by the axes over which their gradients must be summed first, without those of replicas."""
    groups: dict[tuple[str, ...], list[Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(axes_of[parameter.source], []).append(parameter)
    return groups


def _by_holders(parameters: Iterable[Parameter]) -> list[list[Parameter]]:
    """Return the experts with replicas, those with the same holders together, in the order of these."""
    groups: dict[tuple[int, ...], list[Parameter]] = {}
    for parameter in parameters:
        if parameter.holders:
            groups.setdefault(parameter.holders, []).append(parameter)
    return [groups[holders] for holders in sorted(groups)]


def _usual_axes(parameters: Iterable[Parameter], axes_of: AxesOf) -> tuple[str, ...]:
    """Return the partial axes that most gradient elements have, without those of replicas."""
    groups = _by_axes(parameters, axes_of)
    sizes = {axes: sum(p.gradient.spec.num_elements for p in group) for axes, group in groups.items()}
    return max(sizes, key=lambda axes: sizes[axes], default=())


def _whole_and_shared_out(parameters: Iterable[Parameter]) -> tuple[list[Parameter], list[Parameter]]:
    """Return the parameters that every rank of ``ep`` holds, and those that are split over these ranks."""
    whole, shared_out = list[Parameter](), list[Parameter]()
    for parameter in parameters:
        (shared_out if is_shared_out(parameter) else whole).append(parameter)
    return whole, shared_out


def _cut(parameters: Iterable[Parameter], bucket_bytes: int) -> Iterable[list[Parameter]]:
    """Cut a sequence into runs of at least ``bucket_bytes`` each; the last run may be smaller."""
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
