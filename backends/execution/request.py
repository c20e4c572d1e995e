"""A request to execute a plan with a session of real ranks. It needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from backends.execution.errors import ExecutionError
from costmodels.collectives import STEP_LISTS
from sim.plan.words.program import Plan
from sim.plan.words.steps import longest_lag
from sim.training.spec.job import DenseTraining

DeviceKind = Literal["cpu", "cuda"]
Timing = Literal["op", "step"]
MOST_COUNTED_STEPS: Final = 9
"""Largest number of steps whose times a rank keeps, to choose the median: a time per op each."""


@dataclass(frozen=True, slots=True)
class ExplicitCollectives:
    """Run collectives as step lists over messages.

    ``algorithms``: by kind; a kind that is left out follows its first step list (rings; all_to_all: direct; barrier:
    dissemination). ``devices_per_node``: ranks of one node, which hierarchical algorithms look at; None: one node.
    """

    algorithms: Mapping[str, str] = field(default_factory=dict)
    devices_per_node: int | None = None

    def algorithm(self, kind: str) -> str:
        """Return the algorithm that collectives of a kind follow."""
        return self.algorithms.get(kind) or next(iter(STEP_LISTS[kind]))

    def node_of(self, rank: int) -> int:
        """Return the node that a rank lies on."""
        return rank // self.devices_per_node if self.devices_per_node else 0


@dataclass(frozen=True, slots=True)
class Continuation:
    """The position of a plan in its session. ``plans``, ``steps``: the numbers run before it."""

    plans: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """A plan to run. ``check_against``: the training that it must reproduce, None for no check.

    ``mute``: names of ops that communicate nothing (to prove that the check notices). ``keep``: buffers whose last
    values come back with the result. ``iterations``: the number of steps. After them a plan with deferred calls is
    drained; memory, check and values are those of the last step, times those of the median among the steps that count
    (see ``counted_steps``). ``timing``: of every op, or of the step alone.
    ``explicit``: run collectives as step lists over messages; None: use the library's own. ``after``: the residents
    before a step of a session; None: a run of its own, which starts from initial values and leaves nothing.
    """

    plan: Plan
    check_against: DenseTraining | None = None
    mute: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    iterations: int = 1
    timing: Timing = "op"
    explicit: ExplicitCollectives | None = None
    after: Continuation | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ExecutionError(f"a run needs at least one iteration, got {self.iterations}")
        if self.iterations <= self.longest_lag:
            raise ExecutionError(f"a step that completes the one before needs two iterations, got {self.iterations}")

    @property
    def counted_steps(self) -> int:
        """Return how many of the last steps count for times: the first warms up, or has no earlier one to complete."""
        return min(max(self.iterations - max(self.longest_lag, 1), 1), MOST_COUNTED_STEPS)

    @property
    def longest_lag(self) -> int:
        """Return how many steps back calls of the plan belong."""
        return max(longest_lag(program) for program in self.plan.programs)
