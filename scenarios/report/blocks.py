"""Blocks: the contents of a report, without its form. Pages, terminals and notebooks render the same blocks.

A kind of work answers with a list of blocks::

    blocks = [
        Headline("my run", "8 ranks", cards=(Card("Time per step", "1.2 s", "90 %: 1.1 s to 1.3 s"),)),
        Section("By kind", (Table(("kind", "time"), (("gemm", "1.0 s"), ("all_reduce", "0.2 s"))),)),
    ]

All texts are plain: a name with ``<b>`` in it is shown as it is. Charts are shown by pages and notebooks; a terminal
leaves them out. The vocabulary is closed: a new block needs a template, a line in the terminal's table of printers, and
nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scenarios.report.charts.gantt import Gantt
from scenarios.report.charts.packed_lanes import OpLanes
from scenarios.report.charts.svg_plot import Drawing

Surface = Literal["page", "terminal"]
"""Where blocks are shown. A notebook shows what a page shows."""

Look = Literal["plain", "strong", "soft", "good", "bad", "unusual", "warning", "code"]
"""How a piece of text looks. Pages show ``strong``, ``code`` and ``bad``; the others are colours of a terminal."""

Figure = Mapping[str, Any]
"""A chart as plotly's ``data`` and ``layout``, of plain values."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line of text, with its look."""

    text: str
    look: Look = "plain"


Line = str | tuple[str | Piece, ...]
"""A line of text; its parts may have looks of their own."""


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
    """The title, and the answers.

    ``terminal_title``: what a terminal says in place of title and subtitle. ``facts``: what it says in place of the
    cards; None: it says what the cards say.
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
    """A paragraph. ``is_wrapped``: a terminal breaks it at its width, rather than leaving that to the reader's."""

    line: Line
    is_wrapped: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a cell of a table; its length is a fraction of the cell."""

    fraction: float


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    ``overflow``: what a terminal does with a cell that is too long: break it between words (``words``) or anywhere
    (``anywhere``), never break it (``whole``), or cut it after 60 characters (``cut``).
    """

    name: str
    is_number: bool = True
    overflow: Literal["words", "anywhere", "whole", "cut"] = "words"


Cell = Line | Bar


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first ``text_columns`` hold words, the others numbers; ``columns`` may say it one by one.

    ``breaks_words``: cells are long names, which a page breaks anywhere. ``caption``: small print of a terminal.
    ``repeats``: where a terminal is too narrow for all columns, so many first ones are repeated with some of the others
    below; no cell is cut.
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
    """A whole that is divided into parts; in a terminal a table. ``columns``: its heads, of the amounts too."""

    parts: tuple[Part, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Legend:
    """Colours with their meaning: (words, colour)."""

    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Limit:
    """A value that bars or lines should stay below, drawn as a dashed line."""

    value: float
    words: str


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one thing, with its name and colour. ``details``: more words on each value, shown on pointing at it."""

    words: str
    colour: str
    values: Sequence[float]
    details: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars, one for each of ``rows``. ``axis``: the quantity of their length, with its unit."""

    id: str
    rows: Sequence[str]
    series: Sequence[Series]
    axis: str
    ends_at: float | None = None
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points, with its name and colour."""

    words: str
    colour: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that keep their value until the next point. ``x_axis``, ``y_axis``: quantities and units."""

    id: str
    curves: Sequence[Curve]
    x_axis: tuple[str, str]
    y_axis: str
    ends_at: float
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """How full something is over time, 0 to 1: a line of colours for each of ``rows``.

    ``details``: more words on each row. ``time_axis``: unit, and the time from the left edge to the right one.
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
    """Two timelines under each other, op by op."""

    lanes: OpLanes


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, an introduction, blocks, and small print. A terminal shows the blocks alone.

    ``handling``: how to use a drawing that moves; a notebook shows still pictures and leaves it out.
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
    """Blocks that one surface alone shows. In a terminal no blank line stands between them."""

    surface: Surface
    blocks: "tuple[Block, ...]"


Block = (
    Headline | Facts | Text | Table | SplitBar | Legend
    | Bars | Lines | HeatMap | Timeline | Chart | Panels | LargePlot | Lanes
    | Section | Group | Columns | Fold | Only
)  # fmt: skip
