"""Timelines in Chrome's trace event format, which Perfetto and chrome://tracing open.

A process per rank, a track per stream, arrows for messages and collectives, a counter for memory. Times are
microseconds here, as the format wants. Written as a stream; identical timelines give identical bytes.
Format: "Trace Event Format", Google 2016.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Final

import numpy as np

from traces.files import replacing
from traces.timeline import NO_INDEX, Timeline, Words

ROWS_PER_CHUNK: Final = 1 << 16
MICROSECONDS_PER_S: Final = 1e6
_COMPRESSION_LEVEL: Final = 6
_FIRST_STREAM: Final = "compute"


def write_perfetto(timeline: Timeline, path: Path) -> None:
    """Write the timeline as gzipped JSON."""
    streams = _stream_order(timeline.stream)
    flow_ids = count(1)
    events = chain(
        _processes(timeline, streams),
        _slices(timeline, streams),
        _message_arrows(timeline, streams, flow_ids),
        _collective_arrows(timeline, streams, flow_ids),
        _memory(timeline),
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
    """Yield a chain of arrows through the members of every collective that several ranks show, by start."""
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
    """Return a function that writes one end of an arrow, bound to the op that runs on its track then."""

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
