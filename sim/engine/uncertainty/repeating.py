"""Drawn times of a run that passed through its period once for many.

The *state* of a draw: when those nodes of earlier periods end that a period waits for. The period's ends follow from
it, and with them the next state: a recurrence x(k + 1) = A x(k), whose product is a longest path. So a run is three
graphs: before its period, the period, and after it. Where a state is the one before, later by one time, all further
states are so too. Other draws pass through the period again, until a state is any earlier one, later by one time. From
there on the states between the two take turns.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.running.chains import NONE
from sim.engine.running.period import EQUAL, Repeated
from sim.engine.running.rank_paces import NEAR
from sim.engine.uncertainty.longest_path import Durations, Floats, Ints, Lasting, Levels, drawn_s
from sim.sorting import distinct_values

Flags = NDArray[np.bool_]

EVEN: Final = 1e-10
"""Times that differ by a smaller part of a period are equal."""


class Counterparts(Struct, frozen=True, eq=False):
    """The same node of the next period, for every node: in the next period's unit it has the same place.

    Units are calls, or what is beside them. ``units``: the unit of each node, NONE where there is none; ``places``: the
    place of each node in its unit, below ``num_places``. ``later_units``: by unit, the same unit of the next period;
    NONE where there is none. ``repeats``: by unit, whether each period has such a unit. ``sizes``: by unit, its number
    of nodes. ``moments_s``: a predicted moment of each node, a period later for its counterpart.
    """

    units: Ints
    places: Ints
    num_places: int
    later_units: Ints
    repeats: Flags
    sizes: Ints
    moments_s: Floats

    @classmethod
    def of(cls, units: Ints, places: Ints, later_units: Ints, repeats: Flags, moments_s: Floats) -> "Counterparts":
        """Return those of the nodes of some units."""
        num_places = int(places.max(initial=0)) + 1
        sizes = np.bincount(units[units != NONE], minlength=len(later_units))
        return cls(units, places, num_places, later_units, repeats, sizes, moments_s)

    def later(self, nodes: Ints, period_s: float) -> Ints:
        """Return the nodes a period after some; NONE where there is none.

        Of units with unlike numbers of nodes these are counterparts only if they are a period apart.
        """
        units = self.units[nodes]
        others = np.where(units == NONE, NONE, self.later_units[units])
        of_others, keys = self._of_units(others)
        if not len(keys):
            return np.full(len(nodes), NONE)
        wanted = others * self.num_places + self.places[nodes]
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        is_found = (others != NONE) & (keys[found] == wanted)
        later = of_others[found]
        off_s = self.moments_s[later] - self.moments_s[nodes] - period_s
        is_found &= (self.sizes[units] == self.sizes[others]) | (np.abs(off_s) <= NEAR * period_s)
        return np.where(is_found, later, NONE)

    def _of_units(self, units: Ints) -> tuple[Ints, Ints]:
        """Return the nodes of some units, some of which may be NONE, by unit and place, and keys of these two."""
        is_wanted = np.zeros(len(self.later_units) + 1, np.bool_)
        is_wanted[units], is_wanted[NONE] = True, False
        nodes = np.flatnonzero(is_wanted[self.units])
        keys = self.units[nodes] * self.num_places + self.places[nodes]
        order = np.argsort(keys, kind="stable")
        return nodes[order], keys[order]

    def stay(self, nodes: Ints) -> Flags:
        """Return which nodes are of units that no period has."""
        units = self.units[nodes]
        stays: Flags = (units != NONE) & ~self.repeats[units]
        return stays


class PlacedNodes(Struct, frozen=True, eq=False):
    """A run's graph: predicted starts of its nodes, edges from ``before[i]`` to ``after[i]``, and counterparts."""

    starts_s: Floats
    before: Ints
    after: Ints
    counterparts: Counterparts

    def waited_for(self, moment_s: float) -> Ints:
        """Return the nodes that begin before a moment and for which others wait that begin later."""
        crosses = (self.starts_s[self.before] < moment_s) & (self.starts_s[self.after] >= moment_s)
        return distinct_values(self.before[crosses])

    def states(self, begin_s: float, end_s: float) -> tuple[Ints, Ints] | None:
        """Return the nodes of a state at the begin of a period, and those at its end; None where it is not known.

        They are what the period waits for. What is of no period is the same in every state.
        """
        at_begin, is_known = self.waited_for(begin_s), self.starts_s >= begin_s
        while True:
            later = self.counterparts.later(at_begin, end_s - begin_s)
            at_end = np.where(self.counterparts.stay(at_begin), at_begin, later)
            if (at_end == NONE).any() or (self.starts_s[at_end] >= end_s).any():
                return None
            is_known[at_begin] = True
            if is_known[at_end].all():
                return at_begin, at_end
            at_begin = np.concatenate([at_begin, at_end[~is_known[at_end]]])


