"""Calls of several simulated ranks as one block: those that meet in collectives inside a coalescing call.

Ranks of one tensor-parallel group that are not alike (one of them is slow, say) wait for each other several times in
every layer. They run the same tasks in the same order, and where nobody else uses what their ops use, all of a call is
a longest path again, through the ops of all of them: a collective begins when its last member comes.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from msgspec import Struct, field

from sim.engine.compiling.contention import Contention
from sim.engine.compiling.graph import Block, Graph, NodeKind, Pattern, PricedTask
from sim.engine.compiling.patterns import team_patterns
from sim.engine.compiling.shape import NO_PATH
from sim.engine.compiling.tables import MAIN_STREAM, TaskTable
from sim.plan.words.op import Collective
from sim.plan.words.program import Program

ClassesOf = Callable[[int, Collective], tuple[int, ...]]
"""The simulated ranks that take part in a collective of one of them."""


def find_teams(
    programs: Mapping[int, Program],
    priced: Mapping[int, Mapping[str, PricedTask]],
    contention: Contention,
    classes_of: ClassesOf,
) -> dict[int, tuple[int, ...]]:
    """Return each rank's team: the ranks that it always meets in coalescing tasks; none where ops share resources."""
    teams = {}
    for rank, program in programs.items():
        found = _met(rank, program, priced[rank], contention, classes_of)
        if len(found) == 1:
            teams[rank] = found.pop()
    return {
        rank: team
        for rank, team in teams.items()
        if all(teams.get(other) == team and programs[other] is programs[rank] for other in team)
    }


def _met(
    rank: int,
    program: Program,
    priced: Mapping[str, PricedTask],
    contention: Contention,
    classes_of: ClassesOf,
) -> set[tuple[int, ...]]:
    """Return the classes of all joint collectives in coalescing tasks; nothing where ops share resources."""
    tasks = {name: task for name, task in program.tasks.items() if task.traits.coalesces}
    met = {classes_of(rank, op) for task in tasks.values() for op in task.ops if isinstance(op, Collective)}
    found = {classes for classes in met if len(classes) > 1}
    activities = {id(activity): activity for name in tasks for activity in priced[name].activities} if found else {}
    demands = chain.from_iterable(activity.demands for activity in activities.values())
    return set() if any(resource in contention.contended for resource, _ in demands) else found


class _TeamBlock(Struct, eq=False):
    """A call of all ranks of a team. Entries and exits are nodes by place in the team and op."""

    node: int
    tables: list[TaskTable | None]
    units: list[tuple[int, int]] = field(default_factory=list)
    entries: dict[tuple[int, int], int] = field(default_factory=dict)
    exits: dict[tuple[int, int], int] = field(default_factory=dict)


class Part(Struct, eq=False):
    """One rank's part of a team's block. Until all parts are there, ``until_finished`` takes its pattern's place."""

    graph: Graph
    block: _TeamBlock
    place: int
    until_finished: Pattern

    def entry(self, op: int) -> int:
        """Return the node whose end lets an op go."""
        key = (self.place, op)
        if key not in self.block.entries:
            self.block.entries[key] = self.graph.add(NodeKind.ENTRY)
        return self.block.entries[key]

    def exit(self, op: int) -> int:
        """Return the node that is done when an op is done."""
        key = (self.place, op)
        if key not in self.block.exits:
            self.block.exits[key] = self.graph.add(NodeKind.EXIT)
        return self.block.exits[key]


class Team(Struct, eq=False):
    """The blocks of ranks that meet in every coalescing call, by call."""

    graph: Graph
    ranks: tuple[int, ...]
    blocks: dict[int, _TeamBlock] = field(default_factory=dict)
    patterns: dict[tuple[object, ...], tuple[Pattern, list[Pattern]] | None] = field(default_factory=dict)

    def part(self, rank: int, unit: int, index: int, table: TaskTable) -> Part:
        """Return a rank's part of a call's block."""
        if index not in self.blocks:
            self.blocks[index] = _TeamBlock(self.graph.add(NodeKind.BLOCK), [None] * len(self.ranks))
        block, place = self.blocks[index], self.ranks.index(rank)
        block.tables[place] = table
        block.units.append((unit, place))
        main_exit = -1 if place else table.shape.last[MAIN_STREAM]  # at whose end the block's own node is done
        return Part(self.graph, block, place, Pattern((), [], [], main_exit, 0.0))

    def finish(self) -> str | None:
        """Give all blocks their patterns; return a task whose calls cannot be blocks, if there is one."""
        for index, block in self.blocks.items():
            tables = [table for table in block.tables if table is not None]
            if not self._finish(index, block, tables):
                return tables[0].task.name
        return None

    def _finish(self, index: int, block: _TeamBlock, tables: Sequence[TaskTable]) -> bool:
        graph, num_ops = self.graph, len(tables[0].task.ops)
        entries = tuple(sorted(block.entries))
        key = (tables[0].task.name, entries)
        if key not in self.patterns:
            self.patterns[key] = team_patterns(tables, entries)
        found = self.patterns[key]
        if found is None:
            return False
        whole, parts = found
        exits, nodes = {}, [block.entries[entry] for entry in entries]
        for (place, op), node in block.exits.items():
            at = place * num_ops + op
            if any(row[at] == NO_PATH for row in whole.offsets):
                graph.kinds[node] = NodeKind.JOIN
                graph.link_early_exit(node, block.node, whole, at, nodes)
            else:
                exits[at] = node
        graph.blocks[block.node] = Block(whole, [0.0] * len(entries), len(entries), exits, self.ranks)
        for slot, node in enumerate(nodes):
            graph.entries[node] = (block.node, slot)
        for unit, place in block.units:
            graph.units.nodes[unit], graph.units.patterns[unit] = block.node, parts[place]
        graph.team_calls.append((self.ranks, index, tables[0].joint_ops))
        return True
