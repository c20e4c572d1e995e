"""What is asked for after every run of a plan and follows from the plan alone: memory, and the purpose of each op."""

from collections.abc import Sequence

from msgspec import Struct, field

from sim.engine.running.memory import KnownMemory, MemoryUse, memory_use
from sim.plan.facts.work_shares import TaskShares, work_shares
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Plan, Program


class PlanFacts(Struct, eq=False):
    """Facts of one plan and of its shorter forms, each found once. Runs of the plan under several prices share them."""

    _memory: dict[tuple[int, Tier], tuple[Program, MemoryUse]] = {}
    _known: KnownMemory = field(default_factory=KnownMemory)
    _shares: dict[tuple[int, tuple[str, ...]], tuple[Plan, tuple[TaskShares, ...]]] = {}

    def memory_of(self, program: Program, tier: Tier) -> MemoryUse:
        """Return the memory of a rank that runs a program, in one tier."""
        key = (id(program), tier)
        if key not in self._memory:
            self._memory[key] = (
                program,
                memory_use(program, tier, self._known),
            )  # kept, so that no other gets its identity
        return self._memory[key][1]

    def work_shares(self, plan: Plan, sample_axes: Sequence[str]) -> tuple[TaskShares, ...]:
        """Return the purposes of the ops of every program of a plan (see ``sim.plan.facts.work_shares``)."""
        key = (id(plan), tuple(sample_axes))
        if key not in self._shares:
            self._shares[key] = plan, work_shares(plan, sample_axes)
        return self._shares[key][1]
