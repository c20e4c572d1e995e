"""The console of all commands: it shows texts literally, and no text can control the terminal."""

from collections.abc import Iterable
from itertools import accumulate
from typing import IO, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Span, Text

from scenarios.console.streams import leave_quietly
from scenarios.errors import printable

PLAIN_WIDTH: Final = 120
"""Columns without a terminal."""


class Terminal(Console):
    """A rich console for texts without markup and without unprintable characters.

    All texts, those of tables too, become segments in ``render`` and are cleaned there. Colours and the movements of a
    progress bar are no text, and stay.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    @property
    def file(self) -> IO[str]:
        """Return the stream without its safe wrapper: the texts here are clean, and colours are wanted."""
        stream = super().file
        while (behind := getattr(stream, "rich_proxied_file", None)) is not None:
            stream = behind
        return stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield segments that are safe to print."""
        for segment in super().render(_cleaned(renderable), options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """End the program, as its reader is gone."""
        self.quiet = True
        leave_quietly()


def open_console(*, stderr: bool = False, plain_width: int = PLAIN_WIDTH) -> Terminal:
    """Return standard output (or error), as wide as the terminal; without a terminal, ``plain_width`` columns."""
    console = Terminal(stderr=stderr)
    return console if console.is_terminal else Terminal(stderr=stderr, width=plain_width)


def _cleaned(renderable: RenderableType) -> RenderableType:
    """Return text cleaned before its lines are broken; anything else as it is."""
    if isinstance(renderable, str):
        return printable(renderable)
    if isinstance(renderable, Text) and printable(renderable.plain) != renderable.plain:
        signs = [printable(sign) for sign in renderable.plain]
        moved = list(accumulate(map(len, signs), initial=0))
        clean = renderable.blank_copy("".join(signs))
        clean.spans = [Span(moved[span.start], moved[span.end], span.style) for span in renderable.spans]
        return clean
    return renderable
