"""Words and colours for what a rank's time and memory go to."""

from typing import Final

from sim.engine.breakdown import BUBBLE

COMPUTING: Final = ("computing", "#4a7fd6")
IDLE: Final = ("idle", "#c3c9d1")

_CAUSES: Final = (
    ("tp", "tensor-parallel communication", "#9a6fc9"),
    ("dp", "data-parallel communication", "#d9694f"),
    ("pp", "pipeline messages", "#d2a13c"),
    ("embedding", "tied embedding's gradient sync", "#b5566f"),
    (BUBBLE, "pipeline bubble", "#aab2bd"),
)
_MEMORY_COLOURS: Final = ("#4a7fd6", "#7da7e8", "#d2a13c", "#2f9c83", "#9a6fc9", "#8a8f98", "#d9694f", "#6b7f99")
_KIND_COLOURS: Final = ("#9a6fc9", "#4a7fd6", "#d2a13c", "#2f9c83", "#d9694f", "#8a8f98", "#b5566f")


def cause_of(stream: str) -> tuple[str, str]:
    """Return words and colour of what a rank waits for, from the stream that ran meanwhile (or ``bubble``)."""
    for prefix, words, colour in _CAUSES:
        if stream == prefix or stream.startswith(f"{prefix}_"):
            return words, colour
    return f"waiting for {stream}", "#6b7f99"


def memory_colour(index: int) -> str:
    """Return the colour of the n-th kind of memory."""
    return _MEMORY_COLOURS[index % len(_MEMORY_COLOURS)]


def kind_colour(index: int) -> str:
    """Return the colour of the n-th kind of op."""
    return _KIND_COLOURS[index % len(_KIND_COLOURS)]


def role_colour(position: float) -> str:
    """Return a colour between blue (first role, 0) and orange (last role, 1)."""
    first, last = (74, 127, 214), (217, 123, 63)
    mixed = [round(one + (other - one) * position) for one, other in zip(first, last, strict=True)]
    return f"rgb({mixed[0]},{mixed[1]},{mixed[2]})"
