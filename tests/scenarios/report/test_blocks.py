"""Every block is shown by every surface, and what one surface says of a run the others say too."""

import re
from base64 import b64decode
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, get_args

import pytest
from matplotlib.image import imread
from rich.console import Console

from scenarios.console.blocks import print_blocks
from scenarios.report.blocks import (
    Bar,
    Bars,
    Block,
    Card,
    Chart,
    Column,
    Columns,
    Curve,
    Fact,
    Facts,
    Fold,
    Group,
    Headline,
    HeatMap,
    Lanes,
    LargePlot,
    Legend,
    Limit,
    Lines,
    Only,
    Panels,
    Part,
    Piece,
    Section,
    Series,
    SplitBar,
    Table,
    Text,
    Timeline,
)
from scenarios.report.charts.gantt import choose_bars
from scenarios.report.charts.op_lanes import op_lanes
from scenarios.report.charts.op_scatter import Point, scatter
from scenarios.report.rendering.html_page import page_text
from scenarios.report.rendering.matplotlib_chart import chart_png
from scenarios.report.rendering.notebook import notebook_html
from scenarios.report.rendering.plotly_figure import plotly_chart
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import SimulatedStep, simulate
from tests.scenarios.report.test_pages import charts_of, elements_of
from tests.scenarios.report.test_report import one_f_one_b
from traces.comparison.compare import compare

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "library"
CHARTS = {Bars, Lines, HeatMap, Timeline, Chart, Panels, LargePlot, Lanes, Legend}
"""What a terminal leaves out."""


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    """Return one block of each class, each with words of its own."""
    timeline = one_f_one_b(num_stages=2, num_microbatches=2)
    plot = scatter([Point("a point", "#123456", 1e-3, 2e-3)], ("one", "two"))
    table = Table(
        ("name", Column("cell number", is_number=True), ""), [("row words", (Piece("7 s", "bad"),), Bar(0.5))],
        caption="a caption",
    )  # fmt: skip
    point = {"type": "scatter", "mode": "markers", "name": "dot", "x": [1], "y": [2], "marker": {"color": "#123456"}}
    series = Series("series words", "#123456", [1.0], ["detail words"])
    return [
        Headline("the title", "the subtitle", (Card("A Label", "the value", "the detail", "good"),)),
        Facts((Fact("fact name", ("fact words ", Piece("--option", "code"))),)),
        Text(("text words ", Piece("strong words", "strong"))),
        table,
        SplitBar((Part("part words", "#123456", 0.25, ("1 s", "25 %")),), ("whole", "amount", "share")),
        Legend([("legend words", "#123456")]),
        Bars("bars", ["bar <row>"], [series], "GiB", limit=Limit(3.0, "limit words")),
        Lines("lines", [Curve("curve words", "#123456", [0.0, 1.0], [1.0, 2.0])], ("time", "s"), "GiB", 1.0),
        HeatMap("heat", ["heat row"], [[0.0, 1.0]], ["heat detail"], ("s", 2.0)),
        Timeline("timeline", choose_bars(timeline)),
        Chart("chart", {"data": [point], "layout": {"xaxis": {}, "yaxis": {}}}, 200),
        Panels([("panel words", plot)]),
        LargePlot(plot),
        Lanes(op_lanes(compare(timeline, timeline), ("one", "two"))),
        Section("a heading", (Text("section words"),), "lead words", "note words"),
        Group((Text("group words"),), "small heading"),
        Columns((Group((Text("column words"),)),), is_packed=True),
        Fold("fold summary", (Text("folded words"),)),
        Only("page", (Text("page alone"),)),
        Only("terminal", (Text("terminal alone"), Text("next line"))),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def result() -> SimulatedStep:
    """Return a small run."""
    return simulate(load_scenario(SCENARIOS / "clusters" / "leaf-spine.yaml", ["model.num_layers=2"]))


def printed(blocks: list[Block], **options: Any) -> str:
    """Return what a terminal shows."""
    out = StringIO()
    print_blocks(blocks, Console(file=out, width=120, **options))
    return out.getvalue()


def test_the_vocabulary_is_whole(blocks: list[Block]) -> None:
    """The list that these tests show holds every block that there is."""
    assert {type(block) for block in blocks} == set(get_args(Block))


def test_a_page_shows_every_block(blocks: list[Block]) -> None:
    """Tags match, all words are there but a terminal's own, and every chart has its place and its figure."""
    page = page_text(blocks)
    elements = elements_of(page)
    shown = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page, flags=re.DOTALL)
    for words in (
        "the title", "the subtitle", "A Label", "the value", "the detail", "fact name", "<code>--option</code>",
        "<b>strong words</b>", "row words", "7 s", "width:50.0%", "part words: 1 s, 25 %", "legend words",
        "series words", "panel words", "a point", "a heading", "section words", "lead words", "note words",
        "group words", "small heading", "column words", "fold summary", "folded words", "page alone", "op-lanes",
    ):  # fmt: skip
        assert words in shown
    assert "terminal alone" not in page
    assert [a["id"] for tag, a, _ in elements.found if a.get("class") == "chart"] == list(charts_of(page))
    assert list(charts_of(page)) == ["bars", "lines", "heat", "timeline", "chart"]
    assert charts_of(page)["bars"]["data"][0]["y"] == ["bar &lt;row&gt;"]


