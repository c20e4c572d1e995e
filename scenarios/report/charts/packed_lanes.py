"""The packed drawing of one timeline or two in a page."""

from msgspec import Struct


class OpLanes(Struct, frozen=True):
    """Packed data for ``op_lanes.js``, the colours of its kinds, and a note on omissions."""

    data: str
    legend: tuple[tuple[str, str], ...]
    note: str
