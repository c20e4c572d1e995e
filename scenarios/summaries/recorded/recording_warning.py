"""Doubts about a recording, as summaries hold them."""

from collections.abc import Iterable

from msgspec import Struct

from traces.doubt import Doubt


class RecordingWarning(Struct, frozen=True, kw_only=True):
    """A kind of doubt, its number of cases, one case or an amount (may be empty), and all of this in words."""

    kind: str
    count: int
    example: str
    text: str


def warnings_of(doubts: Iterable[Doubt]) -> tuple[RecordingWarning, ...]:
    """Return doubts with their words."""
    return tuple(
        RecordingWarning(kind=doubt.kind, count=doubt.count, example=doubt.example, text=doubt.text) for doubt in doubts
    )
