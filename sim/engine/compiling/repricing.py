"""A compiled plan under other prices: the same nodes, which last otherwise.

What waits for whom follows from the plan, from which ranks are alike, and of the prices from three things: which
resources an op uses at all, which sends occupy nothing, and which messages travel equally long. While these stay, so
does the graph.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sim.engine.compiling.graph import SENT, Block, Graph, Joint, NodeKind, Pattern, PricedTask, Unit
from sim.engine.compiling.patterns import call_pattern, team_patterns
from sim.engine.compiling.tables import TaskTable, lasting_s
from sim.engine.prices.activity import Activity, Resource
from sim.plan.words.op import Send
from sim.plan.words.program import Program

Priced = Mapping[int, Mapping[str, PricedTask]]
Tables = Mapping[int, Mapping[str, TaskTable]]


StructureKey = tuple[tuple[object, ...], ...]


def structure_of(programs: Mapping[int, Program], prices: Priced) -> StructureKey:
    """Return the key of prices by which a graph is built: prices with the same key share a compiled plan."""
    return tuple(_structure(program, prices[rank]) for rank, program in programs.items())


def _structure(program: Program, priced: Mapping[str, PricedTask]) -> tuple[object, ...]:
    """Return the part of that key that a rank's prices give."""
    used: list[tuple[Resource, ...]] = []
    sends: list[Activity] = []
    for name, task in program.tasks.items():
        activities = priced[name].activities
        used += [tuple([r for r, seconds in activity.demands if seconds > 0]) for activity in activities]
        sends += [activity for op, activity in zip(task.ops, activities, strict=True) if isinstance(op, Send)]
    at_once = [send.occupancy_s == 0.0 for send in sends]
    return tuple(used), tuple(at_once), _alike([send.latency_s for send in sends])


def _alike(values: Sequence[float]) -> tuple[int, ...]:
    """Return of each value where the first that equals it stands."""
    first: dict[float, int] = {}
    return tuple([first.setdefault(value, place) for place, value in enumerate(values)])


def repriced(graph: Graph, tables: Tables, programs: Mapping[int, Program], priced: Priced) -> Graph:
    """Return a graph with other prices, which leave its structure as it is (see ``structure_of``).

    ``tables`` and ``programs`` are those that it was compiled from.
    """
    return _Repricing(graph, tables, programs, priced).graph()


class _Repricing:
    """What nodes last under other prices, found call by call. ``activities``: of sends and members, by node."""

    def __init__(self, before: Graph, tables: Tables, programs: Mapping[int, Program], priced: Priced) -> None:
        self.before, self.tables, self.programs, self.priced = before, tables, programs, priced
        self.durations_s, self.shared = list(before.durations_s), list(before.shared)
        self.blocks: dict[int, Block] = {}
        self.activities: dict[int, Activity] = {}
        self._tasks: dict[tuple[int, str], _Task] = {}
        self._patterns: dict[tuple[int, str, tuple[int, ...]], Pattern] = {}
        self._team_patterns: dict[tuple[object, ...], tuple[Pattern, list[Pattern]]] = {}

    def graph(self) -> Graph:
        """Return the graph. Parts that no price changes are shared with the graph before."""
        names = {rank: [call.task for call in program.calls] for rank, program in self.programs.items()}
        patterns = [self._pattern_of(unit, names[unit[0]][unit[1]]) for unit in self.before.units]
        messages = self.before.messages
        for send, journey in zip(messages.sends, messages.journeys, strict=True):
            self.durations_s[journey] = self.activities[send].latency_s
        for path, (block, slot, op) in self.before.early_exits.items():
            pattern = self.blocks[block].pattern
            self.durations_s[path] = pattern.offsets[slot][op] + pattern.durations_s[op]
        joints = [self._joint(joint) for joint in self.before.joints]
        return replace(
            self.before,
            durations_s=self.durations_s,
            shared=self.shared,
            blocks=self.blocks,
            joints=joints,
            units=replace(self.before.units, patterns=patterns),
        )

    def _pattern_of(self, unit: Unit, name: str) -> Pattern | None:
        """Give the nodes of a call their prices; return how it runs."""
        rank, _, node, pattern = unit
        if pattern is None:
            self._task(rank, name).put(node, self)
            return None
        if pattern is SENT:
            self.activities[node] = self.priced[rank][name].activities[0]
            return SENT
        block = self.before.blocks.get(node)
        if block is not None and block.ranks:
            whole, parts = self._team_pattern(block, name)
            self._add_block(node, block, whole)
            return parts[block.ranks.index(rank)]
        pattern = self._pattern(rank, name, pattern.entries)
        self.durations_s[node] = pattern.span_s
        if block is not None:
            self._add_block(node, block, pattern)
        return pattern

    def _add_block(self, node: int, block: Block, pattern: Pattern) -> None:
        num_entries = len(pattern.entries)
        self.blocks[node] = Block(pattern, [0.0] * num_entries, num_entries, block.exits, block.ranks)

    def _joint(self, joint: Joint) -> Joint:
        return replace(joint, activity=self.activities[joint.members[0]])

    def _task(self, rank: int, name: str) -> "_Task":
        if (rank, name) not in self._tasks:
            self._tasks[rank, name] = _Task.of(self.tables[rank][name], self.priced[rank][name])
        return self._tasks[rank, name]

    def _table(self, rank: int, name: str) -> TaskTable:
        return replace(self.tables[rank][name], activities=self.priced[rank][name].activities)

    def _pattern(self, rank: int, name: str, entries: tuple[int, ...]) -> Pattern:
        key = (rank, name, entries)
        if key not in self._patterns:
            pattern = call_pattern(self._table(rank, name), entries)
            assert pattern is not None  # it was one before
            self._patterns[key] = pattern
        return self._patterns[key]

    def _team_pattern(self, block: Block, name: str) -> tuple[Pattern, list[Pattern]]:
        key = (block.ranks, name, block.pattern.entries)
        if key not in self._team_patterns:
            tables = [self._table(rank, name) for rank in block.ranks]
            entries = [divmod(place, len(tables[0].task.ops)) for place in block.pattern.entries]
            patterns = team_patterns(tables, entries)
            assert patterns is not None
            self._team_patterns[key] = patterns
        return self._team_patterns[key]


class _Task(Struct, frozen=True):
    """What the ops of a task last as nodes; which of them are on shared resources, and which others must be found."""

    durations_s: list[float]
    shared: Sequence[tuple[int, Activity]]
    found: Sequence[tuple[int, Activity]]

    @classmethod
    def of(cls, table: TaskTable, priced: PricedTask) -> "_Task":
        kinds = [(op, kind) for op, kind, _, _ in table.recipe]
        nodes = list(zip(range(len(kinds)), kinds, priced.activities, strict=True))
        return cls(
            [lasting_s(op, kind, activity) for _, (op, kind), activity in nodes],
            [(j, activity) for j, (_, kind), activity in nodes if kind is NodeKind.SHARED],
            [
                (j, activity) for j, (op, kind), activity in nodes
                if kind is NodeKind.MEMBER or isinstance(op, Send)
            ],
        )  # fmt: skip

    def put(self, node: int, graph: _Repricing) -> None:
        """Put a call's prices from its first node on. A receive that is a wire's node gets its own afterwards."""
        graph.durations_s[node : node + len(self.durations_s)] = self.durations_s
        for op, activity in self.shared:
            graph.shared[node + op] = activity
        graph.activities.update(_from(node, self.found))


def _from(node: int, activities: Sequence[tuple[int, Activity]]) -> Iterable[tuple[int, Activity]]:
    return ((node + op, activity) for op, activity in activities)
