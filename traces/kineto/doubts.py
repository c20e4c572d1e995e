"""Doubts about a profile: data that are missing, damaged, or contradictory."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Final

import numpy as np

from traces.doubt import Doubt, counted
from traces.kineto.clock import Alignment
from traces.kineto.drift import RESOLUTION_S
from traces.kineto.rank import DeviceRows, RankTrace
from traces.timeline import Floats

LARGE_RESIDUAL_S: Final = 1e-3
LARGE_OFFSET_S: Final = 60.0
"""Clock offset beyond which the files are probably of two runs."""
LARGE_SPAN_RATIO: Final = 10.0
MAX_NAMED: Final = 8


def left_out(ranks: Sequence[RankTrace]) -> list[Doubt]:
    """Return the number of unusable events, by reason."""
    problems: Counter[str] = sum((rank.problems for rank in ranks), Counter())
    return counted(problems)


def job_size(ranks: Sequence[RankTrace]) -> int:
    """Return the number of ranks of the job by its files, or by the groups of its collectives; 0 if unknown."""
    groups = {facts.group for rank in ranks for facts in rank.rows.facts.values()}
    highest = max((max(group.ranks, default=-1) for group in groups), default=-1)
    return max(highest + 1, *(rank.world_size for rank in ranks))


def missing_ranks(ranks: Sequence[RankTrace]) -> list[Doubt]:
    """Return the ranks of the job without a file, and ranks that it cannot have."""
    present, world_size = {rank.rank for rank in ranks}, job_size(ranks)
    said = max(rank.world_size for rank in ranks)
    absent = world_size - sum(rank < world_size for rank in present)
    beyond = sorted(rank for rank in present if 0 < said <= rank)
    warnings = []
    if absent:
        first = list(islice((rank for rank in range(world_size) if rank not in present), MAX_NAMED))
        shown = ", ".join(map(str, first)) + (", ..." if absent > MAX_NAMED else "")
        has = "has" if absent == 1 else "have"
        warnings.append(Doubt("no_file", absent, f"{world_size:,} ranks {has} no file here ({shown})"))
    if beyond:
        shown = ", ".join(map(str, beyond[:MAX_NAMED]))
        warnings.append(Doubt("rank_beyond", len(beyond), shown))
    return warnings


def impossible_times(ranks: Sequence[RankTrace]) -> list[Doubt]:
    """Return the number of activities that begin before their launch, or before their stream is free."""
    early_s = np.concatenate([rank.rows.launch_s - rank.rows.start_s for rank in ranks])
    overlap_s = np.concatenate([_overlaps_s(rank.rows) for rank in ranks])
    return [
        Doubt(kind, int(np.count_nonzero(by_s > RESOLUTION_S)), f"{1e6 * np.nanmax(by_s):.4g} us")
        for by_s, kind in ((early_s, "before_launch"), (overlap_s, "busy_stream"))
        if (by_s > RESOLUTION_S).any()
    ]


def overlapping_steps(ranks: Sequence[RankTrace]) -> list[Doubt]:
    """Return the number of steps that begin before the previous one ends."""
    pairs = [pair for rank in ranks for pair in pairwise(sorted(rank.steps, key=lambda step: step.start_s))]
    by_s = [before.end_s - after.start_s for before, after in pairs if before.end_s - after.start_s > RESOLUTION_S]
    return [Doubt("steps_overlap", len(by_s), f"{1e6 * max(by_s):.4g} us")] if by_s else []


def unequal_spans(ranks: Sequence[RankTrace]) -> list[Doubt]:
    """Return a doubt if one rank's span is far longer than another's: equal steps of one job take equally long."""
    spans = sorted((float(rank.rows.end_s.max() - rank.rows.start_s.min()), rank.rank) for rank in ranks)
    (shortest_s, one), (longest_s, other) = spans[0], spans[-1]
    if longest_s <= LARGE_SPAN_RATIO * shortest_s:
        return []
    shown = f"from {1e3 * shortest_s:.4g} ms (rank {one}) to {1e3 * longest_s:.4g} ms (rank {other})"
    return [Doubt("unequal_spans", len(ranks), shown)]


def _overlaps_s(rows: DeviceRows) -> Floats:
    """Return how long before the end of its stream's earlier rows each row begins."""
    result = np.full(len(rows), -np.inf)
    for stream in np.unique(rows.stream.codes).tolist():
        own = np.flatnonzero(rows.stream.codes == stream)
        result[own[1:]] = np.maximum.accumulate(rows.end_s[own])[:-1] - rows.start_s[own[1:]]
    return result


def unknown_sizes(ranks: Sequence[RankTrace]) -> list[Doubt]:
    """Return the number of communication kernels without bytes, or without a group."""
    facts = [facts for rank in ranks for facts in rank.rows.facts.values()]
    no_bytes = sum(fact.num_bytes < 0 for fact in facts)
    no_group = sum(not fact.group.label for fact in facts)
    return counted(Counter(no_bytes=no_bytes, no_group=no_group))


def doubtful_clocks(ranks: Sequence[RankTrace], alignment: Alignment) -> list[Doubt]:
    """Return the clocks that could not be aligned, were far apart before it, or differ after it."""
    warnings = []
    if alignment.unaligned:
        shown = ", ".join(str(ranks[rank].rank) for rank in alignment.unaligned[:MAX_NAMED])
        warnings.append(Doubt("no_common_clock", len(alignment.unaligned), shown))
    apart = np.flatnonzero(np.abs(alignment.offset_s) > LARGE_OFFSET_S)
    if len(apart):
        worst = int(np.argmax(np.abs(alignment.offset_s)))
        shown = f"{abs(alignment.offset_s[worst]):,.0f} s on rank {ranks[worst].rank}"
        warnings.append(Doubt("far_clock", len(apart), shown))
    large = np.flatnonzero(np.nan_to_num(alignment.residual_s) > LARGE_RESIDUAL_S)
    if len(large):
        worst = int(np.nanargmax(alignment.residual_s))
        shown = f"{1e3 * alignment.residual_s[worst]:.3g} ms on rank {ranks[worst].rank}"
        warnings.append(Doubt("ends_apart", len(large), shown))
    drifting = np.flatnonzero(alignment.impossible_drift)
    if len(drifting):
        shown = ", ".join(
            f"rank {ranks[rank].rank} {100 * alignment.impossible_drift[rank]:+.3g} %" for rank in drifting[:MAX_NAMED]
        )
        warnings.append(Doubt("drift", len(drifting), shown))
    early_s = alignment.early_s[alignment.early_s > RESOLUTION_S]
    if len(early_s):
        warnings.append(Doubt("early_ends", len(early_s), f"{1e6 * early_s.max():.4g} us"))
    return warnings