class _Part(Struct, frozen=True, eq=False):
    """A part of a run's graph; first in it come the nodes before it that it waits for, whose ends are known.

    ``wanted``: the rows of nodes whose ends are asked for.
    """

    nodes: Ints
    levels: Levels
    wanted: Ints

    @classmethod
    def of(cls, placed: PlacedNodes, own: Flags, known: Ints, wanted: Ints) -> "_Part":
        """Return the part of some nodes, given by flags, and of known ones."""
        nodes = np.concatenate([known, np.flatnonzero(own)])
        number = np.full(len(own), NONE)
        number[nodes] = np.arange(len(nodes))
        within = own[placed.after]
        before, after = number[placed.before[within]], number[placed.after[within]]
        if (before == NONE).any():
            raise ValueError("some nodes wait for others that begin later")
        levels = Levels.of(len(nodes), before, after, number[wanted], len(known))
        return cls(nodes, levels, levels.rows[number[wanted]])

    def lasting(self, durations: Durations) -> tuple[Lasting, ...]:
        """Return how long its chains last."""
        return self.levels.lasting(durations.of(self.nodes))


class Repeating(Struct, frozen=True, eq=False):
    """A run in three parts: before its period, the period, which comes ``times`` more, and after it.

    The period's wanted nodes are those of the next state, and then those that the part after it waits for. ``moves``:
    which nodes of a state have a counterpart in each period.
    """

    times: int
    before: _Part
    period: _Part
    after: _Part
    moves: Flags

    @classmethod
    def of(cls, placed: PlacedNodes, repeated: Repeated) -> "Repeating | None":
        """Return those of a run; None where a period's state is not known."""
        slack_s = EQUAL * repeated.length_s
        begin_s, end_s = repeated.begin_s - slack_s, repeated.end_s - slack_s
        states = placed.states(begin_s, end_s)
        if states is None or np.array_equal(*states):
            return None
        (at_begin, at_end), ended = states, placed.waited_for(end_s)
        is_early, is_late = placed.starts_s < begin_s, placed.starts_s >= end_s
        return cls(
            repeated.times,
            _Part.of(placed, is_early, at_begin[:0], at_begin),
            _Part.of(placed, ~is_early & ~is_late, at_begin, np.concatenate([at_end, ended])),
            _Part.of(placed, is_late, ended, ended[:0]),
            at_end != at_begin,
        )

    @property
    def state(self) -> Ints:
        """Return the rows, in the period, of the nodes of the next state."""
        return self.period.wanted[: len(self.moves)]

    def step_s(self, durations: Durations) -> Floats:
        """Return when the last node of the whole run ends, per draw."""
        known_s, early_s = _passed_s(self.before, durations, np.zeros((0, durations.num_draws)))
        known_s, last_s = self._repeated_s(durations, known_s)
        _, late_s = _passed_s(self.after, durations, known_s[len(self.moves) :])
        return np.maximum(np.maximum(early_s, last_s), late_s)

    def _repeated_s(self, durations: Durations, known_s: Floats) -> tuple[Floats, Floats]:
        """Return when the wanted nodes of the last period end, and when its last one does, per draw."""
        period, lasting = self.period.levels, self.period.lasting(durations)
        first_s = period.ends_s(drawn_s(lasting, durations.factors), known_s)
        moved_s = (first_s[self.state] - known_s)[self.moves]
        pace_s = moved_s.max(axis=0)
        last_s: Floats = first_s + self.times * pace_s
        stays = self.state[~self.moves]
        last_s[stays] = first_s[stays]
        uneven = np.flatnonzero(pace_s - moved_s.min(axis=0) > EVEN * pace_s)
        if len(uneven):
            lasting_s = list(drawn_s(lasting, durations.factors.take(uneven, axis=1)))
            passing = _Passing(self, lasting_s, EVEN * pace_s[uneven])
            last_s[:, uneven] = passing.last_s(first_s[self.state].take(uneven, axis=1))
        return last_s[self.period.wanted], period.latest_s(last_s)


