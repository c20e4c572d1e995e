"""Calls of tasks from the actions of a schedule, messages included."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from sim.plan.words.program import Call
from sim.training.pipeline.actions import KINDS, Action
from sim.training.pipeline.placement import Placement

Channel = tuple[int, int, str]
"""A queue of messages in one order: sending rank, ranks to the next stage, forward or backward."""


def stream(verb: str, direction: str, hop: int) -> str:
    """Return the stream of messages.

    ``send`` or ``recv``, ``forward`` or ``backward``, between stages ``hop`` ranks apart.

    Messages to the next rank have the plain names. Messages to the previous rank, such as those on the way up of a V,
    have streams of their own.
    """
    return f"pp_{verb}_{direction}" + {1: "", -1: "_up"}.get(hop, f"_{hop:+d}")


def pipeline_calls(
    orders: Sequence[Sequence[Action]], placement: Placement, *, fenced: bool = False
) -> list[list[Call]]:
    """Return every rank's calls: for each action its receives, its task and its sends.

    Messages run on streams of their own. So a receive before its forward is posted as early as its stream allows, and a
    send delays no computing. The receives of a channel follow the order of its sends: a rank that needs messages in
    another order receives the earlier ones first.
    ``fenced``: overlapping actions wait for each other's inputs (``overlap_begin.{stage}``) and deliver their outputs
        together (``overlap_end.{stage}``).
    """
    links = {(kind, stage): _links(kind, stage, placement) for stage in range(placement.num_stages) for kind in KINDS}
    incoming: dict[Channel, deque[Message]] = {}
    for order in orders:
        for kind, stage, microbatch, _ in order:
            link = links[kind, stage]
            if link.outbox:
                incoming.setdefault(link.outbox, deque()).append((link.arrival, microbatch))
    return [_RankWriter(placement, links, incoming, fenced).write(order) for order in orders]


Message = tuple[str, int]
"""A message: the task that receives it, and the micro-batch."""


class _Links(Struct, frozen=True):
    """An action's messages: the channels that it receives from and sends to; None means no message.

    ``arrival``: the task that receives the message of ``send``.
    """

    task: str
    inbox: Channel | None = None
    receive: str = ""
    outbox: Channel | None = None
    send: str = ""
    arrival: str = ""


def _links(kind: str, stage: int, place: Placement) -> _Links:
    task = f"{KINDS[kind]}.{stage}"
    if kind == "W":
        return _Links(task)
    way, ahead = ("forward", 1) if kind == "F" else ("backward", -1)
    before = 0 if place.is_first(stage) else place.hop(stage - 1)
    after = 0 if place.is_last(stage) else place.hop(stage)
    come, go = (before, after) if kind == "F" else (after, before)
    return _Links(
        task,
        (place.ranks[stage - ahead], come, way) if come else None,
        f"recv_{way}.{stage}",
        (place.ranks[stage], go, way) if go else None,
        f"send_{way}.{stage}",
        f"recv_{way}.{stage + ahead}",
    )


@dataclass(slots=True)
class _RankWriter:
    placement: Placement
    links: Mapping[tuple[str, int], _Links]
    incoming: Mapping[Channel, deque[Message]]
    fenced: bool
    calls: list[Call] = field(default_factory=list)
    early: set[Message] = field(default_factory=set)

    def write(self, order: Sequence[Action]) -> list[Call]:
        calls, links, actions = self.calls, self.links, iter(order)
        for action in actions:
            kind, stage, microbatch, overlaps = action
            link = links[kind, stage]
            if link.inbox:
                self._receive(self.incoming[link.inbox], (link.receive, microbatch))
            if overlaps:
                self._write_pair(action, next(actions))
                continue
            calls.append(Call(link.task, microbatch))
            if link.outbox:
                calls.append(Call(link.send, microbatch))
        return calls

    def _write_pair(self, forward: Action, backward: Action) -> None:
        """Write a forward and the backward that overlaps it; the forward's input is received already."""
        ahead, back = self.links[forward.kind, forward.stage], self.links[backward.kind, backward.stage]
        if back.inbox:
            self._receive(self.incoming[back.inbox], (back.receive, backward.microbatch))
        if self.fenced and not self.placement.is_last(backward.stage):
            self.calls.append(Call(f"overlap_begin.{backward.stage}", backward.microbatch))
        self.calls += [Call(ahead.task, forward.microbatch), Call(back.task, backward.microbatch)]
        if self.fenced and not self.placement.is_last(forward.stage):
            self.calls.append(Call(f"overlap_end.{forward.stage}", forward.microbatch))
        sends = (ahead, forward), (back, backward)
        self.calls += [Call(link.send, action.microbatch) for link, action in sends if link.outbox]

    def _receive(self, queue: deque[Message], wanted: Message) -> None:
        """Receive a message and the messages sent before it, unless it was received early."""
        if wanted in self.early:
            return
        while (message := queue.popleft()) != wanted:
            self.early.add(message)
            self.calls.append(Call(*message))
        self.calls.append(Call(*message))
