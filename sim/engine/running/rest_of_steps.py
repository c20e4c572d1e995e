"""The rest of several steps in a row, once the second has come to a state in which the first was, a step before.

From equal states follow equal futures: what is left of the second step, and the third, comes as much later than in the
step before. docs/design.md has the argument.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from msgspec import Struct

from sim.engine.compiling.graph import Graph, NodeKind
from sim.engine.running.chains import NONE, Chains, Ints
from sim.engine.running.loop import EventLoop
from sim.engine.running.period import EQUAL, Times
from sim.sorting import in_ranges, sorted_order

_NO_NODES = np.zeros(0, np.int64)


class RestOfSteps(Struct, dict=True, eq=False):
    """What is left of a run of steps in a row when it pauses. ``num_steps``: how many of them have sections.

    ``loop``: of the graph of ``chains`` with nodes added. Each of these puts off the end of one of ``before`` by
    ``times`` periods, of so many recurrences, which end as long after each other as this one and the one of
    ``earlier``.
    """

    chains: Chains
    loop: EventLoop
    num_steps: int
    before: Ints
    earlier: Ints
    times: int
    period: int

    @property
    def pauses(self) -> Iterator[list[int]]:
        """Yield, for each section of the second step, the nodes that put off what comes after it."""
        if self.num_steps == 1 or not len(self._steps.first):
            return
        sections = self.chains.section[self.before]
        num_sections = (int(self.chains.section.max(initial=NONE)) + 1) // self.num_steps
        for number in range(num_sections, 2 * num_sections):
            yield (len(self.chains.section) + np.flatnonzero(sections == number)).tolist()

    @cached_property
    def _steps(self) -> "_Steps":
        found = self.chains.in_step_before(self.num_steps, self.period)
        steps = _Steps.of(self.chains.graph, *found)
        has_pace = (steps.passes <= self.times) & (self._earlier[steps.before_third] != NONE)
        return steps if (has_pace | (steps.passes == 0)).all() else _Steps()

    @property
    def _earlier(self) -> Ints:
        """Return per node the one of its chain a period before."""
        return self.chains.earlier(self.period)

    def is_known(self) -> bool:
        """Return whether the second step is in a state of the first; if so, all times to come are noted."""
        state = _State.of(self.loop, self.chains.graph, self._steps)
        is_known = self._is_alone(state) and state.was_that_of_first and self._remembers(state)
        if is_known:
            self._note(state)
        return is_known

    def _is_alone(self, state: "_State") -> bool:
        """Return whether nothing of the third step has begun, nor of the second a step earlier."""
        step = self._steps.step
        starts_s = state.starts_s[: len(step)]
        has_begun = starts_s >= 0.0
        begin_s = starts_s[has_begun & (step == 1)].min(initial=np.inf)
        return bool(begin_s > state.until_s - state.length_s and not has_begun[step == 2].any())

    def _remembers(self, state: "_State") -> bool:
        """Return whether ends that later nodes count from are those of the first step.

        They are those of the last two periods before a delay, and of entries whose blocks have not begun. What was put
        off in the first step must be over.
        """
        steps, entries = self._steps, self.chains.graph.entries
        off_s = np.where(steps.step == 1, np.inf, 0.0)
        off_s[steps.second] = state.off_s
        waiting = [entry for entry, (block, _) in entries.items() if state.starts_s[block] < 0.0]
        of_second, of_first = (steps.step[self.before] == number for number in (1, 0))
        before_s, earlier_s = off_s[self.before[of_second]], off_s[self.earlier[of_second]]
        of_delays_s = before_s + self.times * (before_s + earlier_s)
        is_like = max(of_delays_s.max(initial=0.0), off_s[waiting].max(initial=0.0)) <= state.slack_s
        ends_s = state.all_ends_s[len(steps.step) :][of_first]
        return bool(is_like and ((ends_s >= 0.0) & (ends_s < state.until_s)).all())

    def _note(self, state: "_State") -> None:
        """Note the times of all that is not over."""
        steps, size, starts_s, ends_s = self._steps, len(self.chains.section), state.starts_s, state.all_ends_s
        is_left = ~(state.ends_s[1] < state.until_s)
        spans = self.loop.shared_spans
        for before, after, passes in (
            (steps.first[is_left], steps.second[is_left], np.zeros(1, np.int64)),
            (steps.before_third, steps.third, steps.passes),
        ):
            earlier = self._earlier[before]
            paces_s: Times = np.where(passes > 0, ends_s[before] - ends_s[earlier], 0.0)
            later_s = state.length_s + passes * paces_s
            for times_s in (starts_s, ends_s):
                times_s[after] = times_s[before] + np.where(times_s[before] < 0.0, 0.0, later_s)
            spans = _with_copies(spans, self.chains.graph, before, after, later_s)
        starts_s[steps.journeys] = ends_s[steps.sends]
        lasting_s = [self.chains.graph.durations_s[node] for node in steps.journeys.tolist()]
        ends_s[steps.journeys] = ends_s[steps.sends] + lasting_s
        starts_s[size:] = ends_s[self.before]
        pace_s = np.maximum(ends_s[self.before] - ends_s[self.earlier], 0.0)
        ends_s[size:] = ends_s[self.before] + self.times * pace_s
        _release_blocks(self.chains.graph, starts_s, ends_s)
        self.loop.note(starts_s, ends_s, spans)


class _Steps(Struct, frozen=True, eq=False):
    """The nodes of the first step, the same of the second, and of the third, which are as ``before_third`` before it.

    ``passes``: how many periods more than a step later they are. ``others``: those of the first two steps of which it
    is not known what they are in the other. ``sends``, ``journeys``: messages that the third sends and nobody receives.
    ``step``: the number of each node's step. All are empty where something of the third step is not known.
    """

    step: Ints = _NO_NODES
    first: Ints = _NO_NODES
    second: Ints = _NO_NODES
    before_third: Ints = _NO_NODES
    third: Ints = _NO_NODES
    passes: Ints = _NO_NODES
    others: Ints = _NO_NODES
    sends: Ints = _NO_NODES
    journeys: Ints = _NO_NODES

    @classmethod
    def of(cls, graph: Graph, step: Ints, before: Ints, passes: Ints) -> "_Steps":
        """Return those of a graph. By node: its step, and the same of the step before; NONE: there is none."""
        exits = [node for block in graph.blocks.values() for node in block.exits.values()]
        is_known = before != NONE
        is_known[exits] = True  # a block tells when they end
        sends, journeys, _ = graph.message_columns
        alone = np.flatnonzero((step[journeys] == 2) & ~is_known[journeys] & (sends != journeys))
        is_known[journeys[alone]] = True
        if (step == NONE).any() or not is_known[step == 2].all():
            return cls()
        second, third = (np.flatnonzero((step == number) & (before != NONE)) for number in (1, 2))
        is_both = np.zeros(len(step), np.bool_)
        is_both[second] = is_both[before[second]] = True
        others = np.flatnonzero(~is_both & (step < 2))
        return cls(
            step, before[second], second, before[third], third, passes[third], others, sends[alone], journeys[alone]
        )


class _State(Struct, frozen=True, dict=True, eq=False):
    """How far the second step has come at ``until_s``, beside the first, whose times are those a step later.

    ``begins_s``, ``ends_s``: of the nodes of both; infinity: not known yet. Nodes know their ends when they begin, but
    for those that share resources or wait for other ranks. ``length_s``: by how much the second is later. ``over_s``:
    when the first step is over, and those nodes of the second that are not known in the first. ``starts_s``,
    ``all_ends_s``: of all nodes of the loop, negative where they are not known.
    """

    starts_s: Times
    all_ends_s: Times
    length_s: float
    until_s: float
    begins_s: tuple[Times, Times]
    ends_s: tuple[Times, Times]
    over_s: float

    @classmethod
    def of(cls, loop: EventLoop, graph: Graph, steps: _Steps) -> "_State":
        """Return the state of a loop that pauses."""
        size, (starts_s, all_ends_s) = len(graph.kinds), loop.times_so_far_s
        last = int(np.argmax(starts_s[steps.second]))
        length_s = float(starts_s[steps.second[last]] - starts_s[steps.first[last]])
        begins_s = np.where(graph.kinds_of_nodes == NodeKind.EXIT, all_ends_s[:size], starts_s[:size])
        begins_s, ends_s = (np.where(times_s < 0.0, np.inf, times_s) for times_s in (begins_s, all_ends_s))
        begin, end = ((times_s[steps.first] + length_s, times_s[steps.second]) for times_s in (begins_s, ends_s))
        over_s = max(ends_s[nodes].max(initial=0.0) for nodes in (steps.first, steps.others))
        return cls(starts_s, all_ends_s, length_s, loop.environment.now - EQUAL * length_s, begin, end, over_s)

    @property
    def slack_s(self) -> float:
        """Return by how much moments differ that differ by rounding."""
        return EQUAL * self.length_s

    @cached_property
    def off_s(self) -> Times:
        """Return by how much each node of the second step that has begun ends at another time than in the first."""
        off_s = np.zeros(len(self.ends_s[0]))
        is_known = np.isfinite(self.ends_s[1])
        off_s[is_known] = np.abs(self.ends_s[1][is_known] - self.ends_s[0][is_known])
        return off_s

    @property
    def was_that_of_first(self) -> bool:
        """Return whether what the second step has not done by now had come as far in the first.

        Both are alike from the moment when all is over that differs, and the first step. What has begun since then, and
        has no end yet, has met the same on its resources.
        """
        differs = np.zeros(len(self.off_s), np.bool_)
        for first_s, second_s in (self.begins_s, self.ends_s):
            is_told = np.isfinite(second_s) | (first_s < self.until_s)
            differs[is_told] |= ~(np.abs(second_s[is_told] - first_s[is_told]) <= self.slack_s)
        over_s = np.maximum(*self.ends_s)[differs].max(initial=self.over_s)
        at_work = np.isfinite(self.begins_s[1]) & np.isinf(self.ends_s[1])
        return bool(over_s < self.until_s and self.begins_s[1][at_work].min(initial=np.inf) >= over_s)


def _release_blocks(graph: Graph, starts_s: Times, ends_s: Times) -> None:
    """Tell the blocks of a graph when their entries let them go, and find ends of exits that are not known."""
    for node, block in graph.blocks.items():
        block.released_s[0] = float(starts_s[node])  # of one entry, which is no node
    for entry, (node, slot) in graph.entries.items():
        graph.blocks[node].released_s[slot] = float(ends_s[entry])
    for block in graph.blocks.values():
        for op, node in block.exits.items():
            if ends_s[node] < 0.0:
                ends_s[node] = block.pattern.end_s(op, block.released_s)


def _with_copies(spans: Times, graph: Graph, before: Ints, after: Ints, later_s: Times) -> Times:
    """Return how fast activities went, with those of nodes ``after`` as those of nodes ``before``, so much later.

    ``spans``: a row each, as of the event loop.
    """
    joint_of = np.full(len(graph.kinds), NONE)
    joint_of[list(graph.joint_of)] = list(graph.joint_of.values())
    members = np.array([joint.members[0] for joint in graph.joints], np.int64)
    nodes = spans[:, 0].astype(np.int64)
    of_joint = nodes < 0
    nodes[of_joint] = members[-nodes[of_joint] - 1]
    is_copied = np.zeros(len(joint_of), np.bool_)
    is_copied[after] = True
    order = sorted_order(nodes)
    first, stop = (nodes[order].searchsorted(before, side) for side in ("left", "right"))
    copy, rows = in_ranges(first, stop - first)
    copied, key = spans[order[rows]], after[copy]
    copied[:, 0] = np.where(joint_of[key] == NONE, key, -joint_of[key] - 1)
    copied[:, 1:3] += later_s[copy, None]
    return np.concatenate([spans[~is_copied[nodes]], copied])
