"""Calls of tasks from the actions of a schedule, messages included."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.integers import Integers, Ints, integer_type, widened
from sim.plan.words.calls import Calls
from sim.sorting import sorted_order
from sim.training.pipeline.actions import KINDS, Action, Order
from sim.training.pipeline.placement import Placement

NONE: Final = -1

SLOTS: Final = 8
"""Places for the calls of an action. Of two actions that overlap, both write to those of the first."""

RECEIVE, BEGIN, TASK, END, SEND = 0, 2, 3, 5, 6
"""Places of an action's calls; receive, task and send of the second of two that overlap are one place later."""


def stream(verb: str, direction: str, hop: int) -> str:
    """Return the stream of messages.

    ``send`` or ``recv``, ``forward`` or ``backward``, between stages ``hop`` ranks apart.

    Messages to the next rank have the plain names. Messages to the previous rank, such as those on the way up of a V,
    have streams of their own.
    """
    return f"pp_{verb}_{direction}" + {1: "", -1: "_up"}.get(hop, f"_{hop:+d}")


def pipeline_calls(
    orders: Sequence[Sequence[Action]],
    placement: Placement,
    ranks: Sequence[int] | None = None,
    *,
    fenced: bool = False,
) -> list[Calls]:
    """Return every rank's calls, or those of some ``ranks``: for each action its receives, its task and its sends.

    Messages run on streams of their own. So a receive before its forward is posted as early as its stream allows, and a
    send delays no computing. The receives of a channel follow the order of its sends: a rank that needs messages in
    another order receives the earlier ones first.
    ``fenced``: overlapping actions wait for each other's inputs (``overlap_begin.{stage}``) and deliver their outputs
        together (``overlap_end.{stage}``).
    """
    links = _Links.of(placement)
    writers = [_RankWriter.of(links, Order.of(order)) for order in orders]
    incoming = dict(chain.from_iterable(writer.sent() for writer in writers))
    written = range(len(writers)) if ranks is None else ranks
    return [writers[rank].write(incoming, fenced=fenced) for rank in written]


class _Link(NamedTuple):
    """An action's task and messages: the channels that it receives from and sends to; "" means none.

    A channel is a queue of messages in one order: sending rank, ranks to the next stage, forward or backward.
    ``arrival``: the task that receives the message of ``send``. ``begin``, ``end``: fences of actions that overlap.
    """

    inbox: str
    outbox: str
    task: str
    receive: str
    send: str
    arrival: str
    begin: str
    end: str


def _link(kind: str, stage: int, place: Placement) -> _Link:
    task = f"{KINDS[kind]}.{stage}"
    if kind == "W":
        return _Link("", "", task, "", "", "", "", "")
    way, ahead = ("forward", 1) if kind == "F" else ("backward", -1)
    before = 0 if place.is_first(stage) else place.hop(stage - 1)
    after = 0 if place.is_last(stage) else place.hop(stage)
    come, go = (before, after) if kind == "F" else (after, before)
    return _Link(
        f"{place.ranks[stage - ahead]} {come} {way}" if come else "",
        f"{place.ranks[stage]} {go} {way}" if go else "",
        task,
        f"recv_{way}.{stage}" if come else "",
        f"send_{way}.{stage}" if go else "",
        f"recv_{way}.{stage + ahead}" if go else "",
        "" if place.is_last(stage) else f"overlap_begin.{stage}",
        "" if place.is_last(stage) else f"overlap_end.{stage}",
    )


class _Links(Struct, frozen=True, dict=True):
    """The links of all actions, by kind and stage, as numbers of channels and places in ``names``; NONE for ""."""

    num_stages: int
    names: tuple[str, ...]
    inbox: Integers
    outbox: Integers
    task: Integers
    receive: Integers
    send: Integers
    arrival: Integers
    begin: Integers
    end: Integers

    @classmethod
    def of(cls, placement: Placement) -> "_Links":
        """Return the links of the stages of a placement."""
        stages = range(placement.num_stages)
        columns = list(zip(*[_link(kind, stage, placement) for kind in KINDS for stage in stages], strict=True))
        channels, names = _numbers(columns[:2]), _numbers(columns[2:])
        coded = [[channels[name] for name in column] for column in columns[:2]]
        coded += [[names[name] for name in column] for column in columns[2:]]
        return cls(len(stages), tuple(names)[1:], *np.array(coded, integer_type(len(names))))

    @cached_property
    def in_turn(self) -> Integers:
        """Return the calls of an action where it needs the next message: its receive, its task and its send."""
        return np.stack([self.receive, self.task, self.send], axis=1)

    @cached_property
    def num_in_turn(self) -> Ints:
        """Return how many of these calls an action has."""
        found: Ints = np.sum(self.in_turn != NONE, axis=1)
        return found


def _numbers(columns: Iterable[Iterable[str]]) -> dict[str, int]:
    """Return a number for each text; NONE for ""."""
    return {name: number for number, name in enumerate(dict.fromkeys(["", *chain.from_iterable(columns)]), NONE)}


class _Messages(Struct, frozen=True):
    """Messages of a channel in order: the tasks that receive them, and their micro-batches."""

    arrivals: Integers
    microbatches: Integers


