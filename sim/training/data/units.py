"""Units: parameters that travel together as one flat vector, and the rewriting of tasks for them.

Sharding rewrites finished tasks. A unit's gradients begin as zeros before the first op that adds to them, and are
reduced after the last such op. ``gathers.py`` has the other half: parameters that are gathered before they are read.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sim.plan.functions.tracing import Parameter, ProgramTracer, Tensor
from sim.plan.words.buffer import BYTES_PER_ELEMENT, Scope
from sim.plan.words.op import Compute, Op, on_other_buffers
from sim.plan.words.program import Phase
from sim.training.data.buckets import TIED_SOURCE, is_shared_out, make_buckets, other_axes

BUCKET_ELEMENTS: Final = 500_000_000
_AT_ONCE: Final = 2
"""Number of units with gradients in memory at once: one in backward, one being reduced."""
_OWN: Final = ".of."
REGATHERED: Final = ".regathered"
"""Ends the names of parameters that are gathered again, for backward."""
END_UNIT = "ends"
TIED_UNIT = "tied"


class Unit(Struct, frozen=True):
    """Parameters in the order of the flat vector.

    ``shard_axes``: axes other than data parallelism over which this rank's shard of the gradients must still be summed.
    ``partial``: parameters whose gradients must be summed over ``partial_axes`` before they are sharded; the unit's
        other gradients need no such sum.
    ``tied``: the gradients are also summed over the first and the last pipeline rank.
    """

    name: str
    parameters: tuple[Parameter, ...]
    shard_axes: tuple[str, ...] = ()
    partial: tuple[Parameter, ...] = ()
    partial_axes: tuple[str, ...] = ()
    tied: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """Return the buffers of the parameters."""
        return tuple(p.value.name for p in self.parameters)

    @property
    def num_bytes(self) -> int:
        """Return the size of the whole parameters in bytes."""
        return sum(p.value.spec.num_bytes for p in self.parameters)

    @property
    def gradients(self) -> tuple[str, ...]:
        """Return the buffers of the gradients."""
        return tuple(p.gradient.name for p in self.parameters)


def bucket_units(groups: Mapping[int, Sequence[Parameter]], *, bucket_bytes: int, tied: bool) -> list[Unit]:
    """Return units for gradients alone: buckets of one virtual stage each, in the order of completion.

    ``bucket_bytes``: 0 means as many elements as DeepSpeed's default reduce_bucket_size.
    """
    some = next((p for group in groups.values() for p in group), None)
    least = BYTES_PER_ELEMENT[some.gradient.dtype] * BUCKET_ELEMENTS if some else 0
    buckets = [
        bucket
        for stage in sorted(groups, reverse=True)
        for bucket in make_buckets({stage: groups[stage]}, bucket_bytes=bucket_bytes or least, overlap=True, tied=tied)
    ]
    return [
        Unit(TIED_UNIT if b.tied else str(i), b.parameters, shard_axes=b.partial_axes, tied=b.tied)
        for i, b in enumerate(buckets)
    ]


def layer_units(parameters: Sequence[Parameter], *, joins_ends: bool, apart: bool, tied: bool) -> list[Unit]:
    """Return one unit per layer, one for the embedding, and one for the final norm with the output layer.

    Experts that are split over ``ep`` are a unit of their own per layer, since fewer ranks hold the same experts.
    ``joins_ends``: embedding and output layer are one unit, as both need a tied table.
    ``apart``: the tied table is a unit of its own, as two pipeline ranks or two virtual stages need it.
    ``tied``: two pipeline ranks need the table, and sum its gradients.
    """
    members: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        is_table = apart and parameter.source == TIED_SOURCE
        name = TIED_UNIT if is_table else _unit_name(parameter, joins_ends=joins_ends)
        members.setdefault(name, []).append(parameter)
    return [make_unit(name, group, tied=tied and name == TIED_UNIT) for name, group in members.items()]


def _unit_name(parameter: Parameter, *, joins_ends: bool) -> str:
    source = parameter.source
    if source.startswith("layer"):
        layer = source.partition(".")[0]
        return f"{layer}.experts" if is_shared_out(parameter) else layer
    embeds = source.startswith("embedding.")
    return "embedding" if embeds and not joins_ends else END_UNIT


def make_unit(name: str, parameters: Sequence[Parameter], *, tied: bool = False) -> Unit:
    """Return a unit of parameters; gradients with partial axes are marked as such."""
    axes = {p.source: other_axes(p) for p in parameters}
    partial = tuple(p for p in parameters if axes[p.source])
    partial_axes = axes[partial[0].source] if partial else ()
    return Unit(name, tuple(parameters), partial=partial, partial_axes=partial_axes, tied=tied)


def with_table_apart(groups: Mapping[int, Sequence[Parameter]], *, apart: bool) -> dict[int, list[Parameter]]:
    """Return a rank's parameters by stage; ``apart``: the tied table has group -1 of its own.

    Where two virtual stages of a rank use the table, each reduces its part of the table's gradient. With a unit of its
    own, the table does not make them reduce other gradients twice.
    """
    kept = {stage: [p for p in group if not (apart and p.source == TIED_SOURCE)] for stage, group in groups.items()}
    table = [p for group in groups.values() for p in group if apart and p.source == TIED_SOURCE]
    return kept | ({-1: table} if table else {})


def with_own_buffers(tracer: ProgramTracer, phase: Phase) -> None:
    """Give each task of a phase buffers of its own for values that several of its tasks compute anew.

    A micro-batch has one instance of a buffer, which lives from the first of these tasks to the last. A schedule that
    runs many micro-batches in between would hold memory for all of them. Every task that uses such a buffer writes it
    first, so no task passes a value to another.
    """
    makers, users = defaultdict[str, list[str]](list), defaultdict[str, set[str]](set)
    for name, task in tracer.tasks.items():
        begun: dict[str, bool] = {}
        for op in task.ops:
            for buffer in (*op.reads, *op.writes):
                begun.setdefault(buffer, buffer not in op.reads)
        for buffer, is_new in begun.items():
            users[buffer].add(name)
            if is_new and task.phase is phase:
                makers[buffer].append(name)
    own = defaultdict[str, dict[str, str]](dict)
    for buffer, tasks in makers.items():
        known = tracer.buffers[buffer]
        if known.scope is Scope.MICROBATCH and known.num_bytes and users[buffer] == set(tasks):
            for name in tasks[1:]:
                own[name][buffer] = f"{buffer}{_OWN}{name}"
    for name, names in own.items():
        task = tracer.tasks[name]
        tracer.tasks[name] = replace(task, ops=tuple(on_other_buffers(op, names) for op in task.ops))
        tracer.buffers.update({new: replace(tracer.buffers[old], name=new) for old, new in names.items()})


def first_name(buffer: str) -> str:
    """Return the original name of a buffer that ``with_own_buffers`` may have renamed."""
    return buffer.partition(_OWN)[0]


# --- gradients -------------------------------------------------------------------------------------------------------


def zeros(name: str, gradients: Sequence[Tensor]) -> Compute:
    """Return the op that makes gradients of zeros."""
    attributes = {"shapes": tuple(g.shape for g in gradients), "dtype": gradients[0].dtype}
    return Compute(name, "zeros", (), tuple(g.name for g in gradients), attributes)


def with_reductions(
    ops: Sequence[Op], units: Sequence[Unit], reductions: Mapping[str, Sequence[Op]], sums: Mapping[str, str]
) -> list[Op]:
    """Return a backward in which gradients begin as zeros, and each unit is reduced once its gradients are complete.

    As with FSDP's rate limiter, computing waits for reductions: a unit's gradients begin only when at most one other
    unit is still being reduced. So at most two units' gradients exist at once, not counting units that stay open
    longer, such as a table that input and output share.
    ``sums``: by unit, the buffer that its reduction writes. These buffers outlive the micro-batch, so the first units
        wait for the last units of the previous micro-batch; empty means that no unit waits.
    """
    unit_of = {name: unit for unit in units for name in unit.gradients}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, op in enumerate(ops):
        for name in op.writes:
            if name in unit_of:
                first.setdefault(unit_of[name].name, position)
                last[unit_of[name].name] = position
    present = {unit.name: unit for unit in units if unit.name in first}
    order = sorted(present, key=last.__getitem__)
    before, after = defaultdict[int, list[Op]](list), defaultdict[int, list[Op]](list)
    for unit in present.values():
        num_reduced = sum(last[name] < first[unit.name] for name in order)
        if sums and len(order) >= _AT_ONCE:
            left = present[order[(num_reduced - _AT_ONCE) % len(order)]]
            freed = left.gradients if num_reduced >= _AT_ONCE else ()
            before[first[unit.name]].append(_departure(unit, (*freed, sums[left.name])))
        before[first[unit.name]].append(zeros(f"zeros.{unit.name}", [p.gradient for p in unit.parameters]))
        after[last[unit.name]] += reductions[unit.name]
    return [new for position, op in enumerate(ops) for new in (*before[position], op, *after[position])]


def _departure(unit: Unit, buffers: tuple[str, ...]) -> Compute:
    """Return the op that delays a unit's gradients until another unit's are reduced, and keeps these in memory."""
    return Compute(f"zeros.{unit.name}.wait", "delay", buffers, (), {"duration_s": 0.0})
