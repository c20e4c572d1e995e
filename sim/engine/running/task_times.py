"""When the ops of a task ran, in all its calls."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.running.period import Times
from sim.plan.words.program import Task


class TaskTimes(Struct, frozen=True):
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
