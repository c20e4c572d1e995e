"""The nodes of a compiled step, by the recurrences of the calls that they belong to.

Nodes that are the same in every recurrence are a chain. Where the state of a run comes back, each chain has a pace: by
how much later its node in one period is than that in the period before.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.graph import SENT, Graph, NodeKind
from sim.engine.running.loop import EventLoop
from sim.engine.running.period import EQUAL, Times
from sim.engine.running.rows import edges
from sim.plan.facts.sections import Cut, Section
from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.plan.words.program import Program
from sim.sorting import distinct_values, run_begins

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NONE = -1

PERIODS_NEEDED: Final = 3
"""Periods that a section has at least in a run that shows its paces."""


class Edges(Struct, frozen=True, eq=False):
    """What waits for what; ``inside``: an exit of a block for an entry, which lets it go some time later.

    First come those of the graph's successors, of which node n has ``counts[n]``.
    """

    before: Ints
    after: Ints
    inside: Flags
    counts: Ints

    @classmethod
    def of(cls, graph: Graph) -> "Edges":
        """Return the edges of a graph, and those that its blocks stand for."""
        counts, after = edges(graph)
        before = np.repeat(np.arange(len(counts)), counts)
        lets_go = [(entry, block) for entry, (block, _) in graph.entries.items()]
        exits = [(block, node) for block, found in graph.blocks.items() for node in found.exits.values()]
        exits += [(entry, node) for entry, (block, _) in graph.entries.items()
                  for node in graph.blocks[block].exits.values()]  # fmt: skip
        more = np.array([*lets_go, *exits], dtype=np.int64).reshape(-1, 2)
        inside = np.arange(len(before) + len(more)) >= len(before) + len(lets_go)
        return cls(np.append(before, more[:, 0]), np.append(after, more[:, 1]), inside, counts)

    def of_longer(self, delayed: Flags, added: Ints) -> tuple[Ints, Ints]:
        """Return the edges, as the event loop takes them, of the graph with the ``added`` nodes on delayed ones."""
        after = self.after[: self.counts.sum()].copy()
        after[delayed[: len(after)]] = added
        return np.append(self.counts, np.ones_like(added)), np.append(after, self.after[delayed])


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
        self._earlier: dict[int, Ints] = {}
        call_of = calls_of_nodes(graph, [cut.program for cut in cuts.values()])
        starts = np.cumsum([0, *(len(cut.program.calls) for cut in cuts.values())])
        nodes, kinds = np.argsort(call_of, kind="stable"), graph.kinds_of_nodes
        first = np.searchsorted(call_of[nodes], np.arange(starts[-1] + 1))
        self._call_of, self._nodes, self._first = call_of, nodes, first
        columns = np.tile([[NONE], [NONE], [0], [NO_MICROBATCH], [False]], starts[-1] + 1)
        for begins, cut in _with_equal_calls(starts, list(cuts.values())):
            columns[:, begins[:, None] + np.arange(len(cut.program.calls))] = _of_calls(cut)[:, None]
            for section in cut.sections:
                bounds = first[begins[:, None] + np.arange(section.first, section.stop + 1)]
                self._add_section(nodes, bounds, section.num_times, kinds)
        self.section, self.stretch, self.sign, self.microbatch, self.is_moved = columns[:, call_of]

    def earlier(self, period: int) -> Ints:
        """Return per node the one of its chain so many recurrences before it; NONE: there is none."""
        if period not in self._earlier:
            found = self._earlier[period] = np.full(len(self.graph.kinds), NONE)
            for rows in self.rows:
                found[rows[period:]] = rows[:-period]
        return self._earlier[period]

    def in_step_before(self, num_steps: int, period: int) -> tuple[Ints, Ints, Ints]:
        """Return per node its step, the same node of the step before, and how many periods earlier that one is.

        NONE: it is of no step; the same node is not known, or there is none. A step that is only begun, after
        ``num_steps`` with sections, goes on in its first section where they have left out recurrences. Calls may differ
        in what waits for them: then their own nodes are known.
        """
        step, before, passes = _calls_before(list(self.cuts.values()), num_steps, period)
        found, first, units = np.full(len(self._nodes), NONE), self._first, self.graph.unit_columns.nodes
        calls = np.flatnonzero(before != NONE)
        found[units[calls]] = units[before[calls]]
        num_nodes, call = np.diff(first, append=len(self._nodes)), self._call_of[self._nodes]
        has_same = (before != NONE) & (num_nodes[before] == num_nodes)
        places = np.flatnonzero(has_same[call])
        calls = call[places]
        found[self._nodes[places]] = self._nodes[places - first[calls] + first[before[calls]]]
        found[self._are_unlike(found)] = NONE
        return step[self._call_of], found, passes[self._call_of]

    def _are_unlike(self, others: Ints) -> Flags:
        """Return which nodes differ from others in kind. One may be a block that one entry lets go, the other not."""
        graph, kinds = self.graph, self.graph.kinds_of_nodes
        is_like, released = kinds == kinds[others], kinds == NodeKind.FIXED
        released[[node for node, block in graph.blocks.items() if len(block.pattern.entries) == 1]] = True
        for node in np.flatnonzero(~is_like & released & released[others]).tolist():
            is_like[node] = graph.durations_s[node] == graph.durations_s[others[node]]
        found: Flags = ~is_like
        return found

    def _add_section(self, nodes: Ints, bounds: Ints, num_times: int, kinds: NDArray[np.uint8]) -> None:
        """Add a section of ranks; the nodes of its call k on rank r are ``nodes[bounds[r, k] : bounds[r, k + 1]]``."""
        num_nodes = np.diff(bounds)
        for ranks in _equal_rows(num_nodes):
            sizes = num_nodes[ranks[0]].reshape(num_times, -1)
            inside = nodes[bounds[ranks, :1] + np.arange(sizes.sum())]
            alike = int(_num_like_last(sizes))
            rows = inside[:, len(inside[0]) - alike * sizes[-1].sum() :].reshape(len(ranks), alike, -1)
            num_alike = _num_like_last(kinds[rows])
            for number in distinct_values(num_alike).tolist():
                mine = num_alike == number
                self.rows.append(rows[mine, alike - number :].swapaxes(0, 1))
                self.early.append(inside[mine, : len(inside[0]) - number * rows.shape[2]])


def _calls_before(cuts: Sequence[Cut], num_steps: int, period: int) -> tuple[Ints, Ints, Ints]:
    """Return the step of each call of all ranks, the same call of the step before, and ``in_step_before``'s periods.

    After the calls comes what is said of nodes of none.
    """
    step, before, passes = np.full((3, sum(len(cut.is_moved) for cut in cuts) + 1), NONE)
    begin = 0
    for cut in cuts:
        num_calls, first = len(cut.is_moved), cut.sections[0]
        size = cut.sections[len(cut.sections) // num_steps].first - first.first
        own = np.arange(num_calls)
        later = np.maximum(own - num_steps * size - first.stop, -1)  # calls after what a step with sections has there
        passed = later // (period * first.num_calls) + 1
        step[begin : begin + num_calls], passes[begin : begin + num_calls] = own // size, passed
        before[begin + size : begin + num_calls] = begin + (own - size - passed * period * first.num_calls)[size:]
        begin += num_calls
    return step, before, passes


def _with_equal_calls(starts: Ints, cuts: Sequence[Cut]) -> Iterator[tuple[Ints, Cut]]:
    """Yield where the calls of ranks begin that have equal ones and equal sections, and the cut of one of them."""
    alike: dict[tuple[int, tuple[Section, ...]], list[int]] = {}
    for rank, cut in enumerate(cuts):
        alike.setdefault((id(cut.program.calls), cut.sections), []).append(rank)
    yield from ((starts[ranks], cuts[ranks[0]]) for ranks in alike.values())


def _of_calls(cut: Cut) -> Ints:
    """Return section, stretch, sign, micro-batch and whether it is moved, of each call of a program: see ``Chains``."""
    microbatches = Calls.of(cut.program.calls).microbatches
    sections, stretches, signs = (np.full(len(microbatches), fill) for fill in (NONE, NONE, 0))
    for number, section in enumerate(cut.sections):
        inside = slice(section.first, section.stop)
        sections[inside], stretches[inside], signs[inside] = number, 2 * number, np.sign(section.microbatches)
        stretches[section.stop :] = 2 * number + 1
    return np.stack([sections, stretches, signs, microbatches, np.array(cut.is_moved, np.int64)])


def _equal_rows(matrix: Ints) -> list[list[int]]:
    """Return the places of equal rows of a matrix."""
    alike: dict[bytes, list[int]] = {}
    for place, row in enumerate(matrix):
        alike.setdefault(row.tobytes(), []).append(place)
    return list(alike.values())


def calls_of_nodes(graph: Graph, programs: Iterable[Program]) -> Ints:
    """Return the call that each node belongs to, counted over all ranks; NONE for those that belong to none.

    ``programs``: those of the simulated ranks, in their order.
    """
    of = np.full(len(graph.kinds), NONE)
    num_ops = list[Ints]()
    for program in programs:
        calls = Calls.of(program.calls)
        of_names = [len(program.tasks[name].ops) if name in program.tasks else 0 for name in calls.names]
        num_ops.append(np.array(of_names, np.int64)[calls.tasks])
    units = graph.unit_columns
    sizes = np.where(units.numbers == id(None), np.concatenate(num_ops), 1)
    sizes[units.numbers == id(SENT)] = 0
    places_in_call = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    of[np.repeat(units.nodes, sizes) + places_in_call] = np.repeat(np.arange(len(sizes)), sizes)
    exits = [(node, block) for block, found in graph.blocks.items() for node in found.exits.values()]
    entries = [(entry, block) for entry, (block, _) in graph.entries.items()]
    paths = [(path, block) for path, (block, _, _) in graph.early_exits.items()]
    for pairs in (exits, entries, paths):
        nodes, blocks = _columns(pairs)
        of[nodes] = of[blocks]
    after = [(node, block) for path, block in paths for node in graph.successors[path]]
    sends, journeys, _ = graph.message_columns
    for nodes, owners in (_columns(after[::-1]), (journeys, sends)):
        is_free = of[nodes] == NONE
        of[nodes[is_free]] = of[owners[is_free]]
    return of


def _num_like_last(matrices: Ints | NDArray[np.uint8]) -> Ints:
    """Return how many rows at the end of each matrix, or of one, are equal."""
    unlike = (matrices != matrices[..., -1:, :]).any(axis=-1)
    num_like: Ints = (~np.logical_or.accumulate(unlike[..., ::-1], axis=-1)).sum(axis=-1)
    return num_like


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Return the first and the second ones of some pairs."""
    firsts, seconds = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return firsts, seconds


