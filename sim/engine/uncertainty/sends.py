"""Sends that wait for the one before them, which decides nothing while sends take no longer than calls.

Send i waits for call i, and for send i - 1 before it. The calls of a rank come one after the other, so call i begins
when call i - 1 is over, or later. Let no send take longer than the call of the next one. Then send i - 1, which begins
when call i - 1 ends, ends no later than call i. So send i begins when call i ends, and so on, send by send.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from sim.engine.compiling.graph import SENT
from sim.engine.running.chains import NONE
from sim.engine.running.run import SimulatedRun
from sim.engine.uncertainty.longest_path import Durations, Ints
from sim.engine.uncertainty.repeating import Flags
from sim.sorting import distinct

SHORT: Final = 0.5
"""A send is left out of the graph if it is predicted to take at most so much of the next one's call."""


class SendsInOrder(Struct, frozen=True, eq=False):
    """Sends, for each the ``calls`` of the next one, and which of a graph's edges lead from a send to the next one.

    They are those up to the first of a channel of which it is not known that its call comes after that of the send
    before, or that as predicted takes longer than ``SHORT`` of the next one's call, so that it may outlast this call
    in many draws. The sends of a channel are consecutive nodes.
    """

    sends: Ints
    calls: Ints
    is_between: Flags

    @classmethod
    def of_none(cls, num_edges: int) -> "SendsInOrder":
        """Return no sends."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(num_edges, np.bool_))

    @classmethod
    def of(cls, run: SimulatedRun, before: Ints, after: Ints, num_nodes: int) -> "SendsInOrder":
        """Return those of a run, of whose graph the edges lead from ``before[i]`` to ``after[i]``."""
        is_send, place, section = _are_sends(run, num_nodes), *_calls_in_order(run, before, after, num_nodes)
        is_between = is_send[before] & is_send[after] & (after - before == 1)
        is_next, call_of = np.zeros(num_nodes, np.bool_), np.full(num_nodes, NONE)
        is_next[after[is_between]] = True
        from_call = (place[before] != NONE) & is_send[after]
        call_of[after[from_call]] = before[from_call]
        waits_for_call_alone = np.bincount(after, minlength=num_nodes) - is_next == 1
        calls, next_calls = call_of[:-1], call_of[1:]
        follows = (place[calls] < place[next_calls]) & (section[calls] == section[next_calls])
        starts_s, ends_s = run.loop.times_s
        lasting_s = np.append(ends_s - starts_s, np.zeros(num_nodes - len(ends_s)))
        is_short = lasting_s[:-1] <= SHORT * lasting_s[next_calls]
        is_known = (calls != NONE) & (next_calls != NONE) & waits_for_call_alone[:-1] & follows & is_short
        needless: Flags = is_between & _up_to_first(~np.append(False, is_known), is_next)[after]
        return cls(before[needless], call_of[after[needless]], needless)

    def outlast(self, durations: Durations) -> Flags:
        """Return the draws in which some send may take longer than the call of the next one."""
        pairs, where = distinct(durations.rows[self.sends] * len(durations.factors) + durations.rows[self.calls])
        shares = np.zeros(len(pairs))
        np.maximum.at(shares, where, durations.base_s[self.sends] / durations.base_s[self.calls])
        of_sends, of_calls = (durations.factors[rows] for rows in np.divmod(pairs, len(durations.factors)))
        outlast: Flags = np.logical_or.reduce(of_sends * shares[:, None] > of_calls)
        return outlast


def _are_sends(run: SimulatedRun, num_nodes: int) -> Flags:
    """Return which nodes are sends and no journeys of messages."""
    sends, journeys, _ = run.graph.message_columns
    is_send = np.zeros(num_nodes, np.bool_)
    is_send[sends] = True
    is_send[journeys] = False
    return is_send


def _calls_in_order(run: SimulatedRun, before: Ints, after: Ints, num_nodes: int) -> tuple[Ints, Ints]:
    """Return by node the place among the calls that are one event each, and a number of its section.

    Within a section each call waits for the one before. NONE: the node is no such call.
    """
    units = run.graph.unit_columns
    is_block = np.zeros(num_nodes, np.bool_)
    is_block[list(run.graph.blocks)] = True
    is_call = (units.numbers != id(None)) & (units.numbers != id(SENT)) & ~is_block[units.nodes]
    nodes = units.nodes[is_call]
    place, section = np.full(num_nodes, NONE), np.full(num_nodes, NONE)
    place[nodes] = np.arange(len(nodes))
    waits = np.zeros(len(nodes) + 1, np.bool_)
    waits[place[after[(place[before] != NONE) & (place[after] == place[before] + 1)]]] = True
    section[nodes] = np.cumsum(~waits[:-1])
    return place, section


def _up_to_first(is_bad: Flags, is_next: Flags) -> Flags:
    """Return which nodes follow the one before, ``is_next``, and come before the first bad one of such a row."""
    num_bad = np.cumsum(is_bad & is_next)
    begins = np.maximum.accumulate(np.where(is_next, 0, np.arange(len(is_next))))
    found: Flags = is_next & (num_bad == num_bad[begins])
    return found
