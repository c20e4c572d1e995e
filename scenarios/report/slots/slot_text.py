"""A slot diagram for the terminal: a line of characters per rank, as wide as the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.style import Style
from rich.text import Text

from costmodels.units import format_time
from scenarios.report.phases import BACKWARD, BACKWARD_WEIGHT, FORWARD, HEAD, OPTIMIZER, SYNC, Phase
from scenarios.report.slots.slot_diagram import Slot, SlotDiagram, is_backward_message, is_sync

_BEGINNING: Final = 0.62
"""Fraction of the room for the beginning of a cut diagram; the end gets the rest."""
_LETTERS: Final = {FORWARD.key: "F", HEAD.key: "H", BACKWARD.key: "B", BACKWARD_WEIGHT.key: "W", OPTIMIZER.key: "O"}
_PALER: Final = 0.42
_CUT: Final = " ... "
_ON_COLUMN: Final = 1e-3
_LEAST_CELLS: Final = 0.3
"""Messages below this fraction of a character are not drawn."""


def print_slots(diagram: SlotDiagram, console: Console) -> None:
    """Print the diagram, its axis and legend, and a note on omissions."""
    drawing = _Drawing(diagram, console)
    for line in (*drawing.rows(), drawing.axis(), drawing.legend()):
        console.print(line, soft_wrap=True)
    for note in drawing.notes():
        console.print(Text(note, style="dim"), soft_wrap=True)


Cell = tuple[str, Style]
_BLANK: Final = Style()
_DIM: Final = Style(dim=True)


@dataclass(slots=True)
class _Drawing:
    """A diagram on a console. ``spans``: the shown columns, one run or the beginning and the end.

    A column is a stretch of time. On a console with colours a box shows the number of its micro-batch, as in papers;
    without colours also a letter, in lower case for every other virtual stage of a rank.
    """

    diagram: SlotDiagram
    console: Console
    margin: int = field(init=False)
    columns_per_s: float = field(init=False)
    spans: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        diagram = self.diagram
        self.margin = max(map(len, diagram.ranks), default=0) + 2
        widest = max((len(self._label(slot)) for slot in diagram.boxes), default=0)
        self.columns_per_s = self._scale(widest + 1)
        room, total = max(20, self.console.width - self.margin), self._column(diagram.end_s)
        self.spans = [(0, total)]
        if total > room:
            beginning = int(_BEGINNING * (room - len(_CUT)))
            self.spans = [(0, beginning), (total - (room - len(_CUT) - beginning), total)]

    def _scale(self, width: int) -> float:
        """Return the columns per second at which the shortest typical pass has at least ``width`` columns.

        If passes do not begin at multiples of a column, it has one more, since rounding takes a column from some
        passes.
        """
        unit_s = self.diagram.unit_s
        if not unit_s:
            return 0.0
        begins = (slot.start_s * width / unit_s for slot in self.diagram.boxes)
        fits = all(abs(begin - round(begin)) < _ON_COLUMN for begin in begins)
        return (width if fits else width + 1) / unit_s

    @property
    def _coloured(self) -> bool:
        return self.console.color_system is not None and not self.console.no_color

    @property
    def _ground(self) -> Cell:
        return ("." if self.console.options.ascii_only else "·"), _DIM

    def rows(self) -> list[Text]:
        """Return a line per rank, followed by a line of its visible messages and synchronisation, if any."""
        lanes = range(len(self.diagram.ranks))
        boxes = [
            self._line(name, self.diagram.boxes, lane, self._ground) for lane, name in enumerate(self.diagram.ranks)
        ]
        visible = [slot for slot in self.diagram.lines if slot.duration_s * self.columns_per_s >= _LEAST_CELLS]
        below = [self._line("", visible, lane, (" ", _BLANK)) for lane in lanes]
        if not any(line.plain.replace(_CUT, "").strip() for line in below):
            return boxes
        return [line for pair in zip(boxes, below, strict=True) for line in pair]

    def axis(self) -> Text:
        """Return the times at both ends of the shown part."""
        parts = []
        for first, last in self.spans:
            begin, end = (
                format_time(column / self.columns_per_s if self.columns_per_s else 0.0) for column in (first, last)
            )
            parts.append(f"{begin}{end:>{max(1, last - first - len(begin))}}")
        return Text(" " * self.margin + _CUT.join(parts), style="dim")

    def legend(self) -> Text:
        """Return the meaning of the colours or letters."""
        text = Text(" " * self.margin)
        for phase in self.diagram.phases:
            if phase.is_communication:
                continue
            sign = "   " if self._coloured else _LETTERS.get(phase.key, "*")
            text.append(sign, self._style(phase, 0)).append(f" {phase.words}   ")
        text.append(self._ground[0] * 3, _DIM).append(" idle")
        lines = self.diagram.lines
        if any(not is_sync(slot) for slot in lines):
            text.append("   > < messages forward, backward")
        if any(is_sync(slot) for slot in lines):
            text.append(f"   = {SYNC.words}")
        return text

    def notes(self) -> list[str]:
        """Return notes on the drawing: shading, cuts and hidden ranks."""
        notes = []
        if self.diagram.has_chunks:
            other = "paler" if self._coloured else "in small letters"
            notes.append(f"every other virtual stage of a rank is {other}")
        if len(self.spans) > 1:
            hidden_s = (self.spans[1][0] - self.spans[0][1]) / self.columns_per_s
            notes.append(f"cut to the width of the terminal: {format_time(hidden_s)} in the middle are not shown")
        if self.diagram.hidden_ranks:
            notes.append(f"{self.diagram.hidden_ranks:,} more ranks are not shown")
        return notes

    # --- one line ------------------------------------------------------------------------------------------

    def _line(self, name: str, slots: Sequence[Slot], lane: int, ground: Cell) -> Text:
        text = Text(f"{name:<{self.margin}}", no_wrap=True)
        for index, (first, last) in enumerate(self.spans):
            if index:
                text.append(_CUT, _DIM)
            cells = [ground] * (last - first)
            for slot in slots:
                if slot.lane == lane:
                    self._put(cells, slot, first)
            for character, style in cells:
                text.append(character, style)
        return text

    def _put(self, cells: list[Cell], slot: Slot, first: int) -> None:
        """Write a slot into the cells from column ``first`` on."""
        begin = self._column(slot.start_s)
        width = max(1, self._column(slot.end_s) - begin)
        if begin + width <= first or begin >= first + len(cells):
            return
        is_whole = begin >= first and begin + width <= first + len(cells)
        for offset, cell in enumerate(self._cells(slot, width, has_label=is_whole)):
            if 0 <= begin + offset - first < len(cells):
                cells[begin + offset - first] = cell

    def _cells(self, slot: Slot, width: int, *, has_label: bool) -> list[Cell]:
        """Return the characters of a slot; a cut slot has no number, since only some digits would be visible."""
        if slot.phase.is_communication:
            sign = "=" if is_sync(slot) else "<" if is_backward_message(slot) else ">"
            return [(sign, Style(color=slot.phase.colour))] * width
        style = self._style(slot.phase, slot.chunk)
        label = self._label(slot) if has_label else self._letter(slot)
        if len(label) >= width:
            label = label if len(label) == width else ""
            return [(character, style) for character in f"{label:<{width}}"]
        edge = "|" if not self._coloured or self.console.options.ascii_only else "▏"
        return [(character, style) for character in edge + f"{label:^{width - 1}}"]

    def _label(self, slot: Slot) -> str:
        return self._letter(slot) + slot.label

    def _letter(self, slot: Slot) -> str:
        """Return the letter of a slot's phase; empty on a console with colours."""
        if self._coloured:
            return ""
        letter = _LETTERS.get(slot.phase.key, "*")
        return letter.lower() if slot.chunk % 2 else letter

    def _style(self, phase: Phase, chunk: int) -> Style:
        if not self._coloured:
            return _BLANK
        ground = _blended(phase.colour, _PALER if chunk % 2 else 0.0)
        return Style(color="#ffffff" if _luminance(ground) < 0.55 else "#101418", bgcolor=ground)

    def _column(self, time_s: float) -> int:
        return round(time_s * self.columns_per_s)


def _blended(colour: str, with_white: float) -> str:
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * with_white):02x}" for part in parts)


def _luminance(colour: str) -> float:
    """Return the relative luma of a colour, 0 (black) to 1 (ITU-R BT.601)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue
