"""Blocks: the contents of a report, without its form. Pages, terminals and notebooks render the same blocks.

A kind of work answers with a list of blocks::

    blocks = [
        Headline("my run", "8 ranks", cards=(Card("Time per step", "1.2 s", "90 %: 1.1 s to 1.3 s"),)),
        Section("By kind", (Table(("kind", "time"), (("gemm", "1.0 s"), ("all_reduce", "0.2 s"))),)),
    ]

All texts are plain: ``<b>`` in a name is shown literally. Pages and notebooks show charts; a terminal leaves them out.
The vocabulary is closed: a new block needs only a template and a line in the terminal's table of printers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from scenarios.report.charts import gantt as gantt_chart
from scenarios.report.charts import packed_lanes, svg_plot

Surface = Literal["page", "terminal"]
"""The medium that shows blocks. A notebook shows the same as a page."""

Look = Literal["plain", "strong", "soft", "good", "bad", "unusual", "warning", "code"]
"""The look of a piece of text. Pages show ``strong``, ``code`` and ``bad``; the others are colours of a terminal."""

Figure = Mapping[str, Any]
"""A chart as plotly's ``data`` and ``layout``, of plain values."""


class Piece(Struct, frozen=True):
    """A part of a line of text, with its look."""

    text: str
    look: Look = "plain"


Line = str | tuple[str | Piece, ...]
"""A line of text; its parts may have their own looks."""


class Card(Struct, frozen=True):
    """A number that answers a question. ``mood``: ``good`` or ``bad``, or nothing."""

    label: str
    value: str
    detail: str = ""
    mood: Literal["", "good", "bad"] = ""

    @property
    def name(self) -> str:
        """Return the label in small letters, but for abbreviations: ``GPUs held``."""
        return " ".join(word if sum(map(str.isupper, word)) > 1 else word.lower() for word in self.label.split())


class Fact(Struct, frozen=True):
    """A name with a line of text."""

    name: str
    words: Line


class Headline(Struct, frozen=True):
    """The title and the answers.

    ``terminal_title``: a terminal's replacement for title and subtitle.
    ``facts``: a terminal's replacement for the cards; None: the content of the cards.
    """

    title: str
    subtitle: str = ""
    cards: tuple[Card, ...] = ()
    terminal_title: str = ""
    facts: tuple[Fact, ...] | None = None

    @property
    def in_terminal(self) -> str:
        """Return the line that a terminal shows."""
        return self.terminal_title or ", ".join(part for part in (self.title, self.subtitle) if part)


class Facts(Struct, frozen=True):
    """Names, each with a line of text."""

    rows: tuple[Fact, ...]


class Text(Struct, frozen=True):
    """A paragraph. ``is_wrapped``: a terminal breaks it at its own width; else the reader's terminal does."""

    line: Line
    is_wrapped: bool = False


class Bar(Struct, frozen=True):
    """A bar in a cell of a table; its length is a fraction of the cell."""

    fraction: float


class Column(Struct, frozen=True):
    """A column of a table.

    ``overflow``: a terminal's treatment of a cell that is too long: break it between words (``words``) or anywhere
        (``anywhere``), never break it (``whole``), or cut it after 60 characters (``cut``).
    """

    name: str
    is_number: bool = True
    overflow: Literal["words", "anywhere", "whole", "cut"] = "words"


Cell = Line | Bar


class Table(Struct, frozen=True):
    """A table. The first ``text_columns`` hold words, the others numbers; ``columns`` may state this per column.

    ``breaks_words``: cells are long names, which a page breaks anywhere.
    ``caption``: small print of a terminal.
    ``repeats``: on a terminal too narrow for all columns, the number of first columns to repeat above each group of the
        others; no cell is cut.
    """

    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Cell]]
    text_columns: int = 1
    breaks_words: bool = False
    caption: str = ""
    repeats: int = 0

    @property
    def heads(self) -> tuple[Column, ...]:
        """Return all columns."""
        return tuple(
            column if isinstance(column, Column) else Column(column, is_number=place >= self.text_columns)
            for place, column in enumerate(self.columns)
        )


