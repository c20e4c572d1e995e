"""From the events of one file to the columns of one rank. What cannot be used is counted, not passed over."""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, get_args

import numpy as np

from traces.doubt import Doubt
from traces.errors import TraceError
from traces.kineto.collective import (
    ANNOTATION,
    Facts,
    Group,
    annotation_facts,
    argument_facts,
    communicates,
    groups_of,
    kernel_facts,
)
from traces.kineto.document import NO_CORRELATION, Arguments, Event, Source, correlation_of, decode, whole
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
"""What a timeline that this program wrote says in the place where others say what recorded it."""
MAX_DURATION_US: Final = 1e12
"""Longer activities (eleven days) are broken records, as of an event whose end was never written."""
MAX_START_US: Final = 1e16
"""No time since 1970 in microseconds, but one in nanoseconds is later."""

_DEVICE: Final = {
    "kernel": "compute", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "mlu_memcpy": "memcpy", "gpu_memset": "memset",
    "memset": "memset", "mlu_memset": "memset", "cuda_sync": SYNC,
}  # fmt: skip
_LAUNCHES: Final = ("runtime", "driver")
"""How categories of calls end, of any vendor's: ``cuda_runtime``, ``xpu_runtime``, ``privateuse1_driver``."""
_HOST: Final = frozenset({"cpu_op", "operator", "user_annotation"})
_NO_WORK: Final = frozenset({"gpu_user_annotation", "mlu_user_annotation", "cuda_event", "cuda_profiler_range"})
"""Categories with a stream in which the device does nothing: spans of the host's annotations, records of events."""
_CALL: Final = "record_param_comms"
_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_MEMORY: Final = "[memory]"
_CPU: Final = 0
"""Torch's number of the host among types of devices."""
_ON_THE_DEVICE: Final = "device"
_MAX_WHOLE: Final = (1 << 62) - 1
_MAX_HELD_BYTES: Final = 1 << 48
"""A thousand times what a device has: more is a broken record."""
_MAX_RANK: Final = (1 << 31) - 1


@dataclass(slots=True)
class _Call:
    """A call of a collective on the host."""

    start_us: float
    end_us: float
    name: str
    arguments: Arguments | None


@dataclass(slots=True)
class _Found:
    """Events by what they are, and how many were of no use."""

    device: list[Event] = field(default_factory=list)
    launches: dict[int, Event] = field(default_factory=dict)
    calls: dict[str, list[_Call]] = field(default_factory=dict)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)


def read_rank(source: Source) -> RankTrace:
    """Return what one file says. Raises TraceError for a file that is no trace, or has no device activity."""
    document = decode(source)
    found = _sorted_out(document.events or [])
    _leave_out_far(found)
    if not found.device:
        if isinstance(document.other, dict) and document.other.get("source") in _OWN_SOURCES:
            rule = "this is a timeline that simulate wrote, not what the PyTorch profiler recorded"
            raise TraceError(
                source.name, rule, "simulate compare takes the timeline.parquet beside it; Perfetto opens it"
            )
        raise _no_activity(source.name, found.problems)
    origin_us = math.floor(min(event.ts for event in found.device))
    rank, world_size = _identity(document.distributed)
    steps = sorted(found.steps.items())
    return RankTrace(
        file=source.name,
        rank=rank,
        world_size=world_size,
        origin_us=float(origin_us),
        base_time_ns=max(0, whole(document.base_time_ns, _MAX_WHOLE)),
        rows=_rows(found, origin_us, groups_of(document.distributed)),
        launches=_host_spans([*found.launches.values()], origin_us),
        waits=tuple(_event_waits(found, origin_us)),
        steps=tuple(Step(number, (ts - origin_us) * US, (ts + dur - origin_us) * US) for number, (ts, dur) in steps),
        allocated=_allocated(found.memory, origin_us),
        num_events=len(document.events or []),
        problems=found.problems,
    )


def _no_activity(file: str, problems: Counter[str]) -> TraceError:
    """Return the refusal of a trace without device activity that is of use, with what is wrong with most of it."""
    rule, remedy = (
        "the trace has no device activity",
        "record with torch.profiler.ProfilerActivity.CUDA, where a GPU is",
    )
    if problems:
        rule += f"; {problems.total():,} broken events were left out"
    on_device = Counter({problem: count for problem, count in problems.items() if problem.startswith(_ON_THE_DEVICE)})
    if on_device:
        problem, count = on_device.most_common(1)[0]
        words = Doubt(problem, count).text.removesuffix(": left out")
        rule, remedy = f"{rule}, of them {words}", "record it again; times are numbers of microseconds"
    return TraceError(file, rule, remedy)


