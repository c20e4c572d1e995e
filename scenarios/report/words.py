"""The answers of a summary in words, for terminals and pages."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from costmodels.units import format_bytes, format_percent, format_price, format_time
from scenarios.report.causes import COMPUTATION, cause_of
from scenarios.summaries.steps.goal import Goal
from scenarios.summaries.steps.mean_rank import mean_computing_s, mean_exposed_s
from scenarios.summaries.steps.resolved import Resolved
from scenarios.summaries.steps.role_names import fullest_row, row_name
from scenarios.summaries.steps.routing import RoutingSummary
from scenarios.summaries.steps.step import (
    AllocatorUse,
    HostMemory,
    LinksSummary,
    LockFreeUpdate,
    OperatorSharding,
    StepSummary,
)

_COUNTS: Final = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_STATED: Final = "model.sequence_length"
_BASES: Final = {
    "measured": "fitted to measurements",
    "assumed": "uncalibrated, orders of magnitude only",
    "roofline": "roofline only, no kernel of this device was measured",
}
_MOST_RUNS: Final = 12
_ROUNDING: Final = 1e-9
"""Relative rounding error of sums of times, as a part of the step."""
_LEAST_SHARE: Final = 0.01
"""Kinds of op below this share of the critical path are not named."""


def spread_words(interval: Sequence[float] | None) -> str:
    """Return the 90 % interval of the step time, empty if it is not known."""
    return f"90 %: {format_time(interval[0])} to {format_time(interval[1])}" if interval else ""


def memory_words(summary: StepSummary) -> str:
    """Return the fullest role's peak and its device's capacity; empty for textbook workloads, which hold no memory."""
    fullest, capacity = fullest_row(summary)
    if not capacity:
        return ""
    of = f"{format_bytes(fullest.peak_memory_bytes)} of {format_bytes(capacity)}"
    return f"{of} on {row_name(summary.roles, fullest, 'every rank')}"


def room_words(summary: StepSummary) -> str:
    """Return the free, or missing, memory of the fullest role beside the reserve; empty if unknown."""
    fullest, capacity = fullest_row(summary)
    if not capacity or summary.memory_reserve_bytes is None or summary.fits_memory is None:
        return ""
    room = capacity - summary.memory_reserve_bytes - fullest.peak_memory_bytes
    if room >= 0 and not summary.fits_memory:
        return ""
    reserve = f", {format_bytes(summary.memory_reserve_bytes)} reserved" if summary.memory_reserve_bytes else ""
    return f", {format_bytes(abs(room))} {'to spare' if room >= 0 else 'too much'}{reserve}"


def detail_rows(summary: StepSummary) -> list[tuple[str, str]]:
    """Return further facts about the step, each with its name.

    Host memory, sharding, fullest link, critical path, slices.
    """
    rows = []
    if summary.allocator is not None:
        rows.append(("allocator", allocator_words(summary.allocator)))
    if summary.lock_free is not None:
        rows.append(("lock-free", lock_free_words(summary.lock_free)))
    if summary.host_memory is not None:
        rows.append(("host memory", host_memory_words(summary.host_memory)))
    if summary.storage is not None:
        rows.append(("drives", host_memory_words(summary.storage)))
    if summary.osdp is not None:
        rows.append(("sharded", sharded_words(summary.osdp)))
    if summary.links:
        rows.append(("fullest link", link_words(max(summary.links, key=lambda kind: kind.busiest.peak_fraction))))
    if len(summary.critical_path_s) > 1:
        rows.append(("critical path", path_words(summary.critical_path_s)))
    if summary.routing is not None:
        rows.append(("experts", routing_words(summary.routing)))
    if summary.token_slices is not None:
        rows.append(("token slices", slices_words(summary.token_slices)))
    if summary.resolved is not None:
        rows += resolved_rows(summary.resolved, summary.seed)
    if summary.goal is not None:
        rows.append(("goal", goal_words(summary.goal)))
    return rows


def allocator_words(use: AllocatorUse) -> str:
    """Return what an allocator reserves for its tensors."""
    held, live = format_bytes(use.reserved_bytes), format_bytes(use.live_bytes)
    return f"{use.name} reserves {held} for at most {live}: {format_percent(use.fragmentation)} stays empty"


def lock_free_words(found: LockFreeUpdate) -> str:
    """Return what an update of its own pace makes of a step."""
    times = f"{format_time(found.iteration_time_s)} per step, {format_time(found.synchronous_s)} if steps wait"
    return f"{times}; an update applies up to {found.most_gradients_per_update:,} steps' gradients"


def waiting_words(routing: RoutingSummary) -> str:
    """Return what share of the step ranks wait for others with busier experts, or that none is simulated that does."""
    if routing.waiting_fraction is None:
        return "all ranks are simulated as the busiest"
    return f"waiting for ranks with busier experts is {format_percent(routing.waiting_fraction)} of the step"


def routing_words(routing: RoutingSummary) -> str:
    """Return how unevenly experts and ranks are loaded, and what share of the step that is."""
    parts = [
        f"the busiest of a layer has {routing.expert_max_over_mean:.2f} times the mean load, "
        f"the busiest rank {routing.rank_max_over_mean:.2f} times",
        waiting_words(routing),
    ]
    if routing.kept_fraction < 1.0:
        parts.append(f"{format_percent(1.0 - routing.kept_fraction)} of choices dropped")
    return "; ".join(parts)


def resolved_rows(resolved: Resolved, seed: int) -> list[tuple[str, str]]:
    """Return the inputs of a result: strategy, model, and the source of its efficiencies."""
    parts = [f"{name} {degree}" for name, degree in resolved.degrees.items() if degree > 1]
    if resolved.sequence_parallel:
        parts[0] += " with sequence parallelism"
    elif resolved.tensor_mesh:
        parts[0] += f" ({resolved.tensor_method}, mesh {' x '.join(map(str, resolved.tensor_mesh))})"
    degrees = " x ".join(parts) or "one device"
    nodes = ", ".join(f"{count:,} {name}" for name, count in resolved.nodes.items())
    batches = f"{resolved.num_microbatches:,} micro-batches of {resolved.microbatch_size}"
    stated = resolved.sequence_length_from == _STATED
    length = f"sequences of {resolved.sequence_length:,} tokens" + (
        "" if stated else f" ({resolved.sequence_length_from})"
    )
    tokens = f"{counted(resolved.tokens_per_step)} tokens a step"
    size = f"{counted(resolved.num_parameters)} parameters, {length}, {tokens}"
    return [
        ("strategy", f"{degrees} on {nodes}; {batches}"),
        ("model", size),
        ("profile", f"{resolved.profile}: {_BASES[resolved.profile_basis]}; seed {seed}, meshtwin {resolved.version}"),
    ]


def goal_words(goal: Goal) -> str:
    """Return the time for a number of tokens, and its cost."""
    words = f"{counted(goal.tokens)} tokens in {format_time(goal.time_s)}"
    if goal.time_interval_s is not None:
        words += f" (90 %: {' to '.join(map(format_time, goal.time_interval_s))})"
    words += f": {counted(goal.num_steps)} steps"
    if goal.elapsed_s is not None:
        words += f"; {format_time(goal.elapsed_s)} with interruptions"
    if goal.cost_usd is not None and goal.device_price_usd_per_s is not None:
        words += f"; {counted(goal.cost_usd)} USD at {format_price(goal.device_price_usd_per_s)} per device"
    return words


def counted(number: float) -> str:
    """Return a number with four digits and a word: ``17.41 billion``; below a million all its digits."""
    for factor, word in _COUNTS:
        if number >= factor:
            return f"{number / factor:.4g} {word}"
    return f"{number:,.0f}"


def host_memory_words(host: HostMemory) -> str:
    """Return the use of a node's own memory, or of its drives, by its ranks."""
    verdict = "fits" if host.fits else "does not fit"
    return f"{format_bytes(host.peak_bytes)} of {format_bytes(host.capacity_bytes)} on every node: {verdict}"


