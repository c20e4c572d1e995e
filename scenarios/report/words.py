"""The answers of a summary in words, for terminals and pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from costmodels.units import format_bytes, format_change, format_percent, format_time
from scenarios.report.causes import COMPUTATION, cause_of
from scenarios.summaries.steps.mean_rank import RECOMPUTED, mean_computing_s, mean_exposed_s
from scenarios.summaries.steps.role_names import fullest_row, row_name
from scenarios.summaries.steps.step import HostMemory, LinksSummary, OperatorSharding, StepSummary

_MOST_RUNS: Final = 12
_ROUNDING: Final = 1e-9
"""Sums of times are exact to about this part of a step."""
_LEAST_SHARE: Final = 0.01
"""Kinds of op with a smaller share of the critical path are not named."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A loss, its fraction of the step, and overrides against it.

    ``fits_memory``: the scenario fits with them; ``gain``: the fraction that they add to its throughput, None where
    that was not simulated.
    """

    loss: str
    fraction: float
    overrides: tuple[str, ...]
    fits_memory: bool
    gain: float | None = None

    @property
    def aim(self) -> str:
        """Return the loss to reduce, with its fraction of the step."""
        return self.loss if self.loss == "memory" else f"{self.loss} ({format_percent(self.fraction)} of the step)"

    @property
    def options(self) -> str:
        """Return the overrides as command line options."""
        return " ".join(f"--set {override}" for override in self.overrides)

    @property
    def effect(self) -> str:
        """Return the effect of the overrides; empty if it is not known."""
        if not self.fits_memory:
            return "not enough alone"
        return "" if self.gain is None else f"throughput {format_change(self.gain)}"


def spread_words(interval: Sequence[float] | None) -> str:
    """Return the 90 % interval of the step time, empty if it is not known."""
    return f"90 %: {format_time(interval[0])} to {format_time(interval[1])}" if interval else ""


def memory_words(summary: StepSummary) -> str:
    """Return the fullest role's peak of its device's capacity; nothing for textbook workloads, which hold nothing."""
    fullest, capacity = fullest_row(summary)
    if not capacity:
        return ""
    of = f"{format_bytes(fullest.peak_memory_bytes)} of {format_bytes(capacity)}"
    return f"{of} on {row_name(summary.roles, fullest, 'every rank')}"


def detail_rows(summary: StepSummary) -> list[tuple[str, str]]:
    """Return what else decides the step, each with its name: host memory, sharding, the busiest link, the critical
    path, slices, and whether ranks share the sequence where the scenario leaves that open.
    """
    rows = []
    if summary.host_memory is not None:
        rows.append(("host memory", host_memory_words(summary.host_memory)))
    if summary.osdp is not None:
        rows.append(("sharded", sharded_words(summary.osdp)))
    if summary.links:
        rows.append(("busiest link", link_words(summary.links[0])))
    if len(summary.critical_path_s) > 1:
        rows.append(("critical path", path_words(summary.critical_path_s)))
    if summary.token_slices is not None:
        rows.append(("token slices", slices_words(summary.token_slices)))
    if summary.sequence_parallel is not None:
        rows.append(("sequence parallel", "true (auto)" if summary.sequence_parallel else "false (auto)"))
    return rows


def host_memory_words(host: HostMemory) -> str:
    """Return the use of a node's own memory by its ranks."""
    verdict = "fits" if host.fits else "does not fit"
    return f"{format_bytes(host.peak_bytes)} of {format_bytes(host.capacity_bytes)} on every node: {verdict}"


def path_words(seconds: Mapping[str, float]) -> str:
    """Return the parts of the critical path, the largest first."""
    total_s = sum(seconds.values())
    named = [(kind, part_s / total_s) for kind, part_s in seconds.items() if part_s >= _LEAST_SHARE * total_s]
    return ", ".join(f"{format_percent(share)} {kind}" for kind, share in named) or "-"


def link_words(busiest_kind: LinksSummary) -> str:
    """Return the fullest link, the number of equal links, and how full it is."""
    link = busiest_kind.busiest
    others = f" and {link.count - 1:,} like it" if link.count > 1 else ""
    kind = "" if f" {busiest_kind.kind} " in f" {link.link} " else f" ({busiest_kind.kind})"
    full = f"{format_percent(link.busy_fraction)} of the step, at its peak {format_percent(link.peak_fraction)}"
    return f"{full}: {link.link}{others}{kind}"


def sharded_words(osdp: OperatorSharding) -> str:
    """Return how many operators are sharded, and of which kinds: those of all layers together."""
    kinds: dict[str, int] = {}
    for row in osdp.sharded:
        kind, z, g = row.operator.rpartition("layer")[2].lstrip("0123456789."), row.num_sharded, row.num_slices
        part = "" if g == 1 else f" ({g} slices)" if z == g else f" ({z} of {g} slices)"
        kinds[kind + part] = kinds.get(kind + part, 0) + 1
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    total = f"{len(osdp.sharded)} of {osdp.num_operators} operators"
    return f"{total} within {format_bytes(osdp.memory_limit_bytes)}" + (f": {named}" if named else "")


def slices_words(slices: Sequence[int]) -> str:
    """Return the lengths of slices in tokens, equal ones that follow each other together: ``4 x 120, 64``."""
    runs = [(length, len(list(same))) for length, same in groupby(slices)]
    shown = [f"{length}" if count == 1 else f"{count} x {length}" for length, count in runs[:_MOST_RUNS]]
    return f"{len(slices)}: " + ", ".join(shown + ["..."] * (len(runs) > _MOST_RUNS))


def time_parts(summary: StepSummary) -> list[tuple[tuple[str, str], float]]:
    """Return the parts of the mean rank's step: words and colour, and seconds; computing first, then waiting.

    What a rank idles beyond that is not among them, so they add up to the step or less.
    """
    waiting: dict[tuple[str, str], float] = {}
    for stream, part_s in mean_exposed_s(summary.roles).items():
        waiting[cause_of(stream)] = waiting.get(cause_of(stream), 0.0) + part_s
    computing = mean_computing_s(summary.roles)
    parts = [(COMPUTATION[purpose], seconds) for purpose, seconds in computing.items()]
    parts += sorted(waiting.items(), key=lambda item: (-item[1], item[0]))
    return [(cause, seconds) for cause, seconds in parts if seconds > _ROUNDING * summary.iteration_time_s]


def recompute_fraction(summary: StepSummary) -> float:
    """Return the fraction of the step that the mean rank spends on computing again."""
    again_s = mean_computing_s(summary.roles).get(RECOMPUTED, 0.0)
    return again_s / summary.iteration_time_s
