"""What is asked for after every run of a plan and follows from it alone: memory, and each op's purpose and stream."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from sim.engine.compiling.tables import MAIN_STREAM
from sim.engine.running.memory import KnownMemory, MemoryUse, memory_use, peak_live_chunks
from sim.plan.facts.work_shares import TaskShares, WorkShares, work_shares
from sim.plan.words.buffer import Tier
from sim.plan.words.op import Collective, Op
from sim.plan.words.program import Plan, Program, Task

StreamOps = Mapping[str, NDArray[np.int64]]
"""By stream that ops of a task count for: their places in the task."""


class PlanFacts(Struct, eq=False):
    """Facts of one plan and of its shorter forms, each found once. Runs of the plan under several prices share them."""

    _memory: dict[tuple[int, int, int, Tier], tuple[Program, MemoryUse]] = {}
    _known: KnownMemory = field(default_factory=KnownMemory)
    _live: dict[tuple[int, int], tuple[Program, int]] = {}
    _shares: dict[tuple[int, tuple[str, ...]], tuple[Plan, tuple[TaskShares, ...]]] = {}
    _streams: dict[int, tuple[tuple[Op, ...], StreamOps]] = {}
    _purposes: dict[int, tuple[tuple[WorkShares, ...], NDArray[np.float64]]] = {}

    def memory_of(self, program: Program, tier: Tier) -> MemoryUse:
        """Return the memory of a rank that runs a program, in one tier; programs that share all they hold have one."""
        key = (id(program.buffers), id(program.tasks), id(program.calls), tier)
        if key not in self._memory:  # kept with the program, so that no others get their identities
            self._memory[key] = program, memory_use(program, tier, self._known)
        return self._memory[key][1]

    def peak_live_chunks(self, program: Program) -> int:
        """Return the most chunks in flight on a rank that runs a program (see ``peak_live_chunks``)."""
        key = (id(program.tasks), id(program.calls))
        if key not in self._live:
            self._live[key] = program, peak_live_chunks(program)
        return self._live[key][1]

    def work_shares(self, plan: Plan, sample_axes: Sequence[str]) -> tuple[TaskShares, ...]:
        """Return the purposes of the ops of every program of a plan (see ``sim.plan.facts.work_shares``)."""
        key = (id(plan), tuple(sample_axes))
        if key not in self._shares:
            self._shares[key] = plan, work_shares(plan, sample_axes)
        return self._shares[key][1]

    def by_stream(self, task: Task) -> StreamOps:
        """Return the ops of a task by the stream that they count for; many ranks call one task."""
        if id(task.ops) not in self._streams:
            self._streams[id(task.ops)] = task.ops, _by_stream(task.ops)
        return self._streams[id(task.ops)][1]

    def purposes(self, task: Task, shares: tuple[WorkShares, ...]) -> NDArray[np.float64]:
        """Return the shares of a task's ops on the main stream: ops x fields. ``shares``: of all its ops."""
        if id(shares) not in self._purposes:
            of_ops = [shares[op] for op in self.by_stream(task)[MAIN_STREAM].tolist()]
            self._purposes[id(shares)] = shares, np.array(of_ops)
        return self._purposes[id(shares)][1]


def counted_stream(op: Op) -> str:
    """Return the stream that an op counts for: communication that holds up computing is communication of its axes."""
    return op.axes[0] if isinstance(op, Collective) and op.stream == MAIN_STREAM else op.stream


def _by_stream(ops: Sequence[Op]) -> StreamOps:
    found: dict[str, list[int]] = {}
    for j, op in enumerate(ops):
        found.setdefault(counted_stream(op), []).append(j)
    return {stream: np.array(places, np.int64) for stream, places in found.items()}
