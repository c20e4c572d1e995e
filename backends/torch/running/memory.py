"""The memory of an executed rank: the storage of its real tensors, counted in issue order."""

from collections.abc import Mapping

from backends.execution.result import InstanceKey, MemoryAccount
from backends.torch.running.schedule import Slot
from costmodels.memory import allocated_bytes
from sim.plan.facts.liveness import CallLife, Lifetimes, lifetimes
from sim.plan.words.buffer import Buffer, Kind, Scope, Tier
from sim.plan.words.program import Program


def account_memory(
    program: Program, slots: Mapping[InstanceKey, Slot], tier: Tier = Tier.DEVICE, lives: Lifetimes | None = None
) -> MemoryAccount:
    """Return the account of one tier in one executed step. ``lives``: those of the program's buffers, found before.

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
    lives = lives or lifetimes(program)
    changes = [_changes(program, life, tier) for life in lives.kinds]
    for call, kind in zip(program.calls, lives.of_call.tolist(), strict=True):
        before.append(total)
        most.append(total)
        most_at.append(0)
        for op, sign, name, buffer in changes[kind]:
            slot = slots[name, call.microbatch if buffer.scope is Scope.MICROBATCH else None]
            change = allocated_bytes(slot.num_bytes) * sign
            live[buffer.kind] += change
            total += change
            if total > most[-1]:
                most[-1], most_at[-1] = total, op
            if total > peak:
                peak, at_peak = total, dict(live)
    return MemoryAccount(peak, at_peak, before, most, most_at, total)


def _changes(program: Program, life: CallLife, tier: Tier) -> list[tuple[int, int, str, Buffer]]:
    """Return what a call changes in a tier, in order: its op, 1 for a birth and -1 for a death, and the buffer."""
    ordered = sorted([(op, 0, name) for op, name in life.births] + [(op, 1, name) for op, name in life.deaths])
    named = [(op, -1 if is_death else 1, name, program.buffers[name]) for op, is_death, name in ordered]
    return [change for change in named if change[3].tier is tier]


def _nothing(none_by_kind: Mapping[str, int], num_calls: int) -> MemoryAccount:
    """Return the account of a tier in which a rank has nothing."""
    zeros = [0] * num_calls
    return MemoryAccount(0, none_by_kind, zeros, zeros, zeros, 0)
