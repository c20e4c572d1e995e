"""The page of two timelines side by side."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from scenarios.report.blocks import Headline, Lanes, LargePlot
from scenarios.report.charts.op_lanes import op_lanes
from scenarios.report.charts.op_scatter import Point, in_band, scatter
from scenarios.report.pages.comparison_page import comparison_blocks
from scenarios.report.rendering.html_page import page_text, write_page
from scenarios.report.rendering.notebook import notebook_html
from tests.scenarios.report.test_pages import elements_of
from tests.traces.conftest import pipeline
from traces.comparison.compare import Totals, compare
from traces.timeline import Timeline, TimelineBuilder

NAMES = ("simulated", "executed")


def drawing_of(page: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the columns of the drawing in a page, as the page's script decodes them."""
    match = re.search(r'<script type="text/plain" id="op-lanes-data">([^<]*)</script>', page)
    assert match is not None
    raw = gzip.decompress(base64.b64decode(match.group(1)))
    end = 4 + int.from_bytes(raw[:4], "little")
    header = json.loads(raw[4:end])
    columns = {
        key: np.frombuffer(raw, f"<{place['type']}".replace("<u1", "u1"), place["size"], end + place["offset"])
        for key, place in header["columns"].items()
    }
    return header, columns


def stretched(timeline: Timeline, factor: float) -> Timeline:
    """Return a timeline as executed, ``factor`` times as long."""
    times = {"start_s": timeline.start_s * factor, "end_s": timeline.end_s * factor}
    return replace(timeline, source="executed", **times)


def page_of(first: Timeline, second: Timeline, folder: Path) -> str:
    """Return the page of a comparison."""
    write_page(folder / "report.html", comparison_blocks(compare(first, second), names=NAMES, title="both"))
    return (folder / "report.html").read_text(encoding="utf-8")


def test_every_op_is_drawn_at_its_time(tmp_path: Path) -> None:
    """The drawing has all ops of both timelines, at their times on one axis, each with its partner."""
    first, second = pipeline(), stretched(pipeline(), 1.25)
    header, columns = drawing_of(page_of(first, second, tmp_path))
    assert len(columns["start"]) == len(first) + len(second)
    assert header["ticks"] * header["tick_s"] == pytest.approx(second.duration_s)
    spans = []
    for lane in header["lanes"]:
        begin, end = lane["begin"], lane["end"]
        starts_s = np.cumsum(columns["start"][begin:end].astype(float)) * header["tick_s"]
        lasting_s = columns["length"][begin:end] * header["tick_s"]
        names = [header["names"][code] for code in columns["name"][begin:end]]
        spans += [(lane["side"], *span) for span in zip(names, starts_s, lasting_s, strict=True)]
    for side, timeline in enumerate((first, second)):
        expected = [(timeline.name.at(row), timeline.start_s[row], timeline.end_s[row] - timeline.start_s[row])
                    for row in range(len(timeline))]  # fmt: skip
        found = sorted(span[1:] for span in spans if span[0] == side)
        for one, other in zip(found, sorted(expected), strict=True):
            assert one[0] == other[0]
            np.testing.assert_allclose(one[1:], other[1:], atol=2e-8)
    partner = columns["partner"]
    assert (partner[partner] == np.arange(len(partner))).all()
    assert (columns["name"][partner] == columns["name"]).all()
    np.testing.assert_allclose(columns["length"][partner], 1.25 * columns["length"], rtol=0.6)


def test_names_stay_as_they_are_and_errors_have_room(tmp_path: Path) -> None:
    """Files' names are no words to capitalise, and the tables of kinds and streams have the page's whole width."""
    timeline = TimelineBuilder()
    timeline.add(rank=0, stream="compute", name="a", kind="compute", start_s=0.0, end_s=1.0)
    path = tmp_path / "names.html"
    compared = compare(timeline.build(), timeline.build())
    write_page(path, comparison_blocks(compared, names=("alpha_run", "beta"), title="-"))
    page = path.read_text(encoding="utf-8")
    assert "Op by op: alpha_run against beta" in page
    assert "Alpha_run" not in page
    totals = [above for tag, attributes, above in elements_of(page).found if tag == "table"][-2:]
    assert all("columns" not in above for above in totals)


def test_ops_of_one_side_alone_have_no_partner(tmp_path: Path) -> None:
    """An op that only one timeline has is marked, named in a table, and in the answer."""
    builder = TimelineBuilder()
    for place, name in enumerate(("a", "only here", "b")):
        builder.add(rank=0, stream="compute", name=name, kind="compute", start_s=place, end_s=place + 1)
    whole = builder.build()
    second = TimelineBuilder(source="executed")
    for place, name in enumerate(("a", "b")):
        second.add(rank=0, stream="compute", name=name, kind="compute", start_s=2 * place, end_s=2 * place + 1)
    page = page_of(whole, second.build(), tmp_path)
    header, columns = drawing_of(page)
    alone = columns["partner"] == -1
    assert [header["names"][code] for code in columns["name"][alone]] == ["only here"]
    assert "Found: 1 missing" in page
    assert "a red edge" in page


