"""The order of local updates on a rank, messages included.

A rank holds v consecutive blocks. Per micro-batch it runs all of them forward, sends the last block's output on, and
runs the heads and backwards of its blocks, the last block first. With greedy updates no message comes back from later
ranks, so no rank waits for them. With overlapping updates one message comes back: the gradient of the next block's own
loss for this block's output. A rank's last block waits for that message, and runs its backward of a micro-batch after
the next micro-batch's forward.
"""

from collections.abc import Iterator, Sequence

from sim.plan.words.calls import Calls
from sim.plan.words.program import Call
from sim.training.spec.method import LocalUpdate


def local_calls(stages: Sequence[int], num_stages: int, num_microbatches: int, update: LocalUpdate) -> Calls:
    """Return the calls of a rank that holds ``stages``, consecutive ones of ``num_stages`` stages."""
    if update == "greedy":
        return Calls.of(call for i in range(num_microbatches) for call in _greedy(stages, num_stages, i))
    calls: list[Call] = []
    waits = stages[-1] < num_stages - 1
    for i in range(num_microbatches):
        calls += _overlapping(stages, num_stages, i)
        if waits and i:
            calls += _awaited(stages[-1], i - 1)
    return Calls.joined(calls, _awaited(stages[-1], num_microbatches - 1) if waits else [])


def _greedy(stages: Sequence[int], num_stages: int, microbatch: int) -> Iterator[Call]:
    yield from _forwards(stages, num_stages, microbatch)
    for stage in reversed(stages):
        yield Call(f"head.{stage}", microbatch)
        yield Call(f"backward.{stage}", microbatch)


def _overlapping(stages: Sequence[int], num_stages: int, microbatch: int) -> Iterator[Call]:
    """Yield a rank's calls for a micro-batch that need no message from the next rank."""
    yield from _forwards(stages, num_stages, microbatch)
    for stage in reversed(stages):
        yield Call(f"head.{stage}", microbatch)
        if stage and stage < num_stages - 1:
            yield Call(f"backward_input.{stage}", microbatch)
        if stage < stages[-1] or stage == num_stages - 1:
            yield Call(f"backward.{stage}", microbatch)
    if stages[0]:
        yield Call(f"send_backward.{stages[0]}", microbatch)


def _awaited(stage: int, microbatch: int) -> list[Call]:
    return [Call(f"recv_backward.{stage}", microbatch), Call(f"backward.{stage}", microbatch)]


def _forwards(stages: Sequence[int], num_stages: int, microbatch: int) -> Iterator[Call]:
    if stages[0]:
        yield Call(f"recv_forward.{stages[0]}", microbatch)
    yield from (Call(f"forward.{stage}", microbatch) for stage in stages)
    if stages[-1] < num_stages - 1:
        yield Call(f"send_forward.{stages[-1]}", microbatch)
