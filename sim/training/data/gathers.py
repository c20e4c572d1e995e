"""The gathering of sharded parameters in finished passes: before the first op that reads a unit, or ahead of it.

A unit whose shard lies in the host's memory first comes to the device, over the link between the two, and is gathered
there.
"""

from collections.abc import Iterator, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from sim.memory.movement import Movement, Stay
from sim.plan.words.buffer import Tier
from sim.plan.words.op import Collective, CollectiveKind, Compute, Copy, Op
from sim.training.data.host_streams import READ, TO_DEVICE
from sim.training.data.units import Unit
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS

Hops = tuple[tuple[str, ...], ...]
"""The axes of successive all_gathers; the last tuple's runs first. See ``shard_hops``."""


class Pass(Struct, frozen=True):
    """A forward or a backward that reads units. ``names``: by parameter, its name in this pass once gathered."""

    label: str
    ops: Sequence[Op]
    names: Mapping[str, str]


class Shard(Struct, frozen=True):
    """This rank's piece of a unit. ``hops``: axes of its all_gathers; empty: the piece is the whole unit.

    ``name``: its buffer. ``tier``: where that buffer lies.
    """

    name: str
    hops: Hops
    tier: Tier = Tier.DEVICE


class Gathers(Struct, frozen=True):
    """The all_gathers of one pass, or of passes that follow each other at once.

    ``held``: units that the last pass finds gathered: by the pass before it, or by an earlier task.
    ``begin``: an empty buffer that the first pass writes first, so that nothing is gathered while an earlier pass
        computes.
    """

    shards: Mapping[str, Shard]
    held: Set[str]
    movement: Movement
    begin: str

    def into(self, passes: Sequence[Pass], units: Sequence[Unit]) -> list[list[Op]]:
        """Return the passes, with each unit gathered as early as the policy of movement lets it, in time and in order.

        Positions count the ops of all passes in a row.
        """
        ops = [op for one in passes for op in one.ops]
        found = self._stays(passes, units)
        if all(gathered is None for _, _, gathered in found):
            return [list(one.ops) for one in passes]
        blocks: dict[int, list[Op]] = {}
        triggers = self.movement.triggers([stay for stay, _, _ in found])
        for (_, unit, gathered), trigger in zip(found, triggers, strict=True):
            if gathered is not None:
                position, gate = self._gate(ops, trigger)
                block = blocks.setdefault(position, [])
                block += self._moved(gathered, unit, gate, {op.stream for op in block})
        results, start = [], 0
        for one in passes:
            end = start + len(one.ops)
            results.append(_joined(one, blocks, start))
            results[-1] += blocks.pop(end, []) if end < len(ops) else []
            start = end
        begin = Compute(self.begin, "delay", (), (self.begin,), {"duration_s": 0.0})
        return [[begin, *results[0]], *results[1:]]

    def _stays(self, passes: Sequence[Pass], units: Sequence[Unit]) -> list[tuple[Stay, Unit, Pass | None]]:
        """Return the units' stays in the order of their first reads, each with the pass that gathers it.

        A held unit is gathered by no pass, or by the first pass and stays until the last one lets it go.
        """
        unit_of = {name: unit for unit in units for name in unit.values}
        stays: dict[tuple[int, str], Stay] = {}
        others: dict[tuple[int, str], tuple[Unit, Pass | None]] = {}
        start = 0
        for number, one in enumerate(passes):
            for position, op in enumerate(one.ops, start):
                for unit in dict.fromkeys(unit_of[name] for name in op.reads if name in unit_of):
                    is_held, is_last = unit.name in self.held, number == len(passes) - 1
                    key = (0 if is_held else number, unit.name)
                    others.setdefault(key, (unit, None if is_held and is_last else one))
                    stay = stays.setdefault(key, Stay(unit.name, position, position, unit.num_bytes))
                    stays[key] = replace(stay, last=position)
            start += len(one.ops)
        return sorted(((stays[key], *others[key]) for key in stays), key=lambda item: item[0].first)

    def _gate(self, ops: Sequence[Op], trigger: int) -> tuple[int, str]:
        """Return the position of an all_gather after all ops before ``trigger``, and the buffer to wait for."""
        before = (i for i in reversed(range(trigger)) if isinstance(ops[i], Compute) and ops[i].writes)
        position = next(before, None)
        return (0, self.begin) if position is None else (position + 1, ops[position].writes[0])

    def _moved(self, one: Pass, unit: Unit, gate: str, begun: Set[str]) -> Iterator[Op]:
        """Yield the ops that bring a unit to the device and gather it.

        ``begun``: streams that have waited for the gate already.
        """
        ops = list(gather(one.label, self.shards[unit.name], unit, one.names))
        stream = ops[0].stream
        if stream not in begun:
            yield Compute(f"{one.label}.{unit.name}.wait", "delay", (gate,), (), {"duration_s": 0.0}, stream=stream)
        yield from ops


def _joined(one: Pass, blocks: dict[int, list[Op]], start: int) -> list[Op]:
    """Return a pass with blocks of ops before its own, whose positions begin at ``start``; it reads gathered names."""
    result: list[Op] = []
    for position, op in enumerate(one.ops, start):
        result += blocks.pop(position, [])
        result.append(replace(op, reads=tuple(one.names.get(name, name) for name in op.reads)))
    return result


def gather(label: str, shard: Shard, unit: Unit, names: Mapping[str, str]) -> Iterator[Op]:
    """Yield the all_gathers of a unit's parameters under the given names, over the last axes first.

    A shard in the host's memory is copied to the device before, one on drives to the host first.

    With ``dp_local`` this is MiCS's hierarchical all_gather (Zhang et al. 2022, section 3.3): first between nodes,
    among the ranks at the same place of each node, then inside nodes. The order of the shards makes the paper's
    rearrangement between the two unnecessary.
    """
    here = shard.name
    writes = tuple(names.get(name, name) for name in unit.values)
    if shard.tier is Tier.NVME:
        yield Copy(f"read.{label}.{unit.name}", (here,), (from_drives(label, unit),), READ)
        here = from_drives(label, unit)
    if shard.tier is not Tier.DEVICE:
        there = (loaded(label, unit),) if shard.hops else writes
        yield Copy(f"load.{label}.{unit.name}", (here,), there, TO_DEVICE)
        here = there[0]
    for axes in reversed(shard.hops[1:]):
        there, name = (between(label, unit),), ".".join((between(label, unit), *axes))
        yield Collective(name, CollectiveKind.ALL_GATHER, axes, (here,), there, DATA_AXIS)
        here = there[0]
    if shard.hops:
        yield Collective(f"{label}.{unit.name}", CollectiveKind.ALL_GATHER, shard.hops[0], (here,), writes, DATA_AXIS)


def between(label: str, unit: Unit) -> str:
    """Return the name of the buffer of a unit that is gathered between nodes and not yet inside."""
    return f"{label}.{unit.name}.between"


def from_drives(label: str, unit: Unit) -> str:
    """Return the name of the host's buffer of this rank's piece of a unit that has come from drives."""
    return f"{label}.{unit.name}.from_drives"


def loaded(label: str, unit: Unit) -> str:
    """Return the name of the buffer of this rank's piece of a unit that has come from the host."""
    return f"{label}.{unit.name}.loaded"