def _identity(distributed: Any) -> tuple[int, int]:
    """Return rank and number of ranks, -1 and 0 where the file does not say."""
    facts = distributed if isinstance(distributed, dict) else {}
    rank, world_size = facts.get("rank"), facts.get("world_size")
    return (whole(rank, _MAX_RANK), max(0, whole(world_size, _MAX_RANK)))


def _sorted_out(events: list[Event]) -> _Found:
    """Return the events that are used, by what they are."""
    found = _Found()
    for event in events:
        category = _category(event.cat) if isinstance(event.cat, str) else ""
        if category in _DEVICE:
            if _usable(event, found.problems, on_device=True):
                found.device.append(event)
        elif category.endswith(_LAUNCHES):
            _add_launch(found, event)
        elif category in _HOST:
            _add_host_event(found, event)
        elif event.name == _MEMORY:
            _add_memory(found, event)
        elif event.args is not None and event.args.stream is not None and category not in _NO_WORK:
            found.problems[f"{_ON_THE_DEVICE}_unknown"] += 1
    for calls in found.calls.values():
        calls.sort(key=lambda call: (call.start_us, -call.end_us))
    return found


def _add_launch(found: _Found, event: Event) -> None:
    """Keep a call by its number; of two of one number the earlier."""
    number = correlation_of(event)
    if number == NO_CORRELATION or not _usable(event, found.problems):
        return
    known = found.launches.get(number)
    if known is not None:
        found.problems["host_repeated"] += 1
    if known is None or event.ts < known.ts:
        found.launches[number] = event


@lru_cache(maxsize=256)
def _category(name: str) -> str:
    """Return a category as newer profilers write it; a trace has few, of many events each."""
    return name.lower()


def _usable(event: Event, problems: Counter[str], *, on_device: bool = False) -> bool:
    """Return whether an event has name, start and a sane duration (and a stream); count why not."""
    start, duration = event.ts, event.dur
    where = _ON_THE_DEVICE if on_device else "host"
    if not isinstance(event.name, str):
        problem = "no_name"
    elif type(start) not in {int, float} or type(duration) not in {int, float}:
        problem = "no_time"
    elif not abs(start) < MAX_START_US:
        problem = "bad_start"
    elif duration < 0:
        problem = "negative_duration"
    elif duration > MAX_DURATION_US:
        problem = "endless"
    elif on_device and (event.args is None or not isinstance(_queue(event.args), int | str)):
        problem = "no_stream"
    else:
        return True
    problems[f"{where}_{problem}"] += 1
    return False


