"""What to know of a recording before believing its figures, as summaries say it."""

from collections.abc import Iterable
from dataclasses import dataclass

from traces.doubt import Doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingWarning:
    """A kind of doubt, how many cases there are, an example where it says more, and the doubt in words."""

    kind: str
    count: int
    example: str
    text: str


def warnings_of(doubts: Iterable[Doubt]) -> tuple[RecordingWarning, ...]:
    """Return doubts as a summary holds them."""
    return tuple(
        RecordingWarning(kind=doubt.kind, count=doubt.count, example=doubt.example, text=doubt.text) for doubt in doubts
    )