class Paces(Struct, frozen=True, eq=False):
    """The paces of the chains of a finished run, where a period has ``period`` recurrences; per node.

    ``pace_s``: of its chain; of a node of no chain in a section the largest there, 0 outside. ``last_end_s``: when the
    last of its chain ends. ``earlier``: the node a period before, NONE: there is none. ``is_last``: of the last period.
    ``is_steady``: it and all later ones of its chain, and those a period before, are a pace apart. ``holds``: all
    chains are steady for two periods; ``holds_first``: those of the first sections.
    """

    period: int
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
        if any(len(rows) < PERIODS_NEEDED * period for rows in chains.rows):
            return None
        size = len(chains.section)
        starts_s, ends_s = (times[:size] for times in loop.times_s)
        starts_s = np.where(chains.graph.kinds_of_nodes == NodeKind.EXIT, ends_s, starts_s)
        pace_s, last_end_s = np.zeros(size), ends_s.copy()
        is_last, is_steady = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        holds = holds_first = True
        for rows, early in zip(chains.rows, chains.early, strict=True):
            last, before = rows[-period:], rows[-2 * period : -period]
            paces_s = ends_s[last] - ends_s[before]
            turn = (np.arange(len(rows)) - len(rows)) % period
            pace_s[rows], last_end_s[rows] = paces_s[turn], ends_s[last][turn]
            longest_s, over_s = (
                of_ranks.max(axis=(0, 2), initial=0.0)[:, None] for of_ranks in (paces_s, ends_s[last])
            )
            pace_s[early], last_end_s[early] = longest_s, over_s
            is_last[last] = True
            off_s = [
                times[rows[period:]] - times[rows[:-period]] - pace_s[rows[period:]] for times in (starts_s, ends_s)
            ]
            even = np.maximum(*np.abs(off_s)) <= EQUAL * longest_s
            even = np.logical_and.accumulate(even[::-1])[::-1]
            is_steady[rows[period:]] = even
            is_even = bool(even[-2 * period :].all())
            holds = holds and is_even
            holds_first = holds_first and (is_even or chains.section[rows[0, 0, 0]] > 0)
        return cls(period, pace_s, last_end_s, chains.earlier(period), is_last, is_steady, holds, holds_first)


