"""Steps in which ranks have paces of their own: each section of the calls of each rank repeats with its own period.

A step with fewer micro-batches is compiled. Where an edge leaves a section whose last recurrences were left out, what
comes later waits longer: by as many periods as were left out, of the chain that it waits for. The run itself finds
these times as it goes. Then it is checked, edge by edge, that the whole step, with each chain's last
period repeated at its pace, is a solution of the equations "begins when the last of what it waits for has ended". A
graph without circles has one solution, so this is the run of all micro-batches. docs/design.md has the argument.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from sim.engine.compiling.graph import NOTHING, Graph, LeftOutPeriods, NodeKind
from sim.engine.running import rest_of_steps
from sim.engine.running.chains import (
    NONE,
    PERIODS_NEEDED,
    Chains,
    Edges,
    Flags,
    Ints,
    Paces,
    shared_users,
    sibling_edges,
    stay,
)
from sim.engine.running.loop import EventLoop
from sim.engine.running.period import EQUAL, Times
from sim.plan.facts.sections import Cut
from sim.plan.words.calls import NO_MICROBATCH
from sim.sorting import run_begins

PERIODS: Final = (1, 2, 3, 4, 6)
"""Recurrences that a period may have, if what is left out is a multiple of them."""

MULTIPLE: Final = 12


class Paced(Struct, frozen=True, eq=False):
    """A run that passes through the last period of each section once, for ``1 + times`` periods of the whole step.

    Calls from ``repeated[rank][k][0]`` to before ``repeated[rank][k][1]`` are of the period of section k: of several
    steps in a row those of the first, and as many calls later those of the others. By node of
    the graph without what was added: ``pace_s``, that of its chain, 0 where it is not of such a period; ``stretch`` as
    in ``Chains``. ``added``: nodes that stand for the periods that were left out, each with the node whose end they put
    off and the one a period before it; ``at_end``: two such nodes, where nothing waits for the first. ``earlier``: by
    node, the one a period before it; NONE: there is none. ``comes_back``: of several steps the second was seen in a
    state of the first.
    """

    times: int
    microbatches: int
    repeated: Mapping[int, Sequence[tuple[int, int]]]
    pace_s: Times
    stretch: Ints
    added: Mapping[int, tuple[int, int]]
    at_end: Sequence[tuple[int, int]]
    earlier: Ints
    comes_back: bool

    @property
    def longest_s(self) -> float:
        """Return the longest pace."""
        return float(self.pace_s.max(initial=0.0))

    def end_s(self, ends_s: Times) -> float:
        """Return when the whole step ends, from the ends of nodes."""
        return float(self.of_step_s(ends_s).max(initial=0.0))

    def of_step_s(self, ends_s: Times) -> Times:
        """Return when nodes end for the last time in the whole step, from their ends in the run."""
        last_s: Times = ends_s[: len(self.pace_s)] + self.times * self.pace_s
        return last_s

    def between_s(self, before: Ints, after: Ints) -> Times:
        """Return how long the periods take that were left out between nodes that follow each other on a stream."""
        left_out: Times = np.where(self.stretch[after] > self.stretch[before], self.times * self.pace_s[before], 0.0)
        return left_out

    def on_the_way_s(self, graph: Graph, starts_s: Times, ends_s: Times) -> Times:
        """Return for how long each message of the graph is put off by nodes that were added before its receive.

        It need not be one of the last period: what is sent ahead may be received several recurrences later.
        """
        sends, journeys, receives = graph.message_columns
        comes_from, put_off_s = np.full(len(starts_s), NONE), np.zeros(len(starts_s))
        comes_from[receives] = np.where(journeys == receives, sends, journeys)
        nodes = np.fromiter(self.added, np.int64, len(self.added))
        before = np.array([later for later, _ in self.added.values()], np.int64)
        after = np.array([graph.successors[node][0] for node in self.added], np.int64)
        of_message = comes_from[after] == before
        put_off_s[after[of_message]] = (ends_s - starts_s)[nodes[of_message]]
        of_messages_s: Times = put_off_s[receives]
        return of_messages_s


class _Attempt(Struct, frozen=True, eq=False):
    """Short steps in a row with ``times`` periods left out of each section, of so many recurrences each."""

    chains: Chains
    edges: Edges
    num_steps: int
    period: int
    times: int
    siblings: Flags
    """Edges that lead, a period earlier or later, between the same two chains as well."""
    delayed: Flags
    """Edges of which the later node waits for a node that is among those left out."""

    @property
    def delays(self) -> tuple[Ints, Ints]:
        """Return the ends of the edges that are delayed."""
        return self.edges.before[self.delayed], self.edges.after[self.delayed]

    @property
    def earlier(self) -> Ints:
        """Return, for each of these that begins one, the node a period before it; itself where there is none."""
        before, _ = self.delays
        earlier = self.chains.earlier(self.period)[before]
        return np.where(earlier == NONE, before, earlier)

    def rest(self, loop: EventLoop) -> "rest_of_steps.RestOfSteps":
        """Return what is left of the run of the graph with delays when it pauses."""
        before, _ = self.delays
        return rest_of_steps.RestOfSteps(
            self.chains, loop, self.num_steps, before, self.earlier, self.times, self.period
        )


def paced_run(
    graph: Graph, cuts: Mapping[int, Cut], left_out: int, num_steps: int
) -> tuple[Graph, EventLoop, Paced] | None:
    """Return the run of a short step as that of the whole one; None where it cannot be shown that it is.

    ``left_out``: how many recurrences of every section. ``num_steps``: how many equal steps with sections the programs
    of the cuts hold.
    """
    chains, edges = Chains(graph, cuts), Edges.of(graph)
    period = PERIODS[0]
    while all(len(rows) >= PERIODS_NEEDED * period for rows in chains.rows):
        siblings = sibling_edges(edges, chains.earlier(period))
        delayed = _delayed(chains, edges, siblings)
        attempt = _Attempt(chains, edges, num_steps, period, left_out // period, siblings, delayed)
        longer, added = _with_delays(attempt)
        loop = EventLoop(longer, edges.of_longer(delayed, np.arange(added.start, added.stop)))
        rest = attempt.rest(loop)
        comes_back = loop.run(rest.pauses, rest.is_known)
        if min(loop.ends_s, default=0.0) < 0.0:
            return None
        periods = [more for more in PERIODS if more >= period and left_out % more == 0]
        found = next((paces for paces in _paces(chains, loop, periods) if paces.holds_first), None)
        if found is None:
            return None
        if found.period == period:
            return _checked(attempt, found, longer, loop, added, comes_back=comes_back)
        period = found.period
    return None


def _paces(chains: Chains, loop: EventLoop, periods: Sequence[int]) -> Iterator[Paces]:
    """Yield the paces of a run by the recurrences of a period, as far as it is long enough for them."""
    found = (Paces.of(chains, loop, period) for period in periods)
    yield from (paces for paces in found if paces is not None)


def _checked(
    attempt: _Attempt, paces: Paces, graph: Graph, loop: EventLoop, added: range, *, comes_back: bool
) -> tuple[Graph, EventLoop, Paced] | None:
    """Return the run of a graph with delays ``added``, if it is that of the whole step."""
    chains, (before, _) = attempt.chains, attempt.delays
    if not (paces.holds and _is_whole(attempt, paces, loop) and _share_apart(attempt, paces, loop)):
        return None
    section = next(iter(chains.cuts.values())).sections[0]
    repeated = {
        rank: [
            (found.stop - attempt.period * found.num_calls, found.stop)
            for found in cut.sections[: len(cut.sections) // attempt.num_steps]
        ]
        for rank, cut in chains.cuts.items()
    }
    pairs = {node: (int(u), int(paces.earlier[u])) for node, u in zip(added, before.tolist(), strict=True)}
    microbatches = attempt.period * abs(section.microbatches)
    last = np.flatnonzero(paces.is_last)
    at_end = [(u, int(paces.earlier[u])) for u in last.tolist() if not graph.successors[u]]
    pace_s = np.where(paces.is_last, paces.pace_s, 0.0)
    found = Paced(
        attempt.times, microbatches, repeated, pace_s, chains.stretch, pairs, at_end, paces.earlier, comes_back
    )
    return graph, loop, found


def _delayed(chains: Chains, edges: Edges, siblings: Flags) -> Flags:
    """Return which edges lead from a section to what comes after it: such an op waits for what was left out.

    Ops of one micro-batch that both count from the begin, or both from the end, wait for each other in the whole step
    too. Where a later section goes through micro-batches in the same order, its ops wait for those of the same
    recurrence before, and so for none of what was left out.
    """
    u, v = edges.before, edges.after
    later = (chains.section[u] >= 0) & (chains.stretch[v] > chains.stretch[u]) & ~edges.inside
    same_order = (chains.section[v] >= 0) & (chains.sign[u] == chains.sign[v])
    same_call = (chains.microbatch[u] == chains.microbatch[v]) & (chains.is_moved[u] == chains.is_moved[v])
    same_call &= chains.microbatch[u] != NO_MICROBATCH
    found: Flags = later & ~same_call & ~(same_order & siblings)
    return found


def _with_delays(attempt: _Attempt) -> tuple[Graph, range]:
    """Return the graph with a node on every edge that is delayed, and these nodes."""
    graph = attempt.chains.graph
    size, (before, after) = len(graph.kinds), attempt.delays
    successors = list(graph.successors)
    for node, (u, v) in enumerate(zip(before.tolist(), after.tolist(), strict=True), start=size):
        if successors[u] is graph.successors[u]:
            successors[u] = list(successors[u])
        successors[u][successors[u].index(v)] = node
        successors.append([v])
    count, added = len(before), range(size, size + len(before))
    pairs = zip(before.tolist(), attempt.earlier.tolist(), strict=True)
    longer = graph.with_nodes(
        kinds=[*graph.kinds, *[int(NodeKind.LEFT_OUT)] * count],
        shared=[*graph.shared, *[NOTHING] * count],
        waits=[*graph.waits, *[1] * count],
        successors=successors,
        durations_s=[*graph.durations_s, *[0.0] * count],
        left_out=LeftOutPeriods(attempt.times, dict(zip(added, pairs, strict=True))),
    )
    return longer, added


def _is_whole(attempt: _Attempt, paces: Paces, loop: EventLoop) -> bool:
    """Return whether the whole step, as the short run and its paces state it, obeys every edge."""
    chains, u, v = attempt.chains, attempt.edges.before, attempt.edges.after
    too_late = (chains.section[v] >= 0) & (chains.stretch[u] > chains.stretch[v])
    rounding_s = attempt.times * EQUAL * paces.pace_s.max(initial=0.0)
    known = _known_where_delayed(attempt, paces, loop, rounding_s)
    return known and not too_late.any() and _obeys_where_repeated(attempt, paces, loop, rounding_s)


def _known_where_delayed(attempt: _Attempt, paces: Paces, loop: EventLoop, rounding_s: float) -> bool:
    """Return whether the pace is known of each node whose delayed edge decides when another one begins."""
    (u, v), (starts_s, ends_s), size = attempt.delays, loop.times_s, len(attempt.chains.section)
    added_s = np.maximum(attempt.times * paces.pace_s[u], (ends_s - starts_s)[size:])
    decides = starts_s[v] - ends_s[u] - added_s <= rounding_s
    return bool(paces.is_steady[u[decides]].all())


def _obeys_where_repeated(attempt: _Attempt, paces: Paces, loop: EventLoop, rounding_s: float) -> bool:
    """Return whether the nodes of last periods, over and over again, obey the edges that lead to them."""
    repeated = np.flatnonzero(paces.is_last[attempt.edges.after])
    u, v, inside = attempt.edges.before[repeated], attempt.edges.after[repeated], attempt.edges.inside[repeated]
    (starts_s, ends_s), times, in_section = loop.times_s, attempt.times, attempt.chains.section[u] >= 0
    slack_s, more_s = starts_s[v] - ends_s[u], times * (paces.pace_s[v] - paces.pace_s[u])
    moves = in_section & attempt.siblings[repeated] & paces.is_steady[u]
    keeps = np.where(inside, more_s, slack_s + np.minimum(more_s, 0.0)) >= -rounding_s
    is_over = in_section & (paces.last_end_s[u] + times * paces.pace_s[u] <= starts_s[v] + rounding_s) & ~inside
    others = ~((moves & keeps) | is_over)
    return not (others & in_section).any() and stay(attempt.edges, repeated[others], paces.earlier)


def _users(graph: Graph) -> Sequence[Ints]:
    """Return the nodes that share a resource, for every resource of more than one; alike resources once."""
    users: dict[object, list[Ints]] = {}
    for nodes, resources in shared_users(graph):
        for resource in resources:
            users.setdefault(resource, []).append(nodes)
    found = [np.sort(np.concatenate(parts)) for parts in users.values()]
    return list({nodes.tobytes(): nodes for nodes in found if len(nodes) > 1}.values())


def _share_apart(attempt: _Attempt, paces: Paces, loop: EventLoop) -> bool:
    """Return whether all ops that share a resource repeat at one pace, and no other op uses it meanwhile."""
    return all(_apart(nodes, attempt, paces, *loop.times_s) for nodes in _users(attempt.chains.graph))


def _apart(nodes: Ints, attempt: _Attempt, paces: Paces, starts_s: Times, ends_s: Times) -> bool:
    """Return the same of the users of one resource."""
    section, starts_s, ends_s = attempt.chains.section[nodes], starts_s[nodes], ends_s[nodes]
    last = np.flatnonzero(paces.is_last[nodes])
    last = last[np.argsort(section[last], kind="stable")]
    first = np.flatnonzero(run_begins(section[last]))  # of each section's last period
    if not len(last):
        return True
    paces_s = paces.pace_s[nodes[last]]
    longest_s, shortest_s = np.maximum.reduceat(paces_s, first), np.minimum.reduceat(paces_s, first)
    if (longest_s - shortest_s > EQUAL * longest_s).any():
        return False
    later_s, slack_s = attempt.times * longest_s, attempt.times * EQUAL * longest_s
    from_s = np.minimum.reduceat(starts_s[last], first) + slack_s
    until_s = np.maximum.reduceat(ends_s[last], first) + later_s - slack_s
    near = (section != section[last[first], None]) & (ends_s > from_s[:, None]) & (starts_s < until_s[:, None])
    periods = np.split(last, first[1:])
    for place in np.flatnonzero(near.any(axis=1)).tolist():
        begins_s = starts_s[periods[place]] + later_s[place] + slack_s[place]  # of the last of all periods
        finishes_s = ends_s[periods[place]] + later_s[place] - slack_s[place]
        near_starts_s, near_ends_s = starts_s[near[place], None], ends_s[near[place], None]
        if (near_starts_s < until_s[place] - longest_s[place]).any():
            return False
        if ((near_ends_s > begins_s) & (near_starts_s < finishes_s)).any():
            return False
    return True