def test_a_terminal_shows_every_block_but_charts(blocks: list[Block]) -> None:
    """Words stand there in the order of the blocks, a blank line between two; of cards a line each."""
    text = printed(blocks)
    for block in blocks:
        words = printed([block])
        assert bool(words) == (type(block) not in CHARTS and block != Only("page", (Text("page alone"),)))
        assert words in text
    assert "\na label  the value (the detail)" in text
    assert "\n\nterminal alone\nnext line\n" in text
    assert "name       cell number\nrow words          7 s\na caption" in text
    assert not text.startswith("\n")
    assert "\n\n\n" not in text


def test_looks_are_colours_of_a_terminal() -> None:
    """A piece's look changes its colour alone: the words are the same without colours."""
    line = Text(("fits: ", Piece("no", "bad"), Piece("yes", "good")))
    coloured = printed([line], force_terminal=True, color_system="standard")
    assert "\x1b[1;31mno\x1b[0m\x1b[32myes\x1b[0m" in coloured
    assert printed([line]) == "fits: noyes\n"


def test_a_notebook_shows_what_a_page_shows(blocks: list[Block]) -> None:
    """Charts are pictures, the rest is the page's, and there is no script, no button and no word of a mouse."""
    shown = notebook_html(blocks)
    elements_of(shown)
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', shown)
    assert len(pictures) == 5
    for picture in pictures:
        assert imread(BytesIO(b64decode(picture))).std() > 0
    assert "section words" in shown
    assert "terminal alone" not in shown
    assert not re.search("<script|<button|<canvas", shown)
    assert "section words" in page_text([Headline("all"), *blocks])
    assert shown == notebook_html(blocks)


def test_a_limit_far_above_all_values_is_inside_the_picture() -> None:
    """The axis reaches to the limit, so its line is seen, as on the page."""
    curve = Curve("memory", "#123456", [0.0, 1.0], [1.0, 2.0])
    chart = plotly_chart(Lines("lines", [curve], ("time", "s"), "GiB", 1.0, limit=Limit(80.0, "capacity")))
    assert chart is not None
    pixels = (imread(BytesIO(chart_png(chart)))[..., :3] * 255).round().astype(int)
    assert (abs(pixels - [0xC8, 0x40, 0x2F]).max(axis=2) < 80).sum() > 300


def test_a_chart_that_cannot_be_drawn_is_named() -> None:
    """A still picture of a kind of mark that is not known is an error, not an empty picture."""
    chart = Chart("a", {"data": [{"type": "pie"}], "layout": {"xaxis": {}, "yaxis": {}}}, 100)
    with pytest.raises(ValueError, match="'pie' cannot be drawn"):
        chart_png(chart)


def test_a_run_is_said_alike_on_a_page_and_in_a_terminal(result: SimulatedStep) -> None:
    """Times, shares and details of one list of blocks stand on both."""
    blocks = list(result.blocks())
    page, text = page_text(blocks), printed(blocks)
    spending = next(block for block in blocks if isinstance(block, Section)).blocks[0]
    assert isinstance(spending, SplitBar)
    for part in spending.parts:
        assert f"{part.words}: {', '.join(part.amounts)}" in page
        assert re.search(rf"{re.escape(part.words)} +{part.amounts[0]} +{part.amounts[1]}", text)
    assert text == printed(list(result.blocks(drawn=False)))


def test_kinds_of_steps_have_their_own_blocks(result: SimulatedStep) -> None:
    """A textbook schedule has no memory to show, a training step has, and each is told by its summary."""
    textbook = simulate(load_scenario(SCENARIOS / "textbook-1f1b.yaml"))
    headings = [[b.heading for b in r.blocks() if isinstance(b, Section)] for r in (textbook, result)]
    assert "Memory over the step" not in headings[0]
    assert "What the peak is made of" in headings[1]
    assert [name for name in headings[1] if name in headings[0]] == headings[0]
