"""The nodes of a compiled step, by the recurrences of the calls that they belong to.

Nodes that are the same in every recurrence are a chain. Where the state of a run comes back, each chain has a pace: by
how much later its node in one period is than that in the period before.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.graph import SENT, Graph, NodeKind
from sim.engine.running.loop import EventLoop
from sim.engine.running.period import EQUAL, Times
from sim.plan.facts.sections import Cut, Section
from sim.plan.words.calls import NO_MICROBATCH

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NONE = -1


class Edges(Struct, frozen=True, eq=False):
    """What waits for what; ``inside``: an exit of a block for an entry, which lets it go some time later."""

    before: Ints
    after: Ints
    inside: Flags

    @classmethod
    def of(cls, graph: Graph) -> "Edges":
        """Return the edges of a graph, and those that its blocks stand for."""
        counts = np.fromiter(map(len, graph.successors), np.int64, len(graph.successors))
        after = np.fromiter(chain.from_iterable(graph.successors), np.int64, int(counts.sum()))
        before = np.repeat(np.arange(len(counts)), counts)
        lets_go = [(entry, block) for entry, (block, _) in graph.entries.items()]
        exits = [(block, node) for block, found in graph.blocks.items() for node in found.exits.values()]
        exits += [(entry, node) for entry, (block, _) in graph.entries.items()
                  for node in graph.blocks[block].exits.values()]  # fmt: skip
        more = np.array([*lets_go, *exits], dtype=np.int64).reshape(-1, 2)
        inside = np.arange(len(before) + len(more)) >= len(before) + len(lets_go)
        return cls(np.append(before, more[:, 0]), np.append(after, more[:, 1]), inside)


class Chains:
    """The chains of a step with the programs ``cuts``, by simulated rank.

    Per node: ``section`` (its number on its rank, NONE outside), ``stretch`` (twice that number inside, one more after
    it), ``sign`` (of the micro-batches by which its section moves on), ``microbatch`` (NO_MICROBATCH: none), and
    ``is_moved`` (it counts from the end). ``rows``: per section of a rank, the nodes of
    each recurrence (recurrences x nodes), of the last so many that have equally many of the same kinds; ``early``: the
    nodes of those before.
    """

    def __init__(self, graph: Graph, cuts: Mapping[int, Cut]) -> None:
        self.graph, self.cuts = graph, cuts
        self.rows: list[Ints] = []
        self.early: list[Ints] = []
        size = len(graph.kinds)
        self.section, self.stretch, self.sign = (np.full(size, fill) for fill in (NONE, NONE, 0))
        unit_of = self._unit_of()
        self.microbatch, self.is_moved = self._numbers(unit_of)
        order = np.argsort(unit_of, kind="stable")
        first = np.searchsorted(unit_of[order], np.arange(len(self.graph.units) + 1))
        places: dict[int, dict[int, int]] = {}
        for place, (rank, call, _, _) in enumerate(self.graph.units):
            places.setdefault(rank, {})[call] = place
        kinds = np.array(self.graph.kinds)
        for rank, cut in self.cuts.items():
            nodes_of = [order[first[at] : first[at + 1]] for _, at in sorted(places[rank].items())]
            for number, section in enumerate(cut.sections):
                for nodes in nodes_of[section.stop :]:
                    self.stretch[nodes] = 2 * number + 1
                self._add_section(number, section, nodes_of, kinds)

    def _add_section(self, number: int, section: Section, nodes_of: Sequence[Ints], kinds: Ints) -> None:
        calls = [nodes_of[section.first + k * section.num_calls :][: section.num_calls]
                 for k in range(section.num_times)]  # fmt: skip
        shapes = [[kinds[nodes].tolist() for nodes in row] for row in calls]
        alike = next((k for k, shape in enumerate(reversed(shapes)) if shape != shapes[-1]), len(shapes))
        every = [np.concatenate(row) for row in calls]
        for nodes in every:
            self.section[nodes], self.stretch[nodes] = number, 2 * number
            self.sign[nodes] = np.sign(section.microbatches)
        self.rows.append(np.stack(every[len(every) - alike :]))
        self.early.append(np.concatenate([*every[: len(every) - alike], np.empty(0, np.int64)]))

    def _numbers(self, unit_of: Ints) -> tuple[Ints, Flags]:
        """Return the micro-batch of each node, and whether it counts from the end."""
        calls = [(self.cuts[rank].program.calls[call], self.cuts[rank].is_moved[call])
                 for rank, call, _, _ in self.graph.units]  # fmt: skip
        numbers = [NO_MICROBATCH if call.microbatch is None else call.microbatch for call, _ in calls]
        microbatches = np.array([*numbers, NO_MICROBATCH])  # the last is that of nodes of no call
        return microbatches[unit_of], np.array([*(late for _, late in calls), False])[unit_of]

    def _unit_of(self) -> Ints:
        """Return the place of the call that each node belongs to; NONE for those that belong to none."""
        graph, of = self.graph, [NONE] * len(self.graph.kinds)
        for place, (rank, call, node, pattern) in enumerate(graph.units):
            if pattern is SENT:
                continue
            program = self.cuts[rank].program
            size = 1 if pattern is not None else len(program.tasks[program.calls[call].task].ops)
            of[node : node + size] = [place] * size
        for block, found in graph.blocks.items():
            for node in found.exits.values():
                of[node] = of[block]
        for entry, (block, _) in graph.entries.items():
            of[entry] = of[block]
        for path, (block, _, _) in graph.early_exits.items():
            of[path] = of[block]
            for node in graph.successors[path]:
                of[node] = of[block] if of[node] == NONE else of[node]
        for send, journey, _ in graph.messages:
            of[journey] = of[send] if of[journey] == NONE else of[journey]
        return np.array(of, dtype=np.int64)


class Paces(Struct, frozen=True, eq=False):
    """The paces of the chains of a finished run, where a period has some recurrences; per node.

    ``pace_s``: of its chain; of a node of no chain in a section the largest there, 0 outside. ``last_end_s``: when the
    last of its chain ends. ``earlier``: the node a period before, NONE: there is none. ``is_last``: of the last period.
    ``is_steady``: it and all later ones of its chain, and those a period before, are a pace apart. ``holds``: all
    chains are steady for two periods; ``holds_first``: those of the first sections.
    """

    pace_s: Times
    last_end_s: Times
    earlier: Ints
    is_last: Flags
    is_steady: Flags
    holds: bool
    holds_first: bool

    @classmethod
    def of(cls, chains: Chains, loop: EventLoop, period: int) -> "Paces | None":
        """Return the paces of a run; None where some section is too short."""
        if any(len(rows) < 3 * period for rows in chains.rows):
            return None
        size = len(chains.section)
        starts_s, ends_s = np.array(loop.starts_s)[:size], np.array(loop.ends_s)[:size]
        starts_s = np.where(np.array(chains.graph.kinds) == NodeKind.EXIT, ends_s, starts_s)
        pace_s, last_end_s = np.zeros(size), ends_s.copy()
        earlier, is_last, is_steady = np.full(size, NONE), np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        holds = holds_first = True
        for rows, early in zip(chains.rows, chains.early, strict=True):
            last, before = rows[-period:], rows[-2 * period : -period]
            paces_s = ends_s[last] - ends_s[before]
            turn = (np.arange(len(rows)) - len(rows)) % period
            pace_s[rows], last_end_s[rows] = paces_s[turn], ends_s[last][turn]
            pace_s[early], last_end_s[early] = paces_s.max(initial=0.0), ends_s[last].max(initial=0.0)
            earlier[rows[period:]] = rows[:-period]
            is_last[last] = True
            off_s = [
                times[rows[period:]] - times[rows[:-period]] - pace_s[rows[period:]] for times in (starts_s, ends_s)
            ]
            even = np.maximum(*np.abs(off_s)) <= EQUAL * paces_s.max(initial=0.0)
            even = np.logical_and.accumulate(even[::-1])[::-1]
            is_steady[rows[period:]] = even
            is_even = bool(even[-2 * period :].all())
            holds = holds and is_even
            holds_first = holds_first and (is_even or chains.section[rows[0, 0]] > 0)
        return cls(pace_s, last_end_s, earlier, is_last, is_steady, holds, holds_first)


def sibling_edges(edges: Edges, earlier: Ints) -> Flags:
    """Return which edges lead, a period earlier or later, between the same two chains as well."""
    size = len(earlier)
    keys = edges.before * size + edges.after
    both = (earlier[edges.before] != NONE) & (earlier[edges.after] != NONE)
    shifted = np.where(both, earlier[edges.before] * size + earlier[edges.after], NONE)
    has_earlier = both & np.isin(shifted, keys)
    found: Flags = has_earlier | np.isin(keys, shifted[has_earlier])
    return found


def stays(edges: Edges, earlier: Ints) -> Flags:
    """Return which edges come from a node that the same op a period earlier waits for as well."""
    size = len(earlier)
    known = earlier[edges.after] != NONE
    found: Flags = known & np.isin(edges.before * size + earlier[edges.after], edges.before * size + edges.after)
    return found


def shared_users(graph: Graph) -> Iterator[tuple[int, Sequence[object]]]:
    """Yield the nodes whose ops share resources, of a collective its first member, and the resources that each uses."""
    for node, activity in enumerate(graph.shared):
        if graph.kinds[node] == NodeKind.SHARED:
            yield node, [resource for resource, _ in activity.demands]
    for joint in graph.joints:
        if joint.shared:
            yield joint.members[0], [resource for resource, _ in joint.activity.demands]
