"""The measurements of a plan that ran with torch: the classes behind an execution's summary.json."""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Struct

from scenarios.summaries.as_json import ABSENT, INLINE

EXECUTION_SCHEMA: Final = "meshtwin.execution/1"


class ExecutedRole(Struct, frozen=True, kw_only=True):
    """The ranks of a role, the peak memory of its first rank, and the simulated peak."""

    role: str
    num_ranks: int
    peak_memory_bytes: int
    simulated_peak_memory_bytes: int
    memory_by_kind_bytes: Mapping[str, int]
    peak_host_memory_bytes: int


class ExecutedWork(Struct, frozen=True, kw_only=True):
    """Whether the ops, their order on each stream and their bytes equal the simulated ones, and the differences."""

    ops: int
    same_work: bool
    mismatches: Mapping[str, int]


class CheckedNumbers(Struct, frozen=True, kw_only=True):
    """The deviation of tensors from those of a dense autograd run.

    ``max_relative_error``: that of the worst tensor, None if it is no finite number.
    """

    check_passed: bool
    checked_tensors: int
    worst_tensor: str
    max_relative_error: float | None
    tolerance: float


class ExecutedPlacedStep(Struct, frozen=True, kw_only=True):
    """One of the steps in which a policy moves experts; see ``PlacedStep``."""

    iteration_time_s: float
    simulated_iteration_time_s: float
    num_copies: int
    num_arriving: int
    num_changes: int


class ExecutedPlacement(Struct, frozen=True, kw_only=True):
    """The steps in which a policy moves experts, each beside its simulation under the same policy.

    ``same_decisions``: the policy decided alike in all steps. ``same_work``: every rank has as many ops of each kind,
    and sent as many bytes, in all steps.
    """

    policy: str
    same_decisions: bool
    same_work: bool
    steps: tuple[ExecutedPlacedStep, ...]


class ExecutionSummary(Struct, frozen=True, kw_only=True):
    """The result of an execution, beside the simulation of the same plan.

    ``iteration_times_s``: of all steps that count, in their order; ``iteration_time_s`` is that of the median step.
    ``simulated_iteration_time_median_s``: of the drawn runs that the interval is of; in these, ranks wait for each
    other. None where nothing is drawn.
    ``collectives``: the algorithm of each kind, or ``native``.
    ``num_cores``: cores of this machine, which the ranks share; None on GPUs.
    ``profile_basis``: the source of the simulated times (see ``Resolved``).
    ``placement``: None unless a policy moves experts; times, roles and work are then those of the last step, memory and
    numbers are compared in all steps.
    ``work`` and ``check``: None if nothing was compared; in JSON their keys stand among the others.
    """

    schema: str = EXECUTION_SCHEMA
    scenario: str
    seed: int
    algorithm: str
    world_size: int
    iteration_time_s: float
    iteration_times_s: tuple[float, ...]
    simulated_iteration_time_s: float
    simulated_iteration_time_median_s: float | None
    simulated_iteration_time_interval_s: tuple[float, float] | None
    roles: tuple[ExecutedRole, ...]
    same_peak_memory: bool
    collectives: str | Mapping[str, str]
    num_cores: Annotated[int | None, ABSENT] = None
    profile_basis: Annotated[str | None, ABSENT] = None
    placement: Annotated[ExecutedPlacement | None, ABSENT] = None
    work: Annotated[ExecutedWork | None, INLINE] = None
    check: Annotated[CheckedNumbers | None, INLINE] = None
    passed: bool
