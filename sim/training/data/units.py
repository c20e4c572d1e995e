"""Units: parameters that travel together as one flat vector, and the rewriting of tasks for them.

Sharding rewrites finished tasks. A unit's parameters are gathered before the first op that reads them, or earlier with
prefetching. Its gradients begin as zeros before the first op that adds to them, and are reduced after the last such op.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from sim.plan.functions.tracing import Parameter, ProgramTracer, Tensor
from sim.plan.words.buffer import BYTES_PER_ELEMENT, Scope
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op, on_other_buffers
from sim.plan.words.program import Phase
from sim.training.data.buckets import TIED_SOURCE, is_shared_out, make_buckets, other_axes
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS

BUCKET_ELEMENTS: Final = 500_000_000
_AT_ONCE: Final = 2
"""Number of units with gradients in memory at once: one in backward, one being reduced."""
_OWN: Final = ".of."
Hops = tuple[tuple[str, ...], ...]
"""The axes of successive all_gathers; the last tuple's runs first. See ``shard_hops``."""
END_UNIT = "ends"
TIED_UNIT = "tied"


@dataclass(frozen=True, slots=True)
class Unit:
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


# --- parameters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gathers:
    """The all_gathers of a pass.

    ``hops``: by unit, the axes of its all_gathers.
    ``shards``: by unit, the buffer of this rank's piece.
    ``names``: by parameter, its name in this pass once gathered.
    ``held``: units that are gathered already.
    ``ahead``: number of units gathered ahead of the unit that computes.
    ``begin``: an empty buffer that the pass writes first, so that nothing is gathered while the previous pass computes.
    """

    hops: Mapping[str, Hops]
    label: str
    shards: Mapping[str, str]
    names: Mapping[str, str]
    held: Set[str]
    ahead: int
    begin: str

    def into(self, ops: Sequence[Op], units: Sequence[Unit]) -> list[Op]:
        """Return a pass that gathers its units in the order of their first reads.

        At most ``1 + ahead`` units are gathered at once, not counting units held for another pass or read out of order.
        A unit is gathered once the unit ``1 + ahead`` places before it has been used, in issue order and in time.
        """
        order = self._order(ops, units)
        if all(unit.name in self.held for _, unit in order):
            return list(ops)
        starts = [position for position, _ in order]
        inserted: dict[int, list[Op]] = {}
        for place, (_, unit) in enumerate(order):
            if unit.name in self.held:
                continue
            position, gate = self._after(ops, starts, place - self.ahead)
            block = inserted.setdefault(position, [])
            if not block:
                block.append(self._wait(unit, gate))
            block += gather(self.label, self.hops[unit.name], unit, self.shards[unit.name], self.names)
        result: list[Op] = []
        for position, op in enumerate(ops):
            result += inserted.get(position, [])
            result.append(replace(op, reads=tuple(self.names.get(name, name) for name in op.reads)))
        return [Compute(self.begin, "delay", (), (self.begin,), {"duration_s": 0.0}), *result]

    def _order(self, ops: Sequence[Op], units: Sequence[Unit]) -> list[tuple[int, Unit]]:
        """Return the units in the order of their first reads, each with the position of the op that reads it first."""
        unit_of = {name: unit for unit in units for name in unit.values}
        found: dict[str, tuple[int, Unit]] = {}
        for position, op in enumerate(ops):
            for name in op.reads:
                if name in unit_of:
                    found.setdefault(unit_of[name].name, (position, unit_of[name]))
        return sorted(found.values(), key=lambda item: item[0])

    def _after(self, ops: Sequence[Op], starts: Sequence[int], place: int) -> tuple[int, str]:
        """Return the position of an all_gather after all units before ``place``, and the buffer to wait for."""
        if place < 1:
            return 0, self.begin
        before = reversed(range(starts[place]))
        position = next(i for i in before if isinstance(ops[i], Compute) and ops[i].writes)
        return position + 1, ops[position].writes[0]

    def _wait(self, unit: Unit, gate: str) -> Op:
        name = f"{self.label}.{unit.name}.wait"
        return Compute(name, "delay", (gate,), (), {"duration_s": 0.0}, stream=DATA_AXIS)


def gather(label: str, hops: Hops, unit: Unit, shard: str, names: Mapping[str, str]) -> Iterator[Op]:
    """Yield the all_gathers of a unit's parameters under the given names, over the last axes first.

    With ``dp_local`` this is MiCS's hierarchical all_gather (Zhang et al. 2022, section 3.3): first between nodes,
    among the ranks at the same place of each node, then inside nodes. The order of the shards makes the paper's
    rearrangement between the two unnecessary.
    """
    here = shard
    for axes in reversed(hops[1:]):
        there, name = between(label, unit), ".".join((between(label, unit), *axes))
        yield Collective(name, CollectiveKind.ALL_GATHER, axes, (here,), (there,), DATA_AXIS)
        here = there
    writes = tuple(names.get(name, name) for name in unit.values)
    yield Collective(f"{label}.{unit.name}", CollectiveKind.ALL_GATHER, hops[0], (here,), writes, DATA_AXIS)


def between(label: str, unit: Unit) -> str:
    """Return the name of the buffer of a unit that is gathered between nodes and not yet inside."""
    return f"{label}.{unit.name}.between"
