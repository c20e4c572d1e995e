"""The drawing of two timelines, as a page holds it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpLanes:
    """What ``op_lanes.js`` draws, packed; the colours of its kinds, and what is not drawn."""

    data: str
    legend: tuple[tuple[str, str], ...]
    note: str
