"""What to know of a profile before believing its figures: what is missing, damaged, or contradicts itself."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

import numpy as np

from traces.kineto.clock import Alignment
from traces.kineto.rank import DeviceRows, RankTrace
from traces.timeline import Floats

LARGE_RESIDUAL_S: Final = 1e-3
LARGE_OFFSET_S: Final = 60.0
"""Clocks of one run that are further apart are those of two runs, more likely than not."""
LARGE_DRIFT: Final = 1e-3
"""Ten times what the quartz of two hosts differs by."""
LARGE_SPAN_RATIO: Final = 10.0
RESOLUTION_S: Final = 1e-6
"""Older profilers round to this."""
MAX_NAMED: Final = 8


def left_out(ranks: Sequence[RankTrace]) -> list[str]:
    """Return how many events were of no use, by reason."""
    problems: Counter[str] = sum((rank.problems for rank in ranks), Counter())
    return [f"{count:,} {problem}: left out" for problem, count in sorted(problems.items())]


def job_size(ranks: Sequence[RankTrace]) -> int:
    """Return how many ranks the job has: as many as its files say, or the groups of its collectives; 0 for unknown."""
    groups = {facts.group for rank in ranks for facts in rank.rows.facts.values()}
    highest = max((max(group.ranks, default=-1) for group in groups), default=-1)
    return max(highest + 1, *(rank.world_size for rank in ranks))


def missing_ranks(ranks: Sequence[RankTrace]) -> list[str]:
    """Return which ranks of the job have no file, and which it cannot have."""
    present, world_size = {rank.rank for rank in ranks}, job_size(ranks)
    said = max(rank.world_size for rank in ranks)
    absent = world_size - sum(rank < world_size for rank in present)
    beyond = sorted(rank for rank in present if 0 < said <= rank)
    warnings = []
    if absent:
        first = list(islice((rank for rank in range(world_size) if rank not in present), MAX_NAMED))
        shown = ", ".join(map(str, first)) + (", ..." if absent > MAX_NAMED else "")
        warnings.append(f"{absent:,} of {world_size:,} ranks have no file here ({shown})")
    if beyond:
        shown = ", ".join(map(str, beyond[:MAX_NAMED]))
        warnings.append(f"ranks {shown} are past the {said:,} that the files say the job has")
    return warnings


def impossible_times(ranks: Sequence[RankTrace]) -> list[str]:
    """Return how many activities begin before their launch, or before the one before them on their stream is over."""
    early_s = np.concatenate([rank.rows.launch_s - rank.rows.start_s for rank in ranks])
    overlap_s = np.concatenate([_overlaps_s(rank.rows) for rank in ranks])
    found = (
        (early_s, "device activities begin before the host launched them", "clocks of host and device disagree"),
        (overlap_s, "device activities begin before their stream is free", "seconds of both count once"),
    )
    return [
        f"{np.count_nonzero(by_s > RESOLUTION_S):,} {what} (by up to {1e6 * np.nanmax(by_s):.4g} us): {meaning}"
        for by_s, what, meaning in found
        if (by_s > RESOLUTION_S).any()
    ]


def unequal_spans(ranks: Sequence[RankTrace]) -> list[str]:
    """Return whether one rank's work spans far longer than another's: the same steps of one job last alike."""
    spans = sorted((float(rank.rows.end_s.max() - rank.rows.start_s.min()), rank.rank) for rank in ranks)
    (shortest_s, one), (longest_s, other) = spans[0], spans[-1]
    if longest_s <= LARGE_SPAN_RATIO * shortest_s:
        return []
    shown = f"from {1e3 * shortest_s:.4g} ms (rank {one}) to {1e3 * longest_s:.4g} ms (rank {other})"
    return [f"the work of {len(ranks):,} ranks spans {shown}: are these the same steps, in one unit of time?"]


def _overlaps_s(rows: DeviceRows) -> Floats:
    """Return by how much each row begins before all that its stream began earlier is over."""
    result = np.full(len(rows), -np.inf)
    for stream in np.unique(rows.stream.codes).tolist():
        own = np.flatnonzero(rows.stream.codes == stream)
        result[own[1:]] = np.maximum.accumulate(rows.end_s[own])[:-1] - rows.start_s[own[1:]]
    return result


def unknown_sizes(ranks: Sequence[RankTrace]) -> list[str]:
    """Return how many communication kernels do not say their bytes, or their group."""
    facts = [facts for rank in ranks for facts in rank.rows.facts.values()]
    no_bytes = sum(fact.num_bytes < 0 for fact in facts)
    no_group = sum(not fact.group.label for fact in facts)
    warnings = []
    if no_bytes:
        warnings.append(f"{no_bytes:,} communication kernels do not say their bytes: 0 in the timeline, no bandwidth")
    if no_group:
        warnings.append(f"{no_group:,} communication kernels do not say their group: taken to be all ranks of the job")
    return warnings


def doubtful_clocks(ranks: Sequence[RankTrace], alignment: Alignment) -> list[str]:
    """Return which clocks could not be aligned, are far apart before it, or differ after it."""
    warnings = []
    if alignment.unaligned:
        shown = ", ".join(str(ranks[rank].rank) for rank in alignment.unaligned[:MAX_NAMED])
        rule = "share no matched collective with the first rank, not even through others"
        warnings.append(f"{len(alignment.unaligned):,} ranks {rule} ({shown}): their own clocks are used")
    apart = np.flatnonzero(np.abs(alignment.offset_s) > LARGE_OFFSET_S)
    if len(apart):
        worst = int(np.argmax(np.abs(alignment.offset_s)))
        shown = f"{abs(alignment.offset_s[worst]):,.0f} s on rank {ranks[worst].rank}"
        warnings.append(f"the clocks of {len(apart):,} ranks are far from the first one's ({shown}): is this one run?")
    large = np.flatnonzero(np.nan_to_num(alignment.residual_s) > LARGE_RESIDUAL_S)
    if len(large):
        worst = int(np.nanargmax(alignment.residual_s))
        shown = f"{1e3 * alignment.residual_s[worst]:.3g} ms on rank {ranks[worst].rank}"
        warnings.append(f"after alignment the ends of collectives still lie apart on {len(large):,} ranks ({shown})")
    drifting = np.flatnonzero(np.abs(alignment.drift) > LARGE_DRIFT)
    if len(drifting):
        shown = ", ".join(
            f"rank {ranks[rank].rank} {100 * alignment.drift[rank]:+.3g} %" for rank in drifting[:MAX_NAMED]
        )
        rule = "clocks run faster or slower than the others (or count in another unit)"
        warnings.append(f"{len(drifting):,} {rule}, and so do their durations: {shown}")
    return warnings
