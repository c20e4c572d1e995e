"""The warm-up step of Gemini's automatic placement, which measures the memory that chunks may not have.

As in Colossal-AI (colossalai/zero/gemini/placement_policy.py, AutoPlacementPolicy): in the first step gathered chunks
have a fifth of the device's memory. Before each op that reads parameters, a moment, the most memory beside chunks since
the moment before is noted. In all later steps chunks have at each moment nine tenths of the memory less what was noted
for this period and for the next one.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.memory import allocated_bytes
from sim.memory.movement import Stay
from sim.plan.facts.liveness import lifetimes
from sim.plan.functions.tracing import ProgramTracer
from sim.plan.words.buffer import Scope, Tier
from sim.plan.words.op import Op
from sim.plan.words.program import Call, Phase, Program, Task
from sim.training.data.payloads import parameter_of

WARM_UP_FRACTION: Final = 0.2
"""Of the device's memory: for gathered chunks in the first step (1 - warmup_non_model_data_ratio)."""
STEADY_FRACTION: Final = 0.9
"""Of the device's memory: for chunks and all else in later steps (steady_cuda_cap_ratio)."""


class Room(Struct, frozen=True):
    """Device memory for gathered chunks at each op of a forward and its backward, in bytes.

    ``other_bytes``: by op, what a warm-up step noted beside chunks; None: ``total_bytes`` is for chunks alone.
    """

    total_bytes: int
    other_bytes: NDArray[np.int64] | None = None

    def budgets(self, stays: Sequence[Stay], moments: Sequence[int]) -> list[int]:
        """Return the least room from the beginning of each stay until the next stay begins.

        ``moments``: the ops that read chunks, in order; every stay begins at one.
        """
        if self.other_bytes is None or not stays:
            return [self.total_bytes] * len(stays)
        noted = np.maximum.reduceat(self.other_bytes, moments)
        with_next = np.maximum(noted, np.append(noted[1:], 0))
        begins = np.searchsorted(moments, [stay.first for stay in stays])
        least: list[int] = (self.total_bytes - np.maximum.reduceat(with_next, begins)).tolist()
        return least


def passes_of(tracer: ProgramTracer) -> list[Task]:
    """Return the forward and the backward of a program, where one follows the other."""
    return [task for phase in (Phase.FORWARD, Phase.BACKWARD) for task in tracer.tasks.values() if task.phase is phase]


def noted_bytes(before: ProgramTracer, warm: ProgramTracer, chunks: Sequence[str]) -> NDArray[np.int64]:
    """Return by op of the passes ``before`` chunks were gathered in them the most memory beside chunks until the next.

    ``warm``: the same passes in the warm-up step. ``chunks``: the parameters in chunks.
    """
    known = [op for task in passes_of(before) for op in task.ops]
    noted, place = np.zeros(len(known), dtype=np.int64), 0
    for op, num_bytes in _beside(warm, frozenset(chunks)):
        if place + 1 < len(known) and op.name == known[place + 1].name:
            place += 1
        noted[place] = max(noted[place], num_bytes)
    return noted


def _beside(tracer: ProgramTracer, chunks: frozenset[str]) -> list[tuple[Op, int]]:
    """Return the ops of the passes, each with the device memory beside chunks while it runs, in issue order."""
    tasks = passes_of(tracer)
    sizes = {
        name: allocated_bytes(buffer.num_bytes)
        for name, buffer in tracer.buffers.items()
        if buffer.tier is Tier.DEVICE and parameter_of(name) not in chunks
    }
    live = sum(size for name, size in sizes.items() if tracer.buffers[name].scope is Scope.PERSISTENT)
    calls = tuple(Call(task.name, 0) for task in tasks)
    program = Program(dict(tracer.role), tracer.buffers, {task.name: task for task in tasks}, calls)
    found = []
    for task, life in zip(tasks, lifetimes(program), strict=True):
        births, deaths = dict.fromkeys(range(len(task.ops)), 0), dict.fromkeys(range(len(task.ops)), 0)
        for changes, into in ((life.births, births), (life.deaths, deaths)):
            for place, name in changes:
                into[place] += sizes.get(name, 0)
        for place, op in enumerate(task.ops):
            live += births[place]
            found.append((op, live))
            live -= deaths[place]
    return found
