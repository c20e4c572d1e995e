"""When the ops of a task ran, in all its calls."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.engine.running.period import Times
from sim.plan.words.program import Task


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """All calls of one task of one rank: ``starts_s[c, j]`` is when op j of the c-th call began.

    ``nodes[c] + j`` is that op's node, where ``nodes[c]`` is not -1 (a coalesced call). ``wired``: sends of messages
    that are one node with their receive.
    """

    task: Task
    calls: NDArray[np.int64]
    nodes: NDArray[np.int64]
    starts_s: Times
    ends_s: Times
    wired: bool
