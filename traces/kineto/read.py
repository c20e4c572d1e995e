"""Conversion of the events of one file to the columns of one rank."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

import numpy as np

from traces.doubt import Doubt
from traces.errors import TraceError
from traces.kineto.collective import (
    Facts,
    Group,
    annotation_facts,
    argument_facts,
    communicates,
    groups_of,
    kernel_facts,
)
from traces.kineto.document import MAX_WHOLE, Arguments, Event, Source, correlation_of, decode, whole
from traces.kineto.events import (
    ON_THE_DEVICE,
    Sorted,
    count_operators,
    enclosing,
    kind_of_activity,
    queue_of,
    sort_out,
)
from traces.kineto.rank import (
    SYNC,
    US,
    WAIT,
    DeviceRows,
    EventWait,
    HostSpans,
    Indices,
    RankTrace,
    Step,
)
from traces.timeline import Floats, Words
from traces.timeline import Source as TimelineSource

_OWN_SOURCES: Final = get_args(TimelineSource)
"""The mark of a timeline written by this program; other traces state their recorder there."""
_MAX_RANK: Final = (1 << 31) - 1


def read_rank(source: Source) -> RankTrace:
    """Return the trace of one file. Raises TraceError for a file that is no trace, or has no device activity."""
    document = decode(source)
    found = sort_out(document.events or [])
    if not found.device:
        if isinstance(document.other, dict) and document.other.get("source") in _OWN_SOURCES:
            rule = "this is a timeline of simulate, not a recording of the PyTorch profiler"
            raise TraceError(
                source.name, rule, "simulate compare takes the timeline.parquet beside it; Perfetto opens it"
            )
        raise _no_activity(source.name, document.events or [], found.problems)
    origin_us = math.floor(min(event.ts for event in found.device))
    rank, world_size = _identity(document.distributed)
    steps = sorted(found.steps.items())
    return RankTrace(
        file=source.name,
        rank=rank,
        world_size=world_size,
        origin_us=float(origin_us),
        base_time_ns=max(0, whole(document.base_time_ns, MAX_WHOLE)),
        rows=_rows(found, origin_us, groups_of(document.distributed)),
        launches=_host_spans([*found.launches.values()], origin_us),
        waits=tuple(_event_waits(found, origin_us)),
        steps=tuple(Step(number, (ts - origin_us) * US, (ts + dur - origin_us) * US) for number, (ts, dur) in steps),
        allocated=_allocated(found.memory, origin_us),
        num_events=len(document.events or []),
        problems=found.problems,
    )


def _no_activity(file: str, events: Sequence[Event], problems: Counter[str]) -> TraceError:
    """Return the refusal of a trace without usable device activity, with the most common reason."""
    rule, remedy = (
        "the trace has no device activity",
        "record with torch.profiler.ProfilerActivity.CUDA, where a GPU is",
    )
    if num_operators := count_operators(events):
        rule = f"this is a trace of the CPU alone: {num_operators:,} of the host's operators, and no device activity"
        remedy += "; simulate execute --out records a step on CPUs, for simulate compare"
    if problems:
        rule += f"; {problems.total():,} broken events were left out"
    on_device = Counter({problem: count for problem, count in problems.items() if problem.startswith(ON_THE_DEVICE)})
    if on_device:
        problem, count = on_device.most_common(1)[0]
        words = Doubt(problem, count).text.removesuffix(": left out")
        rule, remedy = f"{rule}, of them {words}", "record it again; times are numbers of microseconds"
    return TraceError(file, rule, remedy)


def _identity(distributed: Any) -> tuple[int, int]:
    """Return rank and number of ranks, -1 and 0 if the file does not state them."""
    facts = distributed if isinstance(distributed, dict) else {}
    rank, world_size = facts.get("rank"), facts.get("world_size")
    return (whole(rank, _MAX_RANK), max(0, whole(world_size, _MAX_RANK)))


def _allocated(memory: list[tuple[float, int, int]], origin_us: float) -> tuple[Floats, Indices]:
    """Return times and bytes held by a rank's devices together, from the changes of each device."""
    held, total, curve = dict[int, int](), 0, []
    ordered = sorted(memory, key=lambda point: point[0])
    for _, num_bytes, device in ordered:
        total += num_bytes - held.get(device, 0)
        held[device] = num_bytes
        curve.append(total)
    times_s = np.array([(ts - origin_us) * US for ts, _, _ in ordered], dtype=np.float64)
    return times_s, np.array(curve, dtype=np.int64)