class _RankWriter(Struct, frozen=True, dict=True):
    """Writes the calls of a rank. ``link``: of each action, its row in ``links``."""

    links: _Links
    order: Order
    link: Integers

    @classmethod
    def of(cls, links: _Links, order: Order) -> "_RankWriter":
        """Return the writer of a rank with this order."""
        link = widened(order.kinds) * links.num_stages + order.stages
        return cls(links, order, link.astype(integer_type(len(links.task))))

    @property
    def first(self) -> NDArray[np.bool_]:
        """Return which actions are the first of two that overlap."""
        return self.order.overlaps

    @cached_property
    def second(self) -> NDArray[np.bool_]:
        """Return which actions are the second of two that overlap."""
        return np.concatenate([[False], self.first])[: len(self.order)].astype(bool)

    @cached_property
    def place(self) -> Ints:
        """Return the place of each action's calls."""
        return SLOTS * (np.arange(len(self.order)) - self.second) + self.second

    def sent(self) -> Iterator[tuple[int, _Messages]]:
        """Yield the channels to which the rank sends, with its messages."""
        for channel, of in self._by_channel(self.links.outbox):
            yield channel, _Messages(self.links.arrival.take(self.link.take(of)), self.order.microbatches.take(of))

    def write(self, incoming: Mapping[int, _Messages], *, fenced: bool) -> Calls:
        """Return the calls. ``incoming``: the messages of all channels."""
        needed = [(incoming[channel], of) for channel, of in self._by_channel(self.links.inbox)]
        is_in_turn = not self.first.any() and all(self._are_next(messages, of) for messages, of in needed)
        tasks, microbatches = self._in_turn() if is_in_turn else self._in_places(needed, fenced=fenced)
        called = np.flatnonzero(np.bincount(tasks))
        number = np.zeros(len(self.links.names), integer_type(len(called)))
        number[called] = np.arange(len(called))
        names = tuple(map(self.links.names.__getitem__, called.tolist()))
        return Calls(names, number.take(tasks), microbatches, np.zeros(len(tasks), np.int8))

    def _in_turn(self) -> tuple[Integers, Integers]:
        """Return tasks and micro-batches of the calls where each action needs the next message."""
        tasks = self.links.in_turn.take(self.link, axis=0).ravel()
        return tasks[tasks != NONE], self.order.microbatches.repeat(self.links.num_in_turn.take(self.link))

    def _in_places(self, needed: Iterable[tuple[_Messages, Ints]], *, fenced: bool) -> tuple[Integers, Integers]:
        """Return tasks and micro-batches of the calls by their places.

        ``needed``: the messages of each channel, and the actions that need some.
        """
        links, every = self.links, np.arange(len(self.order))
        parts = [self._own(links.task, TASK, every), self._own(links.send, SEND, every)]
        if fenced:
            parts.append(self._own(links.begin, BEGIN - 1, np.flatnonzero(self.second)))
            parts.append(self._own(links.end, END, np.flatnonzero(self.first)))
        parts += [self._received(messages, of) for messages, of in needed]
        places, tasks, microbatches = map(np.concatenate, zip(*parts, strict=True))
        order = sorted_order(places)
        return tasks[order], microbatches[order]

    def _own(self, names: Integers, offset: int, of: Ints) -> tuple[Ints, Integers, Integers]:
        """Return place, task and micro-batch of the calls of a kind that actions have."""
        tasks = names[self.link[of]]
        called = tasks != NONE
        return self.place[of][called] + offset, tasks[called], self.order.microbatches[of][called]

    def _received(self, messages: _Messages, of: Ints) -> tuple[Ints, Integers, Integers]:
        """Return the same of the receives of a channel: up to its own message, an action receives all that came before.

        ``of``: the actions that need messages of the channel.
        """
        wanted, keys = self._keys(messages, of)
        by_key = sorted_order(keys - keys.min())
        latest = np.maximum.accumulate(by_key[np.searchsorted(keys[by_key], wanted)])
        received = np.arange(latest[-1] + 1)
        actions = of[np.searchsorted(latest, received)]
        return self.place[actions] + RECEIVE, messages.arrivals[received], messages.microbatches[received]

    def _are_next(self, messages: _Messages, of: Ints) -> bool:
        """Return whether each action needs the next message of a channel."""
        wanted = self.links.receive.take(self.link.take(of))
        return np.array_equal(wanted, messages.arrivals) and np.array_equal(
            self.order.microbatches.take(of), messages.microbatches
        )

    def _keys(self, messages: _Messages, of: Ints) -> tuple[Ints, Ints]:
        """Return a number for the message that each action needs, and for each message of a channel."""
        span = 1 + int(messages.microbatches.max(initial=0))
        wanted = widened(self.links.receive.take(self.link.take(of))) * span + self.order.microbatches.take(of)
        return wanted, widened(messages.arrivals) * span + messages.microbatches

    def _by_channel(self, of_links: Integers) -> Iterator[tuple[int, Ints]]:
        """Yield each channel of the rank, and the actions that use it. ``of_links``: the channel of each link."""
        channels = of_links.take(self.link)
        for channel in sorted({*of_links[self._called].tolist()} - {NONE}):
            yield channel, np.flatnonzero(channels == channel)

    @cached_property
    def _called(self) -> Ints:
        """Return the links that the rank's actions have."""
        return np.flatnonzero(np.bincount(self.link))
