"""The table of roles, which a terminal shows in place of the charts."""

from collections.abc import Sequence
from typing import Final

from costmodels.units import format_bytes, format_percent
from scenarios.report.blocks import Table
from scenarios.summaries.steps.role_names import row_names
from scenarios.summaries.steps.step import RoleSummary, StepSummary
from sim.plan.words.stream import Purpose

MAX_ROLES: Final = 10


def role_table(summary: StepSummary) -> Table:
    """Return one row per role; of many roles the first, the last and the fullest."""
    roles, total = list(summary.roles), summary.iteration_time_s
    rows = [
        (
            name,
            f"{role.num_ranks:,}",
            format_bytes(role.peak_memory_bytes) if summary.memory_capacity_bytes else "-",
            f"{role.peak_live_microbatches:g}",
            format_percent(role.busy_s.get(Purpose.COMPUTE, 0.0) / total),
            format_percent(sum(role.exposed_s.values()) / total),
        )
        for name, role in _shown_roles(roles)
    ]
    caption = ""
    if len(roles) > MAX_ROLES:
        what = "roles" if len({role.role for role in roles}) == len(roles) else "classes of ranks"
        caption = f"{MAX_ROLES} of {len(roles)} {what}; all with --json"
    return Table(("role", "ranks", "peak memory", "live micro-batches", "computing", "waiting"), rows, caption=caption)


def _shown_roles(roles: Sequence[RoleSummary]) -> list[tuple[str, RoleSummary]]:
    """Return at most MAX_ROLES roles, or classes of a role's ranks, with their names, in their order."""
    named = list(zip(row_names(roles, "all"), roles, strict=True))
    if len(roles) <= MAX_ROLES:
        return named
    half = (MAX_ROLES - 1) // 2
    by_memory = sorted(range(len(roles)), key=lambda index: -roles[index].peak_memory_bytes)
    chosen = {*range(half), *range(len(roles) - half, len(roles))}
    for index in by_memory:
        if len(chosen) < MAX_ROLES:
            chosen.add(index)
    return [named[index] for index in sorted(chosen)]
