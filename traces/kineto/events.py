"""The events of one file by kind. Unusable events are counted."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from traces.kineto.collective import ANNOTATION
from traces.kineto.document import MAX_WHOLE, NO_CORRELATION, Arguments, Event, correlation_of, whole
from traces.kineto.rank import SYNC

MAX_DURATION_US: Final = 1e12
"""Longer activities (eleven days) are broken records, such as an event whose end was never written."""
MAX_START_US: Final = 1e16
"""Largest start: any time since 1970 in microseconds is below it, one in nanoseconds above."""

_DEVICE: Final = {
    "kernel": "compute", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "mlu_memcpy": "memcpy", "gpu_memset": "memset",
    "memset": "memset", "mlu_memset": "memset", "cuda_sync": SYNC,
}  # fmt: skip
_LAUNCHES: Final = ("runtime", "driver")
"""Last words of categories of calls, for all vendors: ``cuda_runtime``, ``xpu_runtime``, ``privateuse1_driver``."""
_OPERATORS: Final = frozenset({"cpu_op", "operator"})
_HOST: Final = frozenset({*_OPERATORS, "user_annotation"})
_NO_WORK: Final = frozenset({"gpu_user_annotation", "mlu_user_annotation", "cuda_event", "cuda_profiler_range"})
"""Categories with a stream but without device work: spans of the host's annotations, records of events."""
_NESTED: Final = 16
"""Number of a thread's calls searched backwards for those that enclose a moment."""
_CALL: Final = "record_param_comms"
_STEP: Final = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_MEMORY: Final = "[memory]"
_CPU: Final = 0
"""Torch's number of the CPU among device types."""
ON_THE_DEVICE: Final = "device"
_MAX_HELD_BYTES: Final = 1 << 48
"""Limit of held memory, a thousand times that of a device: more is a broken record."""


@dataclass(slots=True)
class Sorted:
    """Events by kind, and the number of unusable ones by reason.

    ``launches``: calls by their correlation number. ``calls`` of collectives, and ``operators`` of torch: by thread,
        each by start.
    ``steps``: start and duration (us) by number.
    ``memory``: times (us) with the held bytes and the device.
    """

    device: list[Event] = field(default_factory=list)
    launches: dict[int, Event] = field(default_factory=dict)
    calls: dict[str, list[Event]] = field(default_factory=dict)
    operators: dict[str, list[Event]] = field(default_factory=dict)
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)


def sort_out(events: Sequence[Event], *, with_operators: bool = False) -> Sorted:
    """Return the used events by kind; operators, which are many, only if asked for."""
    found = Sorted()
    for event in events:
        category = _category(event.cat) if isinstance(event.cat, str) else ""
        if category in _DEVICE:
            if _usable(event, found.problems, on_device=True):
                found.device.append(event)
        elif category.endswith(_LAUNCHES):
            _add_launch(found, event)
        elif category in _HOST:
            _add_host_event(found, event)
            if with_operators and category in _OPERATORS and _usable(event, found.problems):
                found.operators.setdefault(str(event.tid), []).append(event)
        elif event.name == _MEMORY:
            _add_memory(found, event)
        elif event.args is not None and event.args.stream is not None and category not in _NO_WORK:
            found.problems[f"{ON_THE_DEVICE}_unknown"] += 1
    for calls in (*found.calls.values(), *found.operators.values()):
        calls.sort(key=lambda call: (call.ts, -call.dur))
    _leave_out_far(found)
    return found


def count_operators(events: Sequence[Event]) -> int:
    """Return the number of torch's operators on the host."""
    return sum(isinstance(event.cat, str) and _category(event.cat) in _OPERATORS for event in events)


def kind_of_activity(event: Event) -> str:
    """Return the kind of a device activity: ``compute``, ``memcpy``, ``memset``, or SYNC if it only waits."""
    return _DEVICE[_category(event.cat)]


def queue_of(arguments: Arguments) -> object:
    """Return the number of the stream; Intel's devices call it a queue."""
    return arguments.stream if arguments.stream is not None else arguments.queue


def enclosing(calls: Sequence[Event], at_us: float) -> list[Event]:
    """Return the calls of one thread, by start, that enclose a moment, innermost first."""
    position = bisect_right(calls, at_us, key=lambda call: call.ts)
    return [call for call in reversed(calls[max(0, position - _NESTED) : position]) if call.ts + call.dur >= at_us]


def _add_launch(found: Sorted, event: Event) -> None:
    """Keep a call by its number; of two with one number the earlier."""
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
    """Return a category in newer profilers' spelling; cached, as a trace has many events of few categories."""
    return name.lower()


def _usable(event: Event, problems: Counter[str], *, on_device: bool = False) -> bool:
    """Return whether an event has name, start and a plausible duration (and a stream); count the reason if not."""
    start, duration = event.ts, event.dur
    where = ON_THE_DEVICE if on_device else "host"
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
    elif on_device and (event.args is None or not isinstance(queue_of(event.args), int | str)):
        problem = "no_stream"
    else:
        return True
    problems[f"{where}_{problem}"] += 1
    return False


def _leave_out_far(found: Sorted) -> None:
    """Leave out activities more than eleven days from the others: no profile is so long."""
    starts = np.array([event.ts for event in found.device], dtype=np.float64)
    middle = np.sort(starts)[(len(starts) - 1) // 2] if len(starts) else 0.0
    far = np.abs(starts - middle) > MAX_DURATION_US
    if far.any():
        found.problems[f"{ON_THE_DEVICE}_far"] += int(far.sum())
        found.device = [event for event, is_far in zip(found.device, far.tolist(), strict=True) if not is_far]


def _add_host_event(found: Sorted, event: Event) -> None:
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
        found.calls.setdefault(str(event.tid), []).append(event)


def _add_step(found: Sorted, number: int, event: Event) -> None:
    """Keep a step; of two with one number the longer, as for a profiler within another."""
    known = found.steps.get(number)
    if known is not None:
        found.problems["host_twice"] += 1
    if known is None or known[1] < event.dur:
        found.steps[number] = event.ts, event.dur


def _add_memory(found: Sorted, event: Event) -> None:
    arguments = event.args
    if arguments is None or whole(arguments.device_type, MAX_WHOLE) <= _CPU:
        return
    num_bytes = whole(arguments.allocated_bytes, _MAX_HELD_BYTES)
    if type(event.ts) in {int, float} and num_bytes >= 0:
        found.memory.append((event.ts, num_bytes, whole(arguments.device_id, MAX_WHOLE)))
    else:
        found.problems["memory_incomplete"] += 1