class Part(Struct, frozen=True):
    """A part of a whole: its name, its colour, its fraction, and its amounts in words."""

    words: str
    colour: str
    fraction: float
    amounts: tuple[str, ...]


class SplitBar(Struct, frozen=True):
    """A whole divided into parts; in a terminal a table. ``columns``: heads of the parts and of their amounts."""

    parts: tuple[Part, ...]
    columns: tuple[str, ...]


class Legend(Struct, frozen=True):
    """Colours with their meanings: (words, colour)."""

    entries: Sequence[tuple[str, str]]


class Limit(Struct, frozen=True):
    """An upper limit of bars or lines, drawn as a dashed line."""

    value: float
    words: str


class Series(Struct, frozen=True):
    """A named, coloured series of values. ``details``: text for each value, shown on hover."""

    words: str
    colour: str
    values: Sequence[float]
    details: Sequence[str] = ()


class Bars(Struct, frozen=True):
    """Stacked bars, one per entry of ``rows``. ``axis``: quantity and unit of the bars' length."""

    id: str
    rows: Sequence[str]
    series: Sequence[Series]
    axis: str
    ends_at: float | None = None
    limit: Limit | None = None


class Curve(Struct, frozen=True):
    """A named, coloured line through points."""

    words: str
    colour: str
    xs: Sequence[float]
    ys: Sequence[float]


class Lines(Struct, frozen=True):
    """Step functions: each line keeps its value until the next point.

    ``x_axis``: a quantity and its unit, empty for a plain number; ``y_axis``: a quantity or a unit.
    """

    id: str
    curves: Sequence[Curve]
    x_axis: tuple[str, str]
    y_axis: str
    ends_at: float
    limit: Limit | None = None


class HeatMap(Struct, frozen=True):
    """Utilisation over time, 0 to 1: a line of colours per entry of ``rows``.

    ``details``: text for each row.
    ``time_axis``: the unit, and the time from the left edge to the right edge.
    """

    id: str
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    details: Sequence[str]
    time_axis: tuple[str, float]


class Timeline(Struct, frozen=True):
    """Task calls over time, a line per rank."""

    id: str
    gantt: "gantt_chart.Gantt"


class Chart(Struct, frozen=True):
    """Any other chart, as plotly's figure. ``height`` in pixels."""

    id: str
    figure: Figure
    height: int


class Panels(Struct, frozen=True):
    """Small plots beside each other, each with its caption."""

    plots: "Sequence[tuple[str, svg_plot.Drawing]]"


class LargePlot(Struct, frozen=True):
    """One plot as wide as a page."""

    plot: "svg_plot.Drawing"


class Lanes(Struct, frozen=True):
    """Two timelines, one below the other, op by op."""

    lanes: "packed_lanes.OpLanes"


class Section(Struct, frozen=True):
    """A heading, an introduction, blocks, and small print. A terminal shows the blocks alone.

    ``handling``: instructions for an interactive drawing; a notebook shows still pictures and leaves them out.
    """

    heading: str
    blocks: "tuple[Block, ...]" = ()
    lead: str = ""
    note: str = ""
    handling: str = ""


class Group(Struct, frozen=True):
    """Blocks that belong together, with an optional small heading."""

    blocks: "tuple[Block, ...]"
    heading: str = ""


class Columns(Struct, frozen=True):
    """Groups beside each other. ``is_packed``: fill the columns from top to bottom, as in a newspaper."""

    groups: tuple[Group, ...]
    is_packed: bool = False


class Fold(Struct, frozen=True):
    """Blocks that a page folds away below a line with their summary."""

    summary: str
    blocks: "tuple[Block, ...]"


class Only(Struct, frozen=True):
    """Blocks for one surface. A terminal puts no blank line between them."""

    surface: Surface
    blocks: "tuple[Block, ...]"


Block = (
    Headline | Facts | Text | Table | SplitBar | Legend
    | Bars | Lines | HeatMap | Timeline | Chart | Panels | LargePlot | Lanes
    | Section | Group | Columns | Fold | Only
)  # fmt: skip