def path_words(seconds: Mapping[str, float]) -> str:
    """Return the parts of the critical path, the largest first."""
    total_s = sum(seconds.values())
    named = [(kind, part_s / total_s) for kind, part_s in seconds.items() if part_s >= _LEAST_SHARE * total_s]
    return ", ".join(f"{format_percent(share)} {kind}" for kind, share in named) or "-"


def link_words(busiest_kind: LinksSummary) -> str:
    """Return the fullest link, the number of equal links, and its utilisation."""
    link = busiest_kind.busiest
    others = f" and {link.count - 1:,} like it" if link.count > 1 else ""
    kind = "" if f" {busiest_kind.kind} " in f" {link.link} " else f" ({busiest_kind.kind})"
    full = f"{format_percent(link.peak_fraction)} at its peak, {format_percent(link.busy_fraction)} of the step"
    return f"{full}: {link.link}{others}{kind}"


def sharded_words(osdp: OperatorSharding) -> str:
    """Return the number of sharded operators and their kinds, summed over layers."""
    kinds: dict[str, int] = {}
    for row in osdp.sharded:
        kind, z, g = row.operator.rpartition("layer")[2].lstrip("0123456789."), row.num_sharded, row.num_slices
        part = "" if g == 1 else f" ({g} slices)" if z == g else f" ({z} of {g} slices)"
        kinds[kind + part] = kinds.get(kind + part, 0) + 1
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    total = f"{len(osdp.sharded)} of {osdp.num_operators} operators"
    total += "" if osdp.memory_limit_bytes is None else f" within {format_bytes(osdp.memory_limit_bytes)}"
    return total + (f": {named}" if named else "")


def slices_words(slices: Sequence[int]) -> str:
    """Return the lengths of slices in tokens, with runs of equal ones combined: ``4 x 120, 64``."""
    runs = [(length, len(list(same))) for length, same in groupby(slices)]
    shown = [f"{length}" if count == 1 else f"{count} x {length}" for length, count in runs[:_MOST_RUNS]]
    return f"{len(slices)}: " + ", ".join(shown + ["..."] * (len(runs) > _MOST_RUNS))


def time_parts(summary: StepSummary) -> list[tuple[tuple[str, str], float]]:
    """Return the parts of the mean rank's step: words and colour, and seconds; computing first, then waiting.

    Further idle time is not included, so the parts add up to the step or less.
    """
    waiting: dict[tuple[str, str], float] = {}
    for stream, part_s in mean_exposed_s(summary.roles).items():
        waiting[cause_of(stream)] = waiting.get(cause_of(stream), 0.0) + part_s
    computing = mean_computing_s(summary.roles)
    parts = [(COMPUTATION[purpose], seconds) for purpose, seconds in computing.items()]
    parts += sorted(waiting.items(), key=lambda item: (-item[1], item[0]))
    return [(cause, seconds) for cause, seconds in parts if seconds > _ROUNDING * summary.iteration_time_s]
