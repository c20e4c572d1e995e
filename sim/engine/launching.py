"""Devices that wait for the host: a thread launches the ops of a task in order, and none begins before its launch."""

from collections.abc import Sequence
from dataclasses import replace

from sim.engine.activity import Activity
from sim.engine.shape import analyse
from sim.plan.program import Task


def launched(task: Task, launches_s: Sequence[float], activities: Sequence[Activity]) -> tuple[Activity, ...]:
    """Return a task's activities, each with the time that it waits for its launch before its latency.

    ``launches_s``: host time per op, in issue order; empty: none. The host begins a task when the device does, and
    runs ahead within it: an op is late by what the launches so far take longer than the ops before it.
    """
    if not launches_s:
        return tuple(activities)
    result: list[Activity] = []
    ends_s: list[float] = []
    host_s = 0.0
    for activity, launch_s, predecessors in zip(activities, launches_s, analyse(task).predecessors, strict=True):
        host_s += launch_s
        ready_s = max((ends_s[index] for index in predecessors), default=0.0)
        late_s = max(host_s - ready_s, 0.0)
        result.append(replace(activity, latency_s=activity.latency_s + late_s) if late_s else activity)
        ends_s.append(ready_s + late_s + activity.duration_s)
    return tuple(result)
