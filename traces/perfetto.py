"""Timelines in Chrome's trace event format, for Perfetto and chrome://tracing.

A process per rank, a track per stream, arrows for messages and collectives, a counter for memory. Of a long repetitive
timeline the first, middle and last passes of its period are drawn at their times in the step; a slice on every track
states the number of the others. Times are microseconds here, by the format. The file is written as a stream; identical
timelines give identical bytes. Format: "Trace Event Format", Google 2016.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Final

import numpy as np

from traces.files import replacing
from traces.passes import drawn_passes, gaps, idle_in
from traces.timeline import NO_INDEX, Period, Timeline, Words
from traces.unrolling import with_passes

ROWS_PER_CHUNK: Final = 1 << 16
MICROSECONDS_PER_S: Final = 1e6
_COMPRESSION_LEVEL: Final = 6
_FIRST_STREAM: Final = "compute"


def write_perfetto(timeline: Timeline, path: Path) -> None:
    """Write the timeline as gzipped JSON."""
    period, passes = timeline.period, drawn_passes(timeline)
    timeline = with_passes(timeline, passes)
    streams = _stream_order(timeline.stream)
    flow_ids = count(1)
    events = chain(
        _processes(timeline, streams),
        _slices(timeline, streams),
        _message_arrows(timeline, streams, flow_ids),
        _collective_arrows(timeline, streams, flow_ids),
        _memory(timeline),
        () if period is None else _passes(timeline, period, passes, streams),
    )
    with (
        replacing(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=_COMPRESSION_LEVEL, mtime=0) as file,
    ):
        source = _text(timeline.source).encode()
        file.write(b'{"displayTimeUnit":"ms","otherData":{"source":%s},"traceEvents":[\n' % source)
        separator = ""
        while piece := list(islice(events, ROWS_PER_CHUNK)):
            file.write((separator + ",\n".join(piece)).encode())
            separator = ",\n"
        file.write(b"\n]}\n")


def _text(value: str) -> str:
    return json.dumps(value)


def _stream_order(stream: Words) -> list[int]:
    """Return the track of each stream code: compute first, the others by name."""
    names = sorted(stream.values, key=lambda name: (name != _FIRST_STREAM, name))
    return [names.index(name) for name in stream.values]


def _processes(timeline: Timeline, streams: list[int]) -> Iterator[str]:
    """Yield the names of processes and tracks, in order."""
    for position, info in enumerate(timeline.ranks):
        yield _named("process_name", info.rank, 0, f'"name":{_text(info.label)}')
        yield _named("process_sort_index", info.rank, 0, f'"sort_index":{position}')
        used = np.unique(timeline.stream.codes[timeline.select(rank=info.rank)])
        for code in sorted(used.tolist(), key=lambda code: streams[code]):
            yield _named("thread_name", info.rank, streams[code], f'"name":{_text(timeline.stream.values[code])}')
            yield _named("thread_sort_index", info.rank, streams[code], f'"sort_index":{streams[code]}')


def _named(name: str, pid: int, tid: int, arguments: str) -> str:
    return f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{name}","args":{{{arguments}}}}}'


def _slices(timeline: Timeline, streams: list[int]) -> Iterator[str]:
    """Yield one complete event per row."""
    names = [_text(value) for value in timeline.name.values]
    kinds = [_text(value) for value in timeline.kind.values]
    groups = [f',"group":{_text(value)}' if value else "" for value in timeline.group.values]
    for first in range(0, len(timeline), ROWS_PER_CHUNK):
        rows = slice(first, first + ROWS_PER_CHUNK)
        starts, ends = timeline.start_s[rows], timeline.end_s[rows]
        columns = zip(
            timeline.rank[rows].tolist(),
            timeline.stream.codes[rows].tolist(),
            timeline.name.codes[rows].tolist(),
            timeline.kind.codes[rows].tolist(),
            (starts * MICROSECONDS_PER_S).tolist(),
            ((ends - starts) * MICROSECONDS_PER_S).tolist(),
            timeline.microbatch[rows].tolist(),
            timeline.stage[rows].tolist(),
            timeline.bytes[rows].tolist(),
            timeline.flop[rows].tolist(),
            timeline.group.codes[rows].tolist(),
            strict=True,
        )
        for rank, stream, name, kind, ts, duration, microbatch, stage, num_bytes, flop, group in columns:
            arguments = f'"bytes":{num_bytes},"flop":{flop!r}{groups[group]}'
            if microbatch != NO_INDEX:
                arguments += f',"microbatch":{microbatch}'
            if stage != NO_INDEX:
                arguments += f',"stage":{stage}'
            yield (
                f'{{"ph":"X","pid":{rank},"tid":{streams[stream]},"name":{names[name]},"cat":{kinds[kind]},'
                f'"ts":{ts!r},"dur":{duration!r},"args":{{{arguments}}}}}'
            )


def _message_arrows(timeline: Timeline, streams: list[int], flow_ids: Iterator[int]) -> Iterator[str]:
    """Yield an arrow from every send to its receive."""
    arrow = _arrow_end(timeline, streams)
    for send, recv in zip(timeline.messages.send.tolist(), timeline.messages.recv.tolist(), strict=True):
        flow_id = next(flow_ids)
        sent_s = float(timeline.start_s[send])
        received_s = max(float(timeline.start_s[recv]), min(sent_s, float(timeline.end_s[recv])))
        yield arrow("s", flow_id, send, sent_s, "message")
        yield arrow("f", flow_id, recv, received_s, "message")


def _collective_arrows(timeline: Timeline, streams: list[int], flow_ids: Iterator[int]) -> Iterator[str]:
    """Yield a chain of arrows through the members of every collective that is drawn on several ranks, by start."""
    arrow = _arrow_end(timeline, streams)
    members, numbers = timeline.messages.member, timeline.messages.collective
    edges = np.flatnonzero(np.diff(numbers)) + 1
    for rows in np.split(members, edges):
        if len(rows) < 2:
            continue
        flow_id = next(flow_ids)
        order = rows[np.argsort(timeline.start_s[rows], kind="stable")].tolist()
        for position, row in enumerate(order):
            phase = "s" if position == 0 else "f" if position == len(order) - 1 else "t"
            yield arrow(phase, flow_id, row, float(timeline.start_s[row]), "collective")


def _arrow_end(timeline: Timeline, streams: list[int]) -> Callable[[str, int, int, float, str], str]:
    """Return a function that writes one end of an arrow, bound to the op that then runs on its track."""

    def write(phase: str, flow_id: int, row: int, at_s: float, name: str) -> str:
        track = streams[int(timeline.stream.codes[row])]
        binding = ',"bp":"e"' if phase != "s" else ""
        return (
            f'{{"ph":"{phase}","id":{flow_id},"pid":{timeline.rank[row]},"tid":{track},"name":"{name}",'
            f'"cat":"{name}","ts":{at_s * MICROSECONDS_PER_S!r}{binding}}}'
        )

    return write


def _memory(timeline: Timeline) -> Iterator[str]:
    """Yield the counter of live bytes of every rank."""
    curve = timeline.memory
    times = (curve.time_s * MICROSECONDS_PER_S).tolist()
    for rank, ts, held in zip(curve.rank.tolist(), times, curve.bytes.tolist(), strict=True):
        yield f'{{"ph":"C","pid":{rank},"tid":0,"name":"memory","ts":{ts!r},"args":{{"bytes":{held}}}}}'


def _passes(timeline: Timeline, period: Period, passes: Sequence[int], streams: list[int]) -> Iterator[str]:
    """Yield a process of its own that marks the period's passes, and the fill of gaps."""
    pid, count = 1 + max(info.rank for info in timeline.ranks), period.count
    yield _named("process_name", pid, 0, '"name":"passes of the period that repeats"')
    yield _named("process_sort_index", pid, 0, '"sort_index":-1')
    yield _named("thread_name", pid, 0, '"name":"passes"')
    for number in passes:
        begin_s = period.begin_s + number * period.length_s
        yield _slice(pid, 0, f"pass {number + 1:,} of {count:,}", begin_s, begin_s + period.length_s, "{}")
    yield _passes_left_out(pid, 0.0, 0)
    for gap in gaps(period, passes):
        arguments = (
            f'{{"passes":{gap.num_passes},"period_s":{period.length_s!r},"microbatches":{period.microbatches},'
            '"note":"each pass is equal to those drawn; simulate --detail op draws all"}'
        )
        words = f"passes {gap.first + 1:,} to {gap.last + 1:,}, not drawn"
        yield _slice(pid, 0, words, gap.begin_s, gap.end_s, arguments)
        yield _passes_left_out(pid, gap.begin_s, gap.num_passes)
        yield _passes_left_out(pid, gap.end_s, 0)
        for idle in idle_in(timeline, gap):
            track = streams[idle.stream]
            yield _slice(idle.rank, track, f"{gap.num_passes:,} passes not drawn", idle.begin_s, idle.end_s, arguments)


def _slice(pid: int, track: int, name: str, begin_s: float, end_s: float, arguments: str) -> str:
    ts, duration = begin_s * MICROSECONDS_PER_S, (end_s - begin_s) * MICROSECONDS_PER_S
    return (
        f'{{"ph":"X","pid":{pid},"tid":{track},"name":{_text(name)},"cat":"passes","ts":{ts!r},"dur":{duration!r},'
        f'"args":{arguments}}}'
    )


def _passes_left_out(pid: int, time_s: float, number: int) -> str:
    """Return a value of the counter of passes that are not drawn."""
    ts = time_s * MICROSECONDS_PER_S
    return f'{{"ph":"C","pid":{pid},"tid":0,"name":"passes not drawn","ts":{ts!r},"args":{{"passes":{number}}}}}'
