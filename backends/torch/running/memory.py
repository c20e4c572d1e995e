"""The memory of an executed rank: the storage of its real tensors, counted in issue order."""

from collections.abc import Mapping

from backends.execution.result import InstanceKey, MemoryAccount
from backends.torch.running.schedule import Slot
from costmodels.memory import allocated_bytes
from sim.plan.facts.liveness import lifetimes
from sim.plan.words.buffer import Kind, Scope, Tier
from sim.plan.words.program import Program


def account_memory(program: Program, slots: Mapping[InstanceKey, Slot], tier: Tier = Tier.DEVICE) -> MemoryAccount:
    """Return the account of one tier in one executed step.

    Births and deaths of buffers follow ``sim.plan.facts.liveness``. Sizes are those of the tensors' real storages.
    Issue order is the order in which an asynchronous device's allocator sees the ops.
    """
    live = dict.fromkeys((str(kind) for kind in Kind), 0)
    for slot in slots.values():
        if slot.buffer.scope is Scope.PERSISTENT and slot.buffer.tier is tier:
            live[slot.buffer.kind] += allocated_bytes(slot.num_bytes)
    if all(slot.buffer.tier is not tier for slot in slots.values()):
        return _nothing(live, len(program.calls))
    total = peak = sum(live.values())
    at_peak = dict(live)
    before: list[int] = []
    most: list[int] = []
    most_at: list[int] = []
    for call, life in zip(program.calls, lifetimes(program), strict=True):
        before.append(total)
        most.append(total)
        most_at.append(0)
        for op, is_death, name in sorted([(op, 0, n) for op, n in life.births] + [(op, 1, n) for op, n in life.deaths]):
            buffer = program.buffers[name]
            if buffer.tier is not tier:
                continue
            slot = slots[name, call.microbatch if buffer.scope is Scope.MICROBATCH else None]
            change = allocated_bytes(slot.num_bytes) * (-1 if is_death else 1)
            live[buffer.kind] += change
            total += change
            if total > most[-1]:
                most[-1], most_at[-1] = total, op
            if total > peak:
                peak, at_peak = total, dict(live)
    return MemoryAccount(peak, at_peak, before, most, most_at, total)


def _nothing(none_by_kind: Mapping[str, int], num_calls: int) -> MemoryAccount:
    """Return the account of a tier in which a rank has nothing."""
    zeros = [0] * num_calls
    return MemoryAccount(0, none_by_kind, zeros, zeros, zeros, 0)