def _leave_out_far(found: _Found) -> None:
    """Leave out what happened more than eleven days from the other activities: no profile is so long."""
    starts = np.array([event.ts for event in found.device], dtype=np.float64)
    middle = np.sort(starts)[(len(starts) - 1) // 2] if len(starts) else 0.0
    far = np.abs(starts - middle) > MAX_DURATION_US
    if far.any():
        found.problems[f"{_ON_THE_DEVICE}_far"] += int(far.sum())
        found.device = [event for event, is_far in zip(found.device, far.tolist(), strict=True) if not is_far]


def _add_host_event(found: _Found, event: Event) -> None:
    """Keep steps of the profiler and calls of collectives; other host events are not needed."""
    name = event.name
    if not isinstance(name, str) or not (name == _CALL or name.startswith((ANNOTATION, "ProfilerStep"))):
        return
    if not _usable(event, found.problems):
        return
    step = _STEP.match(name)
    if step:
        _add_step(found, int(step[1]), event)
    else:
        call = _Call(event.ts, event.ts + event.dur, name, event.args)
        found.calls.setdefault(str(event.tid), []).append(call)


def _add_step(found: _Found, number: int, event: Event) -> None:
    """Keep a step; of two of one number the longer, as of a profiler within another."""
    known = found.steps.get(number)
    if known is not None:
        found.problems["host_twice"] += 1
    if known is None or known[1] < event.dur:
        found.steps[number] = event.ts, event.dur


def _add_memory(found: _Found, event: Event) -> None:
    arguments = event.args
    if arguments is None or whole(arguments.device_type, _MAX_WHOLE) <= _CPU:
        return
    num_bytes = whole(arguments.allocated_bytes, _MAX_HELD_BYTES)
    if type(event.ts) in {int, float} and num_bytes >= 0:
        found.memory.append((event.ts, num_bytes, whole(arguments.device_id, _MAX_WHOLE)))
    else:
        found.problems["memory_incomplete"] += 1


def _allocated(memory: list[tuple[float, int, int]], origin_us: float) -> tuple[Floats, Indices]:
    """Return when a rank's devices together held how many bytes, from what each of them held when that changed."""
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


def _event_waits(found: _Found, origin_us: float) -> Iterator[EventWait]:
    """Yield which stream waits for which, where the trace says both streams and both calls."""
    called = found.launches
    prefixed = _device_prefix(found.device)
    for event in found.device:
        arguments = event.args
        if (
            arguments is None
            or _category(event.cat) != "cuda_sync"
            or whole(arguments.waits_for_stream, _MAX_WHOLE) < 0
        ):
            continue
        wait, record = called.get(correlation_of(event)), called.get(whole(arguments.waits_for_record, _MAX_WHOLE))
        if wait is not None and record is not None:
            stream, other = (_stream(prefixed, event, s) for s in (arguments.stream, arguments.waits_for_stream))
            yield EventWait(stream, (wait.ts - origin_us) * US, other, (record.ts - origin_us) * US)


def _queue(arguments: Arguments) -> object:
    """Return the number of the stream: Intel's devices have queues."""
    return arguments.stream if arguments.stream is not None else arguments.queue


def _device_prefix(events: list[Event]) -> bool:
    """Return whether streams are named with their device: where a rank has several."""
    return len({str(event.args.device) for event in events if event.args is not None}) > 1


def _stream(prefixed: bool, event: Event, number: object) -> str:
    """Return what a stream is called."""
    return f"device {event.args.device if event.args else None} stream {number}" if prefixed else f"stream {number}"


def _rows(found: _Found, origin_us: float, groups: dict[str, Group]) -> DeviceRows:
    """Return the device's activities as columns, by start."""
    events = sorted(found.device, key=lambda event: (event.ts, event.dur))
    correlations = [correlation_of(event) for event in events]
    calls = [found.launches.get(correlation) for correlation in correlations]
    prefixed = _device_prefix(events)
    names, kinds, streams, facts, sizes = [], [], [], {}, []
    for row, (event, call) in enumerate(zip(events, calls, strict=True)):
        arguments = event.args or Arguments()
        kind, num_bytes = _DEVICE[_category(event.cat)], max(0, whole(arguments.num_bytes, _MAX_WHOLE))
        if kind == "compute" and communicates(event.name):
            facts[row] = _facts(event, call, found, groups)
            kind, num_bytes = facts[row].kind, max(0, facts[row].num_bytes)
        elif kind == SYNC and "wait event" in event.name.lower():
            kind = WAIT
        names.append(event.name)
        kinds.append(kind)
        streams.append(_stream(prefixed, event, _queue(arguments)))
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


def _facts(event: Event, launch: Event | None, found: _Found, groups: dict[str, Group]) -> Facts:
    """Return what is known of a communication kernel: from itself, from the call that launched it, from its name."""
    own = argument_facts(event.args, groups) if event.args is not None else None
    if own is not None:
        return own
    by_name = kernel_facts(event.name)
    enclosing = _enclosing(found.calls.get(str(launch.tid), []), launch.ts) if launch is not None else []
    for call in enclosing:
        said = argument_facts(call.arguments, groups) if call.arguments is not None else None
        if said is not None:
            return said
    for call in enclosing:
        said = annotation_facts(call.name, call.arguments)
        if said is not None:
            return said
    return by_name


def _enclosing(calls: list[_Call], at_us: float) -> list[_Call]:
    """Return the calls of one thread that last at a moment, innermost first."""
    position = bisect_right(calls, at_us, key=lambda call: call.start_us)
    return [call for call in reversed(calls[max(0, position - 8) : position]) if call.end_us >= at_us]