def _host_spans(launches: list[Event], origin_us: float) -> HostSpans:
    threads: dict[str, int] = {}
    starts = np.array([event.ts - origin_us for event in launches], dtype=np.float64)
    return HostSpans(
        name=_words([event.name for event in launches]),
        correlation=np.array([correlation_of(event) for event in launches], dtype=np.int64),
        start_s=starts * US,
        end_s=(starts + np.array([event.dur for event in launches], dtype=np.float64)) * US,
        thread=np.array([threads.setdefault(str(event.tid), len(threads)) for event in launches], dtype=np.int64),
    )


def _event_waits(found: Sorted, origin_us: float) -> Iterator[EventWait]:
    """Yield the waits of streams for each other, if the trace states both streams and both calls."""
    called = found.launches
    prefixed = _device_prefix(found.device)
    for event in found.device:
        arguments = event.args
        if arguments is None or kind_of_activity(event) != SYNC or whole(arguments.waits_for_stream, MAX_WHOLE) < 0:
            continue
        wait, record = called.get(correlation_of(event)), called.get(whole(arguments.waits_for_record, MAX_WHOLE))
        if wait is not None and record is not None:
            stream, other = (_stream(prefixed, event, s) for s in (arguments.stream, arguments.waits_for_stream))
            yield EventWait(stream, (wait.ts - origin_us) * US, other, (record.ts - origin_us) * US)


def _device_prefix(events: list[Event]) -> bool:
    """Return whether streams are named with their device, as for a rank with several devices."""
    return len({str(event.args.device) for event in events if event.args is not None}) > 1


def _stream(prefixed: bool, event: Event, number: object) -> str:
    """Return the name of a stream."""
    return f"device {event.args.device if event.args else None} stream {number}" if prefixed else f"stream {number}"


def _rows(found: Sorted, origin_us: float, groups: dict[str, Group]) -> DeviceRows:
    """Return the device's activities as columns, by start."""
    events = sorted(found.device, key=lambda event: (event.ts, event.dur))
    correlations = [correlation_of(event) for event in events]
    calls = [found.launches.get(correlation) for correlation in correlations]
    prefixed = _device_prefix(events)
    names, kinds, streams, facts, sizes = [], [], [], {}, []
    for row, (event, call) in enumerate(zip(events, calls, strict=True)):
        arguments = event.args or Arguments()
        kind, num_bytes = kind_of_activity(event), max(0, whole(arguments.num_bytes, MAX_WHOLE))
        if kind == "compute" and communicates(event.name):
            facts[row] = _facts(event, call, found, groups)
            kind, num_bytes = facts[row].kind, max(0, facts[row].num_bytes)
        elif kind == SYNC and "wait event" in event.name.lower():
            kind = WAIT
        names.append(event.name)
        kinds.append(kind)
        streams.append(_stream(prefixed, event, queue_of(arguments)))
        sizes.append(num_bytes)
    starts = np.array([event.ts - origin_us for event in events], dtype=np.float64)
    nan = float("nan")
    return DeviceRows(
        name=_words(names),
        kind=_words(kinds),
        stream=_words(streams),
        start_s=starts * US,
        end_s=(starts + np.array([event.dur for event in events], dtype=np.float64)) * US,
        bytes=np.array(sizes, dtype=np.int64),
        correlation=np.array(correlations, dtype=np.int64),
        launch_s=np.array([nan if call is None else (call.ts - origin_us) * US for call in calls], dtype=np.float64),
        facts=facts,
    )


def _words(values: list[str]) -> Words:
    codes: dict[str, int] = {}
    column = np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int32)
    return Words(column, tuple(codes))


def _facts(event: Event, launch: Event | None, found: Sorted, groups: dict[str, Group]) -> Facts:
    """Return the facts of a communication kernel: from its arguments, its launching call, or its name."""
    own = argument_facts(event.args, groups) if event.args is not None else None
    if own is not None:
        return own
    by_name = kernel_facts(event.name)
    around = enclosing(found.calls.get(str(launch.tid), []), launch.ts) if launch is not None else []
    for call in around:
        said = argument_facts(call.args, groups) if call.args is not None else None
        if said is not None:
            return said
    for call in around:
        said = annotation_facts(call.name, call.args)
        if said is not None:
            return said
    return by_name
