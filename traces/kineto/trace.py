"""All ranks of one profile: read, checked against each other, on one clock, and as a Timeline."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from traces.doubt import Doubt, counted
from traces.errors import TraceError
from traces.kineto.clock import Alignment, align
from traces.kineto.document import sources
from traces.kineto.doubts import (
    doubtful_clocks,
    impossible_times,
    left_out,
    missing_ranks,
    overlapping_steps,
    unequal_spans,
    unknown_sizes,
)
from traces.kineto.drift import RESOLUTION_S
from traces.kineto.ends import synchronising
from traces.kineto.matching import Collective, Matches, match
from traces.kineto.rank import DeviceRows, RankTrace, StepWindow, select_steps
from traces.kineto.read import read_rank
from traces.timeline import NO_INDEX, Timeline, TimelineBuilder

_RANK_IN_NAME: Final = re.compile(r"(?:rank|worker)[_\-.]?(\d{1,7})(?!\d)", re.IGNORECASE)


class KinetoTrace(Struct, frozen=True):
    """The ranks of a profile, by number, with their collectives and messages, their clocks, and warnings.

    Times of ranks are free of drift; ``alignment`` has the shifts between them.
    """

    ranks: tuple[RankTrace, ...]
    matches: Matches
    alignment: Alignment
    warnings: tuple[Doubt, ...]


def load(path: Path, window: StepWindow | None = None) -> KinetoTrace:
    """Return the profile at ``path``: one file, a folder or a tar archive with one per rank.

    Without ``window`` all steps.

        trace = load(Path("profile"))

    Raises TraceError for files that are unreadable, are no traces, or do not belong together. Parts that are left out
    are counted in ``warnings``.
    """
    with sources(path) as found:
        read = [read_rank(source) for source in found]
    ranks, warnings = _numbered(read)
    warnings += [*left_out(ranks), *missing_ranks(ranks), *overlapping_steps(ranks)]
    if window is not None:
        ranks, more = select_steps(ranks, window)
        warnings += list(more)
    ranks = tuple(replace(rank, rows=rank.work) for rank in ranks)
    for rank in ranks:
        if not len(rank.rows):
            rule = "the device only waits in this trace: it has no kernel, copy or fill"
            raise TraceError(rank.file, rule, "record a step that computes something")
    matches, alignment = _matched(ranks)
    ranks = tuple(rank.on_clock(1 + drift) for rank, drift in zip(ranks, alignment.drift.tolist(), strict=True))
    warnings += [
        *impossible_times(ranks),
        *unequal_spans(ranks),
        *matches.warnings,
        *unknown_sizes(ranks),
        *doubtful_clocks(ranks, alignment),
    ]
    return KinetoTrace(ranks, matches, alignment, tuple(warnings))


def _matched(ranks: Sequence[RankTrace]) -> tuple[Matches, Alignment]:
    """Return the matches of the ranks, and the alignment of their clocks.

    A name without listed ranks may stand for several groups. It does if a collective ends on one of its ranks before it
    has begun on another; if this holds for most collectives of a kind, the remaining ones overlap by chance. Splitting
    such groups changes the clocks, so both are found in rounds.
    """
    matches, refuted = match(ranks), Counter[tuple[str, str]]()
    recorded = Counter(_kind_in_group(one) for one in synchronising(matches.collectives))
    while True:
        alignment, shared = align(ranks, matches.collectives), synchronising(matches.collectives)
        by_s = zip(shared, alignment.early_s.tolist(), strict=True)
        impossible = {one for one, early_s in by_s if early_s > RESOLUTION_S and not one.facts.group.ranks}
        if not impossible:
            more = counted(Counter(other_moment=refuted.total()))
            return replace(matches, warnings=(*matches.warnings, *more)), alignment
        refuted.update(_kind_in_group(one) for one in impossible)
        chance = {kind for kind, count in refuted.items() if 2 * count > recorded[kind]}
        by_chance = {one for one in shared if _kind_in_group(one) in chance} - impossible
        refuted.update(_kind_in_group(one) for one in by_chance)
        matches = matches.apart(ranks, impossible | by_chance)


def _kind_in_group(collective: Collective) -> tuple[str, str]:
    return collective.facts.kind, collective.facts.group.label


def to_timeline(trace: KinetoTrace) -> Timeline:
    """Return the device's work as a Timeline in seconds from the first start on the common clock, a row per activity.

    ``stream``: the device's.
    ``kind``: compute, memcpy, memset or the collective's.
    ``group``: the ranks of the collective's group. The memory curve is that of torch's allocator, if the profiler
        recorded it.
    """
    builder = TimelineBuilder(source="executed", detail="op")
    shifts_s = trace.alignment.shift_s
    zero_s = min(
        float(rank.rows.start_s.min()) + shift_s for rank, shift_s in zip(trace.ranks, shifts_s.tolist(), strict=True)
    )
    first_row = []
    for rank, shift_s in zip(trace.ranks, (shifts_s - zero_s).tolist(), strict=True):
        rows = rank.rows
        builder.add_rank(rank.rank, "")
        codes, groups = _group_column(rows)
        added = builder.extend(
            rank=rank.rank,
            stream=(rows.stream.codes, rows.stream.values),
            name=(rows.name.codes, rows.name.values),
            kind=(rows.kind.codes, rows.kind.values),
            start_s=rows.start_s + shift_s,
            end_s=rows.end_s + shift_s,
            microbatch=NO_INDEX,
            num_bytes=rows.bytes,
            group=(codes, groups),
        )
        first_row.append(added.start)
        times_s, held = rank.allocated
        if len(times_s):
            builder.add_memory(rank.rank, times_s + shift_s, held)
    for collective in trace.matches.collectives:
        builder.add_collective(first_row[rank] + row for rank, row in collective.members)
    for (sender, sent), (receiver, received) in trace.matches.messages:
        builder.add_message(first_row[sender] + sent, first_row[receiver] + received)
    return builder.build()


def _group_column(rows: DeviceRows) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], list[str]]:
    labels = {"": 0}
    codes = np.zeros(len(rows), dtype=np.int32)
    for row, facts in rows.facts.items():
        codes[row] = labels.setdefault(facts.group.label, len(labels))
    return codes, list(labels)


def _numbered(read: Sequence[RankTrace]) -> tuple[tuple[RankTrace, ...], list[Doubt]]:
    """Return the ranks by number. Raises TraceError for a rank with two files, and for files of different jobs."""
    warnings, by_rank = list[Doubt](), dict[int, RankTrace]()
    for trace in read:
        rank = trace.rank
        if rank < 0:
            named = _RANK_IN_NAME.search(trace.file.rsplit("/", maxsplit=1)[-1])
            if named is None and len(read) > 1:
                rule = "neither distributedInfo nor the file's name says which rank this is"
                raise TraceError(trace.file, rule, "put the number into the name: rank3.json")
            rank = int(named[1]) if named else 0
            origin = "its name" if named else "being the only file"
            said = f"{trace.file} does not state its rank: read as rank {rank}, from {origin}"
            warnings.append(Doubt("rank_guessed", 1, said))
        if rank in by_rank:
            rule = f"rank {rank} is here and in {by_rank[rank].file}"
            raise TraceError(trace.file, rule, "keep one file per rank and profile: move the others out of the folder")
        by_rank[rank] = replace(trace, rank=rank)
    sizes = {trace.world_size: trace.file for trace in read if trace.world_size}
    if len(sizes) > 1:
        shown = " and ".join(f"{size} ({file})" for size, file in sorted(sizes.items())[:2])
        raise TraceError("", f"the files are of jobs with different numbers of ranks: {shown}", "keep those of one job")
    return tuple(by_rank[rank] for rank in sorted(by_rank)), warnings