def test_timelines_with_nothing_in_common_have_a_page(tmp_path: Path) -> None:
    """Streams and ranks that one side alone has are empty lanes on the other, and no op has a partner."""
    sides = []
    for name, stream, rank in (("a", "compute", 0), ("b", "stream 7", 0), ("c", "stream 20", 1)):
        builder = TimelineBuilder()
        for place in range(3 if name == "a" else 1):
            builder.add(rank=rank, stream=stream, name=name, kind=name, start_s=place, end_s=place + 1)
        builder.add(rank=0, stream="tp", name=f"sum {name}", kind=f"sum {name}", start_s=0, end_s=1)
        sides.append(builder.build())
    for first, second in ((sides[0], sides[1]), (sides[0], sides[2]), (sides[2], sides[0])):
        header, columns = drawing_of(page_of(first, second, tmp_path))
        assert (columns["partner"] == -1).all()
        assert len(columns["start"]) == len(first) + len(second)
        assert header["lanes"][-1]["end"] == len(columns["start"])


def test_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    """No address is in the page but a name space, the charts' code is not carried along, and two writes are equal."""
    page = page_of(pipeline(), stretched(pipeline(), 2.0), tmp_path)
    assert "−50.0 %" in page
    assert not re.findall(r"""(?:src|href)=|https?://""", page)
    assert len(page) < 100_000
    assert page == page_of(pipeline(), stretched(pipeline(), 2.0), tmp_path)


def test_large_timelines_are_drawn_in_part_and_say_so() -> None:
    """Past the limit the longest ops and their partners stay, the others share bars, and the note counts them."""
    rng = np.random.default_rng(0)
    lasting_s = rng.exponential(1.0, 5_000)
    sides = []
    for factor in (1.0, 1.5):
        starts_s = np.cumsum(lasting_s * factor) - lasting_s * factor
        builder = TimelineBuilder()
        builder.extend(
            rank=0, stream="s", name=(np.arange(5_000) % 7, [f"op{i}" for i in range(7)]), kind="compute",
            start_s=starts_s, end_s=starts_s + lasting_s * factor, microbatch=np.arange(5_000),
        )  # fmt: skip
        sides.append(builder.build())
    comparison = compare(*sides)
    drawn = op_lanes(comparison, NAMES, max_ops=1_000)
    header, columns = drawing_of(page_text([Headline("lanes"), Lanes(drawn)]))
    single = columns["count"] == 1
    assert columns["count"].sum() == 10_000
    assert len(single) < 4_000
    shown = int(single.sum())
    assert f"Of 10,000 ops {shown:,}, the longest among them, are drawn one by one" in drawn.note
    longer_s = np.sort(lasting_s)[-500] * 1.5
    assert (columns["length"][single] * header["tick_s"] > longer_s - 1e-4).sum() >= 500
    partner = columns["partner"]
    assert not (partner == -1)[single].any()
    known = partner >= 0
    assert (partner[partner[known]] == np.flatnonzero(known)).all()


def test_rounding_is_no_difference(tmp_path: Path) -> None:
    """What only the order of adding up tells apart is shown as 0, and explains nothing."""
    page = page_of(pipeline(), stretched(pipeline(), 1.0 + 1e-15), tmp_path)
    assert "All ops took equal times." in page
    assert not re.search(r"e-\d+ ns", page)
    assert Totals("a", 1, 1, 1.0, 1.0 + 1e-15).difference_s == 0.0
    assert Totals("a", 1, 1, 1.0, 1.0 + 1e-9).difference_s == pytest.approx(-1e-9)


def test_ops_aligned_by_kind_are_rings_in_the_scatter(tmp_path: Path) -> None:
    """An op with another name on each side is told from those of one name, and the text says how."""
    sides = []
    for name in ("gemm_128", "gemm_256"):
        builder = TimelineBuilder()
        for place, op in enumerate(("norm", name, "softmax")):
            builder.add(rank=0, stream="s", name=op, kind="compute", start_s=place, end_s=place + 0.5)
        sides.append(builder.build())
    page = page_of(sides[0], sides[1], tmp_path)
    assert page.count('fill="none" stroke-width="1.5" pointer-events="all"') == 1
    assert "Rings are ops with different names" in page
    assert "Rings are" not in page_of(sides[0], sides[0], tmp_path)


def test_scatter_places_points_by_their_ratio() -> None:
    """Equal times lie on the diagonal, the same ratio at the same distance from it, and words are escaped."""
    points = [
        Point("a<b>", "#123456", 1e-3, 1e-3),
        Point("b", "#123456", 2e-3, 1e-3),
        Point("c", "#123456", 4e-2, 2e-2),
    ]
    drawing = notebook_html([LargePlot(scatter(points, NAMES))])
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawing)]
    line = re.search(r'class="guide" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', drawing)
    assert line is not None
    x0, y0, x1, y1 = map(float, line.groups())
    above = [y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y for x, y in places]
    assert above[0] == pytest.approx(0.0, abs=0.2)
    assert above[1] == pytest.approx(above[2], abs=0.3)
    assert above[1] > 10
    assert "a&lt;b&gt;" in drawing
    assert "<b>" not in drawing
    assert in_band([*points, Point("d", "", 1.1, 1.0), Point("e", "", 0.81, 1.0), Point("f", "", 0.79, 1.0)]) == 3
