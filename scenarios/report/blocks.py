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
from dataclasses import dataclass
from typing import Any, Literal

from scenarios.report.charts.gantt import Gantt
from scenarios.report.charts.packed_lanes import OpLanes
from scenarios.report.charts.svg_plot import Drawing

Surface = Literal["page", "terminal"]
"""The medium that shows blocks. A notebook shows the same as a page."""

Look = Literal["plain", "strong", "soft", "good", "bad", "unusual", "warning", "code"]
"""The look of a piece of text. Pages show ``strong``, ``code`` and ``bad``; the others are colours of a terminal."""

Figure = Mapping[str, Any]
"""A chart as plotly's ``data`` and ``layout``, of plain values."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line of text, with its look."""

    text: str
    look: Look = "plain"


Line = str | tuple[str | Piece, ...]
"""A line of text; its parts may have their own looks."""


@dataclass(frozen=True, slots=True)
class Card:
    """A number that answers a question. ``mood``: ``good`` or ``bad``, or nothing."""

    label: str
    value: str
    detail: str = ""
    mood: Literal["", "good", "bad"] = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A name with a line of text."""

    name: str
    words: Line


@dataclass(frozen=True, slots=True)
class Headline:
    """The title and the answers.

    ``terminal_title``: a terminal's replacement for title and subtitle.
    ``facts``: a terminal's replacement for the cards; None: the content of the cards.
    """

    title: str
    subtitle: str = ""
    cards: tuple[Card, ...] = ()
    terminal_title: str = ""
    facts: tuple[Fact, ...] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Names, each with a line of text."""

    rows: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. ``is_wrapped``: a terminal breaks it at its own width; else the reader's terminal does."""

    line: Line
    is_wrapped: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a cell of a table; its length is a fraction of the cell."""

    fraction: float


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    ``overflow``: a terminal's treatment of a cell that is too long: break it between words (``words``) or anywhere
        (``anywhere``), never break it (``whole``), or cut it after 60 characters (``cut``).
    """

    name: str
    is_number: bool = True
    overflow: Literal["words", "anywhere", "whole", "cut"] = "words"


Cell = Line | Bar


@dataclass(frozen=True, slots=True)
class Table:
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


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a whole: its name, its colour, its fraction, and its amounts in words."""

    words: str
    colour: str
    fraction: float
    amounts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitBar:
    """A whole divided into parts; in a terminal a table. ``columns``: heads of the parts and of their amounts."""

    parts: tuple[Part, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Legend:
    """Colours with their meanings: (words, colour)."""

    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Limit:
    """An upper limit of bars or lines, drawn as a dashed line."""

    value: float
    words: str


@dataclass(frozen=True, slots=True)
class Series:
    """A named, coloured series of values. ``details``: text for each value, shown on hover."""

    words: str
    colour: str
    values: Sequence[float]
    details: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars, one per entry of ``rows``. ``axis``: quantity and unit of the bars' length."""

    id: str
    rows: Sequence[str]
    series: Sequence[Series]
    axis: str
    ends_at: float | None = None
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A named, coloured line through points."""

    words: str
    colour: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True, slots=True)
class Lines:
    """Step functions: each line keeps its value until the next point.

    ``x_axis``: a quantity and its unit, empty for a plain number; ``y_axis``: a quantity or a unit.
    """

    id: str
    curves: Sequence[Curve]
    x_axis: tuple[str, str]
    y_axis: str
    ends_at: float
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Utilisation over time, 0 to 1: a line of colours per entry of ``rows``.

    ``details``: text for each row.
    ``time_axis``: the unit, and the time from the left edge to the right edge.
    """

    id: str
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    details: Sequence[str]
    time_axis: tuple[str, float]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Task calls over time, a line per rank."""

    id: str
    gantt: Gantt


@dataclass(frozen=True, slots=True)
class Chart:
    """Any other chart, as plotly's figure. ``height`` in pixels."""

    id: str
    figure: Figure
    height: int


@dataclass(frozen=True, slots=True)
class Panels:
    """Small plots beside each other, each with its caption."""

    plots: Sequence[tuple[str, Drawing]]


@dataclass(frozen=True, slots=True)
class LargePlot:
    """One plot as wide as a page."""

    plot: Drawing


@dataclass(frozen=True, slots=True)
class Lanes:
    """Two timelines, one below the other, op by op."""

    lanes: OpLanes


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, an introduction, blocks, and small print. A terminal shows the blocks alone.

    ``handling``: instructions for an interactive drawing; a notebook shows still pictures and leaves them out.
    """

    heading: str
    blocks: "tuple[Block, ...]" = ()
    lead: str = ""
    note: str = ""
    handling: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that belong together, with an optional small heading."""

    blocks: "tuple[Block, ...]"
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """Groups beside each other. ``is_packed``: fill the columns from top to bottom, as in a newspaper."""

    groups: tuple[Group, ...]
    is_packed: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that a page folds away below a line with their summary."""

    summary: str
    blocks: "tuple[Block, ...]"


@dataclass(frozen=True, slots=True)
class Only:
    """Blocks for one surface. A terminal puts no blank line between them."""

    surface: Surface
    blocks: "tuple[Block, ...]"


Block = (
    Headline | Facts | Text | Table | SplitBar | Legend
    | Bars | Lines | HeatMap | Timeline | Chart | Panels | LargePlot | Lanes
    | Section | Group | Columns | Fold | Only
)  # fmt: skip
