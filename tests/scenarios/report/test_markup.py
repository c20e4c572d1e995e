"""Names of other people inside pages and pictures are shown, and break neither."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.cli import main
from scenarios.errors import printable
from scenarios.report.blocks import Fact, Facts, Part, Piece, SplitBar
from scenarios.report.charts.hover_text import chart_text
from scenarios.report.rendering.html_page import script_json
from scenarios.report.rendering.notebook import notebook_html
from tests.scenarios.report.test_pages import elements_of

HOSTILE = "<!--<script> </script> ]]> <b>&amp; \u2028 \x1b[31m {style} {title} {data} %{y} \"'"
DRAWN = "$\\frac$ 名 \x1b[1m <&"
PLOTLY_KNOWS = {"lt": "<", "gt": ">", "amp": "&"}
"""The entities that plotly makes signs of; it shows others, as ``&quot;``, as they are."""
JSON = st.recursive(
    st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


class Texts(HTMLParser):
    """Collects titles and headings."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.found = "", dict[str, str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember where the next text stands."""
        del attrs
        self.place = tag

    def handle_data(self, data: str) -> None:
        """Keep the first text of each kind of place."""
        self.found.setdefault(self.place, data)


def run(*args: object) -> None:
    """Run a command that works."""
    with pytest.raises(SystemExit) as done:
        main([str(arg) for arg in args])
    assert not done.value.code


def charts_of(page: Path) -> dict[str, object]:
    """Return the figures of a page, once it is known that no script ends among them."""
    text = page.read_text(encoding="utf-8")
    [data] = re.findall(r"const charts = (.*);\n", text)
    assert not set(data) & {"<", ">", "&", "\u2028", "\u2029"}
    figures: dict[str, object] = json.loads(data)
    return figures


@given(JSON)
def test_json_in_scripts_says_the_same_and_ends_none(value: object) -> None:
    """Data of a script reads as it was written, and holds no sign that HTML knows."""
    text = script_json(value)
    assert json.loads(text) == value
    assert not set(text) & {"<", ">", "&", "\u2028", "\u2029"}


@given(st.text())
def test_escaped_text_has_no_markup(text: str) -> None:
    """No tag begins or ends in a text of a chart, and what plotly makes of it is the text."""
    shown = chart_text(text)
    assert not set(shown) & set("<>")
    assert re.sub(r"&(lt|gt|amp);", lambda sign: PLOTLY_KNOWS[sign[1]], shown) == printable(text)


@given(st.text(min_size=1))
def test_text_on_a_page_has_no_markup(text: str) -> None:
    """Neither tags nor attributes begin or end in a text, wherever a page shows it."""
    part = SplitBar((Part(text, "#000000", 0.5, (text,)),), ("", ""))
    page = notebook_html([Facts((Fact(text, (text, Piece(text, "code"))),)), part])
    elements, before = elements_of(page).found, ("div", "style")
    assert [tag for tag, _, _ in elements] == [*before, "dl", "dt", "dd", "code", "div", "i", "div", "span", "i"]
    assert elements[7][1]["title"] == f"{printable(text)}: {printable(text)}".replace("\r", "\n")


def test_page_of_a_run_shows_a_hostile_name(write, textbook, tmp_path) -> None:
    """The name is title and heading as it is written, its controls as escapes, and the charts are there."""
    path = write(textbook, ("name: textbook", f"name: {json.dumps(HOSTILE)}"))
    run(path, "--out", tmp_path / "out")
    page = tmp_path / "out" / "report.html"
    assert set(charts_of(page)) == {"pipeline", "time"}
    texts = Texts()
    texts.feed(page.read_text(encoding="utf-8").partition("<script>")[0])
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\u2028", "\\u2028")
    assert texts.found["title"] == texts.found["h1"] == shown


def test_page_of_a_sweep_shows_hostile_values(write, textbook, tmp_path) -> None:
    """Values that a sweep goes through name its points on every chart: as text, not as tags of plotly."""
    values = [HOSTILE, "<i>b</i>"]
    option = f"name={','.join(map(json.dumps, values))}"
    run("sweep", write(textbook), "--set", option, "--jobs", 1, "--out", tmp_path / "out")
    figures = json.dumps(charts_of(tmp_path / "out" / "report.html"))
    assert "&lt;!--&lt;script&gt;" in figures
    assert "&lt;i&gt;b&lt;/i&gt;" in figures
    assert not re.search(r"<(?!/?b>|br>|extra>|/extra>)", figures)


def test_page_of_a_comparison_takes_any_file_name(write, textbook, tmp_path) -> None:
    """A folder's name may be no UTF-8 at all."""
    sides = [
        tmp_path / name for name in (b"one\xff</script>".decode("utf-8", "surrogateescape").replace("/", "|"), "two")
    ]
    for side in sides:
        run(write(textbook), "--out", side)
    run("compare", *sides, "--out", tmp_path / "out")
    assert "one\\udcff&lt;|script&gt;" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_pictures_show_any_name(write, textbook, tmp_path, suffix: str) -> None:
    """Dollars begin no formula, controls are escaped, and letters that the font lacks give no warning."""
    path = write(textbook, ("name: textbook", f"name: {json.dumps(DRAWN)}"))
    out = tmp_path / f"a{suffix}"
    run("schedule", path, "--out", out)
    if suffix == ".svg":
        assert DRAWN.replace("\x1b", "\\x1b") in "".join(ElementTree.parse(out).getroot().itertext())