def sibling_edges(edges: Edges, earlier: Ints) -> Flags:
    """Return which edges lead, a period earlier or later, between the same two chains as well."""
    size = len(earlier)
    keys = edges.before * size + edges.after
    both = (earlier[edges.before] != NONE) & (earlier[edges.after] != NONE)
    shifted = np.where(both, earlier[edges.before] * size + earlier[edges.after], NONE)
    has_earlier = both & _are_among(shifted, np.sort(keys, kind="stable"))
    found: Flags = has_earlier | _are_among(keys, np.sort(shifted[has_earlier], kind="stable"))
    return found


def stay(edges: Edges, places: Ints, earlier: Ints) -> bool:
    """Return whether the edges at some places come from nodes that the same op a period earlier waits for as well."""
    if not len(places):
        return True
    size, after = len(earlier), earlier[edges.after[places]]
    keys = np.sort(edges.before * size + edges.after, kind="stable")
    return bool(((after != NONE) & _are_among(edges.before[places] * size + after, keys)).all())


def _are_among(wanted: Ints, in_order: Ints) -> Flags:
    """Return which numbers are among others, which are sorted: sooner than ``np.isin`` where both are many."""
    if not len(in_order):
        return np.zeros(len(wanted), np.bool_)
    found: Flags = in_order[np.minimum(in_order.searchsorted(wanted), len(in_order) - 1)] == wanted
    return found


def shared_users(graph: Graph) -> Iterator[tuple[Ints, Sequence[object]]]:
    """Yield nodes whose ops share the same resources, of a collective its first member, and the resources."""
    nodes = np.flatnonzero(graph.kinds_of_nodes == NodeKind.SHARED)
    numbers = np.fromiter(map(id, map(graph.shared.__getitem__, nodes.tolist())), np.int64, len(nodes))
    order = np.argsort(numbers, kind="stable")
    begins = np.flatnonzero(run_begins(numbers[order]))
    for users in np.split(nodes[order], begins[1:]) if len(nodes) else ():
        yield users, [resource for resource, _ in graph.shared[users[0]].demands]
    for joint in graph.joints:
        if joint.shared:
            yield np.array(joint.members[:1]), [resource for resource, _ in joint.activity.demands]
