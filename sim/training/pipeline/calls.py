"""From the actions of a schedule to calls of tasks, messages included."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sim.plan.program import Call
from sim.training.pipeline.actions import Action, steps
from sim.training.pipeline.placement import Placement

Channel = tuple[int, int, str]
"""Messages in one order: the sending rank, how far ahead the next stage lies, forward or backward."""


def stream(verb: str, direction: str, hop: int) -> str:
    """Return the stream of messages: ``send`` or ``recv``, ``forward`` or ``backward``, between stages ``hop`` apart.

    Stages one rank ahead have the plain names; those one rank back, as on the way up of a V, streams of their own.
    """
    return f"pp_{verb}_{direction}" + {1: "", -1: "_up"}.get(hop, f"_{hop:+d}")


def pipeline_calls(
    orders: Sequence[Sequence[Action]], placement: Placement, *, fenced: bool = False
) -> list[list[Call]]:
    """Return every rank's calls: each action's receives, its task, its sends.

    Messages run on streams of their own, so a receive that stands before its forward is posted as early as its
    stream allows, and a send delays nobody. The receives of a channel are in the order of its sends: where a rank
    needs messages in another order, it receives those that come before early. ``fenced``: overlapping actions wait
    for each other's inputs (``overlap_begin.{stage}``) and give their outputs together (``overlap_end.{stage}``).
    """
    incoming: dict[Channel, deque[Call]] = {}
    for rank, order in enumerate(orders):
        for action in order:
            for hop, direction, _, receive in _outgoing(action, placement):
                incoming.setdefault((rank, hop, direction), deque()).append(receive)
    return [_RankWriter(placement, incoming, fenced).write(order) for order in orders]


def _outgoing(action: Action, placement: Placement) -> Iterator[tuple[int, str, Call, Call]]:
    """Yield the message that an action makes: hop, direction, the send and the receive."""
    stage, i = action.stage, action.microbatch
    if action.kind == "F" and not placement.is_last(stage) and (hop := placement.hop(stage)):
        yield hop, "forward", Call(f"send_forward.{stage}", i), Call(f"recv_forward.{stage + 1}", i)
    if action.kind in "BI" and not placement.is_first(stage) and (hop := placement.hop(stage - 1)):
        yield hop, "backward", Call(f"send_backward.{stage}", i), Call(f"recv_backward.{stage - 1}", i)


@dataclass(slots=True)
class _RankWriter:
    placement: Placement
    incoming: dict[Channel, deque[Call]]
    fenced: bool
    calls: list[Call] = field(default_factory=list)
    received: set[Call] = field(default_factory=set)

    def write(self, order: Sequence[Action]) -> list[Call]:
        for step in steps(order):
            for action in step:
                self._receive(action)
            fences = self._fences(step) if self.fenced and len(step) > 1 else ([], [])
            self.calls += [*fences[0], *(Call(action.task, action.microbatch) for action in step), *fences[1]]
            for action in step:
                self.calls += [send for _, _, send, _ in _outgoing(action, self.placement)]
        return self.calls

    def _receive(self, action: Action) -> None:
        """Receive what an action needs from another rank, and what its sender sent before."""
        place, stage = self.placement, action.stage
        if action.kind == "F" and not place.is_first(stage):
            self._take(Call(f"recv_forward.{stage}", action.microbatch), stage - 1, place.hop(stage - 1), "forward")
        if action.kind in "BI" and not place.is_last(stage):
            self._take(Call(f"recv_backward.{stage}", action.microbatch), stage + 1, place.hop(stage), "backward")

    def _take(self, wanted: Call, sender: int, hop: int, direction: str) -> None:
        if not hop:
            return
        queue = self.incoming[self.placement.ranks[sender], hop, direction]
        while wanted not in self.received:
            call = queue.popleft()
            self.received.add(call)
            self.calls.append(call)

    def _fences(self, step: tuple[Action, ...]) -> tuple[list[Call], list[Call]]:
        """Return what makes a forward wait for its backward's gradient, and its output for the backward's end."""
        forward, backward = step
        begin = [] if self.placement.is_last(backward.stage) else [backward]
        end = [] if self.placement.is_last(forward.stage) else [forward]
        return (
            [Call(f"overlap_begin.{a.stage}", a.microbatch) for a in begin],
            [Call(f"overlap_end.{a.stage}", a.microbatch) for a in end],
        )
