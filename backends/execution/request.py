"""A request to execute a plan with a session of real ranks. It needs no torch."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct, field

from backends.execution.errors import ExecutionError
from costmodels.collectives.catalogue import STEP_LISTS
from sim.inference.spec import InferenceJob
from sim.plan.words.program import Plan
from sim.plan.words.steps import longest_lag
from sim.training.spec.job import DenseTraining

DeviceKind = Literal["cpu", "cuda"]
Timing = Literal["op", "step"]
MOST_COUNTED_STEPS: Final = 9
"""Largest number of steps whose op times a rank keeps, to choose the median step."""


class ExplicitCollectives(Struct, frozen=True):
    """The option to run collectives as step lists over messages.

    ``algorithms``: algorithm by kind. The default of a kind is its first step list (rings; all_to_all: direct; barrier:
    dissemination). ``devices_per_node``: ranks per node, for hierarchical algorithms; None: all ranks are on one node.
    """

    algorithms: Mapping[str, str] = field(default_factory=dict)
    devices_per_node: int | None = None

    def algorithm(self, kind: str) -> str:
        """Return the algorithm of a kind of collective."""
        return self.algorithms.get(kind) or next(iter(STEP_LISTS[kind]))

    def node_of(self, rank: int) -> int:
        """Return the index of a rank's node."""
        return rank // self.devices_per_node if self.devices_per_node else 0


class Continuation(Struct, frozen=True):
    """The position of a plan in its session. ``plans``, ``steps``: numbers of plans and steps that ran before it."""

    plans: int
    steps: int


class ExecutionRequest(Struct, frozen=True, kw_only=True):
    """A request to run a plan with torch.

    ``check_against``: the training or inference that the plan must reproduce; None: no check.
    ``mute``: names of ops that communicate nothing, to prove that the check notices them.
    ``keep``: buffers whose last values are part of the result.
    ``iterations``: number of steps. A plan with deferred calls is drained after them. Memory, check and values are
    those of the last step. Times are those of the median among the counted steps (see ``counted_steps``).
    ``timing``: time every op, or only the step.
    ``explicit``: run collectives as step lists over messages; None: use the library's collectives.
    ``after``: position in a session; None: a single run, which starts from initial values and leaves no buffers.
    """

    plan: Plan
    check_against: DenseTraining | InferenceJob | None = None
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
        """Return the number of last steps whose times count. The first warms up, or completes no earlier step."""
        return min(max(self.iterations - max(self.longest_lag, 1), 1), MOST_COUNTED_STEPS)

    @property
    def longest_lag(self) -> int:
        """Return the largest lag of the plan's calls: the number of steps between a call and the step it completes."""
        return max(longest_lag(program) for program in self.plan.programs)
