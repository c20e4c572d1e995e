"""Words and colours for the parts of a rank's time and memory.

A colour has the same meaning on all charts of a page.
"""

from typing import Final

import numpy as np

from scenarios.report.phases import FORWARD, MESSAGE, OPTIMIZER, SYNC
from sim.engine.findings.breakdown import BUBBLE, EXPERT_WAIT
from sim.plan.words.stream import Purpose, stream_of

COMPUTING: Final = ("computing", FORWARD.colour)
COMPUTATION: Final = {
    "needed": COMPUTING,
    "recomputed": ("computing again (recomputation)", "#9dbbec"),
    "empty_slots": ("computing on empty expert slots", "#c7cf7d"),
    "duplicated": ("computing the same on several ranks", "#7cc4d8"),
}
"""The purposes of computing, as in a summary."""
IDLE: Final = ("idle", "#c3c9d1")

_CAUSES: Final = {
    Purpose.TENSOR: ("tensor-parallel communication", "#e3bd3f"),
    Purpose.EXPERT: ("expert-parallel exchange", "#d6659b"),
    Purpose.CONTEXT: ("context-parallel communication", "#a8963a"),
    Purpose.DATA: ("data-parallel communication", SYNC.colour),
    Purpose.PIPELINE: ("pipeline messages", MESSAGE.colour),
    Purpose.TO_HOST: ("copies to the host", "#7d8c3f"),
    Purpose.FROM_HOST: ("copies from the host", "#a3b05c"),
    Purpose.HOST: ("optimizer on the host", "#5f8f8b"),
    Purpose.NVME: ("copies from and to drives", "#8a7a5c"),
    Purpose.BACKGROUND: ("moves in the background", "#6b7f99"),
    Purpose.TIED_EMBEDDING: ("tied embedding's gradient sync", "#9c3d2e"),
}
_MESH_COLOURS: Final = {
    "row": "#e3bd3f", "column": "#c79a1e", "depth": "#8f6d0c", "input": "#e3bd3f", "weight": "#c79a1e",
    "output": "#8f6d0c",
}  # fmt: skip
"""Colours of mesh axes; a method has two or three axes."""
_BUBBLE: Final = ("pipeline bubble", "#aab2bd")
_EXPERT_WAIT: Final = ("waiting for ranks with busier experts", "#f0a8c8")
_MEMORY_COLOURS: Final = {
    "parameter": "#5b6fb5",
    "gradient": "#e08e79",
    "optimizer": OPTIMIZER.colour,
    "activation": "#5fb3a3",
    "workspace": "#50627d",
    "cache": "#9a77c0",
}
_ROLE_STOPS: Final = ((59, 190, 232), (91, 80, 170), (200, 150, 60))  # red, green, blue


def cause_of(stream: str) -> tuple[str, str]:
    """Return words and colour of a cause of waiting: a stream that ran meanwhile, ``bubble`` or ``expert_wait``."""
    if stream == EXPERT_WAIT:
        return _EXPERT_WAIT
    purpose, axis = stream_of(stream).purpose, stream_of(stream).axis
    if axis:
        words, colour = _CAUSES[Purpose.TENSOR]
        return f"{words} along {axis}", _MESH_COLOURS.get(axis, colour)
    if purpose in _CAUSES:
        return _CAUSES[purpose]
    return _BUBBLE if stream == BUBBLE else (f"waiting for {stream}", "#6b7f99")


def memory_colour(kind: str) -> str:
    """Return the colour of a kind of memory."""
    return _MEMORY_COLOURS.get(kind, "#6b7f99")


def role_colour(position: float) -> str:
    """Return a colour from blue (first role, 0) over magenta to yellow (last role, 1), the later the lighter."""
    red, green, blue = (round(float(np.interp(position, (0, 0.5, 1), stops))) for stops in _ROLE_STOPS)
    return f"rgb({red},{green},{blue})"
