"""The memory of an executed rank: the storage of its real tensors, counted in issue order."""

from collections.abc import Mapping
from dataclasses import dataclass

from backends.torch.schedule import InstanceKey, Slot
from costmodels.memory import allocated_bytes
from sim.plan.buffer import Kind, Scope
from sim.plan.liveness import lifetimes
from sim.plan.program import Program


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The most bytes that lived at once, and what they were for, each tensor rounded as the allocator rounds it."""

    peak_bytes: int
    by_kind_bytes: Mapping[str, int]


def memory_peak(program: Program, slots: Mapping[InstanceKey, Slot]) -> MemoryPeak:
    """Return the peak of one executed step.

    Births and deaths are those of ``sim.plan.liveness``; sizes are those of the storages that the tensors
    really had. Issue order is the order in which an asynchronous device's allocator sees the ops.
    """
    live = dict.fromkeys((str(kind) for kind in Kind), 0)
    for (name, _), slot in slots.items():
        if program.buffers[name].scope is Scope.PERSISTENT:
            live[slot.buffer.kind] += allocated_bytes(slot.num_bytes)
    total = sum(live.values())
    peak = MemoryPeak(total, dict(live))
    for call, life in zip(program.calls, lifetimes(program), strict=True):
        events = sorted([(op, 0, name) for op, name in life.births] + [(op, 1, name) for op, name in life.deaths])
        for position, (op, is_death, name) in enumerate(events):
            buffer = program.buffers[name]
            slot = slots[name, call.microbatch if buffer.scope is Scope.MICROBATCH else None]
            change = allocated_bytes(slot.num_bytes) * (-1 if is_death else 1)
            live[buffer.kind] += change
            total += change
            last_birth = position + 1 == len(events) or events[position + 1][:2] != (op, 0)
            if not is_death and last_birth and total > peak.peak_bytes:
                peak = MemoryPeak(total, dict(live))
    return peak
