"""The packed drawing of one timeline or two in a page."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpLanes:
    """Packed data for ``op_lanes.js``, the colours of its kinds, and a note on omissions."""

    data: str
    legend: tuple[tuple[str, str], ...]
    note: str
