"""Names of the rows of a summary: roles, and classes of ranks of a role with several classes."""

from collections import Counter
from collections.abc import Sequence

from scenarios.summaries.steps.step import RoleSummary, StepSummary


def row_names(roles: Sequence[RoleSummary], alone: str) -> list[str]:
    """Return the role of each row, with the class's first rank if the role has several classes: ``pp=0, rank 17``.

    ``alone``: the name of the role in a plan with only one.
    """
    times_seen = Counter(role.role for role in roles)
    return [
        f"{role.role}, rank {role.first_rank}".removeprefix(", ") if times_seen[role.role] > 1 else role.role or alone
        for role in roles
    ]


def row_name(roles: Sequence[RoleSummary], role: RoleSummary, alone: str) -> str:
    """Return the name of one of the rows."""
    return row_names(roles, alone)[next(index for index, other in enumerate(roles) if other is role)]


def fullest_row(summary: StepSummary) -> tuple[RoleSummary, int | None]:
    """Return the row with the largest peak relative to its device's memory, and that memory; None without devices."""
    capacity = summary.memory_capacity_bytes
    fullest = max(
        summary.roles, key=lambda role: role.peak_memory_bytes / (_own_bytes(role, capacity) or 1)
    )  # fmt: skip
    return fullest, _own_bytes(fullest, capacity)


def _own_bytes(role: RoleSummary, capacity: int | None) -> int | None:
    return role.memory_capacity_bytes or capacity
