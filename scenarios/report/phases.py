"""What part of a training step an op belongs to, and how reports show it."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traces.timeline import Words


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the step: words for the legend, a colour, and whether it has the communication lane of its rank."""

    key: str
    words: str
    colour: str
    is_communication: bool = False


FORWARD: Final = Phase("forward", "forward", "#4a7fd6")
BACKWARD: Final = Phase("backward", "backward", "#2f9c83")
HEAD: Final = Phase("head", "auxiliary head and loss", "#b5528c")
OPTIMIZER: Final = Phase("optimizer", "optimizer", "#c9962f")
OTHER: Final = Phase("other", "other", "#8a8f98")
MESSAGE: Final = Phase("message", "send and receive", "#9a6fc9", is_communication=True)
SYNC: Final = Phase("gradient_sync", "gradient sync", "#d9694f", is_communication=True)

BACKWARD_WEIGHT: Final = Phase("backward_weight", "backward, its part for weights", "#8fd0bf")
"""Where backwards in two parts are told apart; elsewhere both are ``BACKWARD``."""

PHASES: Final = (FORWARD, HEAD, BACKWARD, OPTIMIZER, OTHER, MESSAGE, SYNC)

_PREFIXES: Final = {
    "forward": FORWARD,
    "newest": FORWARD,
    "head": HEAD,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "send": MESSAGE,
    "recv": MESSAGE,
    "gradient_sync": SYNC,
    "deferred_sync": SYNC,
}


def task_of(name: str) -> str:
    """Return the task of an op: the name up to the first slash."""
    return name.split("/", maxsplit=1)[0]


def phase_of(name: str) -> Phase:
    """Return the phase that an op's or task's name begins with."""
    task = task_of(name)
    for prefix, phase in _PREFIXES.items():
        if task.startswith(prefix):
            return phase
    return OTHER


def action_phase_of(name: str) -> Phase:
    """Return the phase of a task, the part of a backward for weights told apart from the rest."""
    return BACKWARD_WEIGHT if name.startswith("backward_weight") else phase_of(name)


def phase_codes(name: Words) -> NDArray[np.int64]:
    """Return, for every row of a column of names, the position of its phase in ``PHASES``."""
    by_name = np.array([PHASES.index(phase_of(value)) for value in name.values] or [0], dtype=np.int64)
    return np.asarray(by_name[name.codes])
