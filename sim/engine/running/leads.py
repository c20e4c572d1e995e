"""Leads that shrink: how long a run cannot have a period yet.

A message may come long before its receiver needs it. If the receiver is faster than the sender, this lead shrinks by
equally much per micro-batch. Until it is used up, the receiver does not wait, and no state of the run comes back.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from sim.engine.running.period import Times
from sim.engine.running.run import SimulatedRun
from sim.engine.running.task_times import TaskTimes
from sim.plan.facts.repetition import Repetition
from sim.plan.words.op import Recv

EVEN: Final = 1e-6
"""A lead shrinks evenly if its last two losses differ by no larger part."""


def repetitions_in_lead(run: SimulatedRun, repetition_of: Mapping[int, Repetition]) -> int:
    """Return for how many more repetitions the lead that is used up first lasts; 0 where none shrinks evenly.

    ``repetition_of``: what repeats in the programs of the run, by simulated rank.
    """
    leads = [lead_s for rank in run.programs for lead_s in _leads_s(run, rank, repetition_of[rank])]
    return min([number for lead_s in leads if (number := _lasts(lead_s))], default=0)


def _lasts(lead_s: Times) -> int:
    """Return how many more times a lead can lose what it lost last; 0 if it does not shrink evenly."""
    if len(lead_s) < 3:
        return 0
    before_s, lost_s = -np.diff(lead_s[-3:])
    even = lost_s > EVEN * lead_s[-1] > 0.0 and abs(lost_s - before_s) <= EVEN * lost_s
    return int(lead_s[-1] / lost_s) if even else 0


def _leads_s(run: SimulatedRun, rank: int, repetition: Repetition) -> Iterator[Times]:
    """Yield, for each task that receives a message, by how much it came too early in every repeated call."""
    tasks = run.task_times(rank)
    for message in tasks:
        received = {name for op in message.task.ops if isinstance(op, Recv) for name in op.writes}
        if received:
            found = [_before(message, reader, received, repetition) for reader in tasks if reader is not message]
            yield min([lead_s for lead_s in found if len(lead_s)], key=lambda lead_s: lead_s[-1], default=np.zeros(0))


def _before(message: TaskTimes, reader: TaskTimes, received: set[str], repetition: Repetition) -> Times:
    """Return how long before its first reading op each message had come; empty if the task does not read it."""
    place = next((j for j, op in enumerate(reader.task.ops) if not received.isdisjoint(op.reads)), None)
    if place is None:
        return np.zeros(0)
    first, stop = np.searchsorted(reader.calls, (repetition.first, repetition.stop)).tolist()
    stop = min(stop, len(message.calls))
    rows = slice(first, stop)
    lead_s: Times = (reader.at_rows(rows).starts_of([place]) - message.at_rows(rows).ends_of([-1])).ravel()
    return lead_s
