"""Devices that wait for the host: a thread launches the ops of a task in order, and none begins before its launch."""

from collections.abc import Sequence

from msgspec.structs import replace

from sim.engine.prices.activity import Activity


def launched(
    predecessors: Sequence[Sequence[int]], launches_s: Sequence[float], activities: Sequence[Activity]
) -> tuple[Activity, ...]:
    """Return a task's activities, with each op's wait for its launch added to its latency.

    ``predecessors``: the ops that each op waits for. ``launches_s``: host time per op, in issue order; empty: none. The
    host begins a task together with the device, and runs ahead within it. An op is late if the launches up to its own
    take longer than the ops before it.
    """
    if not launches_s:
        return tuple(activities)
    result: list[Activity] = []
    ends_s: list[float] = []
    host_s = 0.0
    for activity, launch_s, waits in zip(activities, launches_s, predecessors, strict=True):
        host_s += launch_s
        ready_s = max([ends_s[index] for index in waits], default=0.0)
        late_s = max(host_s - ready_s, 0.0)
        result.append(_later(activity, late_s) if late_s else activity)
        ends_s.append(ready_s + late_s + activity.duration_s)
    return tuple(result)


def _later(activity: Activity, late_s: float) -> Activity:
    return replace(activity, latency_s=activity.latency_s + late_s)
