"""The kinds of op with the longest total time in a step."""

import re
from typing import Final

import numpy as np
from msgspec import Struct

from scenarios.report.phases import phase_of, task_of
from traces.timeline import Timeline

NUM_LONGEST: Final = 10
_INDEX: Final = re.compile(r"\blayer\d+\.?|\.\d+\b")


class OpKind(Struct, frozen=True):
    """All ops that are equal up to layer, stage and micro-batch; seconds, count and FLOP are means per rank."""

    name: str
    phase: str
    stream: str
    num_ops: float
    time_s: float
    flop: float


def kind_name(name: str) -> str:
    """Return an op's name without layer, stage and bucket numbers: ``forward.0/layer3.qkv`` is ``qkv``."""
    op = name.partition("/")[2] or task_of(name)
    return _INDEX.sub("", op).strip(".") or op


def longest_kinds(timeline: Timeline, limit: int = NUM_LONGEST) -> list[OpKind]:
    """Return the kinds of op with the most seconds, summed over a rank's ops and averaged over ranks."""
    multiplicity = {info.rank: info.num_ranks for info in timeline.ranks}
    numbers, positions = np.unique(timeline.rank, return_inverse=True)
    weights = (
        np.array([multiplicity[rank] for rank in numbers.tolist()], dtype=np.float64)[positions] * timeline.repeats
    )
    world_size = sum(multiplicity.values())
    kinds: dict[tuple[str, str, str], int] = {}
    names, streams = timeline.name.values, timeline.stream.values
    described = [(kind_name(name), phase_of(name).words) for name in names]
    pairs = timeline.name.codes.astype(np.int64) * len(streams) + timeline.stream.codes
    present, pair_positions = np.unique(pairs, return_inverse=True)
    codes = np.array(
        [
            kinds.setdefault((*described[pair // len(streams)], streams[pair % len(streams)]), len(kinds))
            for pair in present.tolist()
        ]
        or [0],
        dtype=np.int64,
    )[pair_positions]
    sums = [
        np.bincount(codes, weights=weights * values, minlength=len(kinds)) / max(1, world_size)
        for values in (np.ones(len(timeline)), timeline.end_s - timeline.start_s, timeline.flop)
    ]
    rows = [OpKind(*kind, *(float(column[code]) for column in sums)) for kind, code in kinds.items()]
    return sorted(rows, key=lambda row: (-row.time_s, row.name, row.phase))[:limit]