def _passed_s(part: _Part, durations: Durations, known_s: Floats) -> tuple[Floats, Floats]:
    """Return when the wanted nodes of a part end, and when its last one does, per draw."""
    ends_s = part.levels.ends_s(drawn_s(part.lasting(durations), durations.factors), known_s)
    return ends_s[part.wanted], part.levels.latest_s(ends_s)


class _Passing:
    """Draws that pass through a period again and again, until a state comes back: from there on states take turns.

    ``lasting_s``: how long the chains of each piece of a period last, x draws. ``small_s``: times below it are
    rounding, per draw. ``states``: the states so far (nodes x draws), each with the draws that were left. ``marks``: a
    number of each state (states x draws), equal to ``near`` where states differ by one time.
    """

    def __init__(self, of: Repeating, lasting_s: Sequence[Floats], small_s: Floats) -> None:
        self.of, self.lasting_s, self.small_s = of, lasting_s, small_s
        self.states = list[tuple[Floats, Ints]]()
        self.marks = np.empty((of.times, len(small_s)))
        self.weights = np.sqrt(np.arange(1.0, 1.0 + np.count_nonzero(of.moves)))
        self.near = self.weights.sum() * small_s

    def last_s(self, state_s: Floats) -> Floats:
        """Return the ends of the last period, x draws, from the state after the first."""
        draws, before_last_s, period = np.arange(state_s.shape[1]), np.empty_like(state_s), self.of.period.levels
        while len(self.states) < self.of.times - 1 and len(draws):
            self._note(state_s, draws)
            is_left = np.ones(len(draws), np.bool_)
            for at in self._seen(draws).tolist():
                found_s = self._in_turns_s(int(draws[at]))
                if found_s is not None:
                    before_last_s[:, draws[at]], is_left[at] = found_s, False
            draws = draws[is_left]
            lasting_s = [piece_s.take(draws, axis=1) for piece_s in self.lasting_s]  # [:, draws]: not row by row
            state_s = period.ends_s(lasting_s, state_s.compress(is_left, axis=1))[self.of.state]
        before_last_s[:, draws] = state_s
        return period.ends_s(self.lasting_s, before_last_s)

    def _note(self, state_s: Floats, draws: Ints) -> None:
        """Note a state of the draws that are left."""
        moving_s = state_s[self.of.moves]
        self.marks[len(self.states), draws] = self.weights @ (moving_s - moving_s[0])
        self.states.append((state_s, draws))

    def _seen(self, draws: Ints) -> Ints:
        """Return the places of the draws of whose last state the mark was seen before."""
        marks = self.marks[: len(self.states), draws]
        is_near = np.abs(marks[:-1] - marks[-1]) <= self.near[draws]
        return np.flatnonzero(np.logical_or.reduce(is_near))

    def _in_turns_s(self, draw: int) -> Floats | None:
        """Return the state before the last period of a draw whose last state came before; None where it did not."""
        marks, last = self.marks[: len(self.states), draw], len(self.states) - 1
        is_near = np.abs(marks[:-1] - marks[-1]) <= self.near[draw]
        first = int(np.flatnonzero(is_near)[-1])
        moved_s = (self._state_s(last, draw) - self._state_s(first, draw))[self.of.moves]
        if moved_s.max() - moved_s.min() > self.small_s[draw]:
            return None
        turns, more = divmod(self.of.times - 1 - first, last - first)
        before_last_s: Floats = self._state_s(first + more, draw) + self.of.moves * turns * moved_s[0]
        return before_last_s

    def _state_s(self, place: int, draw: int) -> Floats:
        """Return one of the states so far of a draw."""
        state_s, draws = self.states[place]
        found_s: Floats = state_s[:, np.searchsorted(draws, draw)]
        return found_s
