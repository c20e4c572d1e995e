"""The parts of a training step, and their look in reports."""

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.plan.words.stream import Purpose, stream_of
from traces.timeline import Words


class Phase(Struct, frozen=True):
    """A part of the step: words for the legend, a colour, and whether it is drawn in its rank's communication lane."""

    key: str
    words: str
    colour: str
    is_communication: bool = False


FORWARD: Final = Phase("forward", "forward", "#4a7fd6")
BACKWARD: Final = Phase("backward", "backward", "#2f9c83")
BACKWARD_WEIGHT: Final = Phase("backward_weight", "backward, its part for weights", "#8fd0bf")
PREFILL: Final = Phase("prefill", "prompts", "#4a7fd6")
DECODE: Final = Phase("decode", "decoding", "#2f9c83")
HEAD: Final = Phase("head", "auxiliary head and loss", "#b5528c")
OPTIMIZER: Final = Phase("optimizer", "optimizer", "#b07d2b")
OTHER: Final = Phase("other", "other", "#8a8f98")
MESSAGE: Final = Phase("message", "send and receive", "#9a6fc9", is_communication=True)
SYNC: Final = Phase("sync", "sync of gradients and parameters", "#d9694f", is_communication=True)

PASSES: Final = (FORWARD, HEAD, BACKWARD, BACKWARD_WEIGHT, PREFILL, DECODE)
PHASES: Final = (*PASSES, OPTIMIZER, OTHER, MESSAGE, SYNC)

_PREFIXES: Final = {
    "forward": FORWARD,
    "newest": FORWARD,
    "head": HEAD,
    "backward_weight": BACKWARD_WEIGHT,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "prefill": PREFILL,
    "decode": DECODE,
    "send": MESSAGE,
    "recv": MESSAGE,
    "gradient_sync": SYNC,
    "deferred_sync": SYNC,
}


def task_of(name: str) -> str:
    """Return the task of an op: its name up to the first slash."""
    return name.split("/", maxsplit=1)[0]


def phase_of(name: str, stream: str = Purpose.COMPUTE) -> Phase:
    """Return the phase of an op or task, from the beginning of its name.

    A pass waits for its tensor-parallel collectives and its experts' exchanges, so they belong to it. Other ops of a
    task outside stream ``compute`` run beside the pass: they gather parameters or synchronise gradients.
    """
    task = task_of(name)
    phase = next((phase for prefix, phase in _PREFIXES.items() if task.startswith(prefix)), OTHER)
    purpose = stream_of(stream).purpose
    is_waited_for = purpose in {Purpose.TENSOR, Purpose.EXPERT} and phase in PASSES
    return phase if phase.is_communication or purpose == Purpose.COMPUTE or is_waited_for else SYNC


def phase_codes(name: Words, stream: Words) -> NDArray[np.int64]:
    """Return, for every row of the name and stream columns, the index of its phase in ``PHASES``."""
    pairs = name.codes.astype(np.int64) * len(stream.values) + stream.codes
    present, rows = np.unique(pairs, return_inverse=True)
    names_and_streams = (divmod(pair, len(stream.values)) for pair in present.tolist())
    codes = [PHASES.index(phase_of(name.values[i], stream.values[j])) for i, j in names_and_streams]
    return np.asarray(np.array(codes, dtype=np.int64)[rows.ravel()])
