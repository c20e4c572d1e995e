"""What pages and pictures show is right, legible, and needs nothing from elsewhere."""

import json
import re
from collections import defaultdict
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from costmodels.units import format_bytes, format_percent, format_time
from scenarios.report.charts.gantt import PAUSE, VISIBLE, choose_bars
from scenarios.report.pages.advice_section import effect_of, options_of
from scenarios.report.phases import FORWARD, OPTIMIZER, PHASES, SYNC, Phase
from scenarios.report.pictures.picture_file import Drawing
from scenarios.report.pictures.topology_figure import lay_out_topology
from scenarios.report.slots.slot_figure import SlotDrawing
from scenarios.report.words import time_parts
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.advising.advise import advise
from scenarios.workloads.steps.running import SimulatedStep, simulate
from scenarios.workloads.steps.schedule import schedule_of
from sim.cluster.topology.parse import parse_topology
from traces.timeline import Timeline, TimelineBuilder

SCENARIOS = Path(__file__).parents[3] / "scenarios" / "library"
SMALL = ["model.num_layers=4"]
VOID = {"meta", "br", "link", "img", "input", "hr"}
LEAST_ROW_PIXELS = 14
LEGEND_LINE_PIXELS = 19
SAME_THING = (
    {"computing", "forward"},
    {"send and receive", "pipeline messages", "exposed communication"},
    {"sync of gradients and parameters", "data-parallel communication"},
)
"""Words that name the same thing, and so may share a colour."""


@pytest.fixture(scope="module")
def result() -> SimulatedStep:
    """Return a small run whose gradients and parameters wait for oversubscribed uplinks."""
    found = simulate(load_scenario(SCENARIOS / "clusters" / "leaf-spine.yaml", SMALL))
    return found.with_advice(advise(found, "quick"))


@pytest.fixture(scope="module")
def page(result: SimulatedStep, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return its report."""
    out = tmp_path_factory.mktemp("page")
    result.write(out)
    return (out / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pipeline_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the report of a pipeline of 64 stages, more than a page has lines for."""
    out = tmp_path_factory.mktemp("pipeline")
    changes = ["parallel.pipeline.degree=64", "training.num_microbatches=64"]
    simulate(load_scenario(SCENARIOS / "textbook-1f1b.yaml", changes)).write(out)
    return (out / "report.html").read_text(encoding="utf-8")


def charts_of(page: str) -> dict[str, Any]:
    """Return the figures in a page."""
    match = re.search(r"const charts = (\{.*\});\n", page)
    assert match is not None
    charts: dict[str, Any] = json.loads(match.group(1), parse_constant=pytest.fail)
    return charts


def body_of(page: str) -> str:
    """Return a page without its scripts."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


class Elements(HTMLParser):
    """Every element of a page with its ancestors' classes; fails where tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.path: list[tuple[str, str]] = []
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        named = dict(attrs)
        self.found.append((tag, named, [classes for _, classes in self.path]))
        if tag not in VOID:
            self.path.append((tag, named.get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        """Close the element that was opened last."""
        assert self.path.pop()[0] == tag


def elements_of(page: str) -> Elements:
    """Return the elements of a page without its scripts."""
    parser = Elements()
    parser.feed(body_of(page))
    assert parser.path == []
    return parser


def test_pages_are_whole_and_load_nothing(page: str, pipeline_page: str) -> None:
    """Tags match, nothing comes from elsewhere, and a wide table scrolls by itself rather than the page."""
    for text in (page, pipeline_page):
        elements = elements_of(text)
        for tag, attributes, above in elements.found:
            assert tag not in {"link", "img", "iframe", "base"}
            assert not {"src", "href"} & set(attributes)
            assert tag != "table" or "wide" in above
        assert not re.search(r"url\(|@import", body_of(text))
        assert len(text) < 6_500_000


def test_first_screen_says_what_the_summary_says(result: SimulatedStep, page: str) -> None:
    """Time with its interval, memory and verdict, what a rank waits for, and what would help, before any chart."""
    summary, first_screen = result.summary, body_of(page).split('class="chart"')[0]
    assert summary.advice is not None
    best, (cause,) = summary.advice.best, summary.advice.causes
    assert best is not None
    low_s, high_s = summary.iteration_time_interval_s
    expected = [
        format_time(summary.iteration_time_s), f"90 %: {format_time(low_s)} to {format_time(high_s)}",
        f"{summary.tokens_per_s:,.0f} tokens/s", format_percent(summary.mfu), format_percent(summary.hfu),
        format_bytes(summary.roles[0].peak_memory_bytes), ": fits", summary.links[0].busiest.link,
        format_percent(summary.links[0].busiest.busy_fraction), options_of(best.set), effect_of(best), cause.cause,
    ]  # fmt: skip
    assert [words for words in expected if words not in first_screen] == []
    parts = time_parts(summary)
    for (words, _), part_s in parts:
        share = format_percent(part_s / summary.iteration_time_s)
        assert f"{words}: {format_time(part_s)}, {share}" in first_screen
    assert sum(part_s for _, part_s in parts) == pytest.approx(summary.iteration_time_s)


def test_a_colour_means_one_thing(page: str, pipeline_page: str) -> None:
    """The same words have the same colour in all legends of a page, and different things have different colours."""
    for text in (page, pipeline_page):
        legends = re.findall(r'<i style="background:(#\w+)"></i>([^<:]+)', body_of(text))
        assert len(legends) > 3
        meanings = defaultdict(set)
        for colour, words in legends:
            meanings[colour].add(words)
        shared = [words for words in meanings.values() if len(words) > 1]
        assert [words for words in shared if not any(words <= same for same in SAME_THING)] == []
        assert len({words for _, words in legends}) == len(set(legends))


def test_charts_have_room_for_their_rows_and_legends(page: str, pipeline_page: str) -> None:
    """Every row of a chart has the height of a line of text, every legend fits, and times have units."""
    for text in (page, pipeline_page):
        heights = dict(re.findall(r'id="([\w-]+)" style="height:(\d+)px"', text))
        for name, figure in charts_of(text).items():
            layout, data = figure["layout"], figure["data"]
            rows = len(layout["yaxis"].get("ticktext", ())) or len({
                label for trace in data for label in trace["y"] if isinstance(label, str)
            })  # fmt: skip
            assert int(heights[name]) >= 40 + LEAST_ROW_PIXELS * rows
            if layout.get("showlegend"):
                assert int(heights[name]) >= 60 + LEGEND_LINE_PIXELS * len(data)
            for axis in (axis for key, axis in layout.items() if key.startswith("xaxis")):
                assert re.search(r"\((s|ms|us|min|%)\)|percent of|[KMGT]iB at", axis["title"]["text"])


def test_pictures_of_64_stages_are_cut_to_what_is_legible(pipeline_page: str) -> None:
    """Of 64 ranks 16 are drawn, the first and the last among them, and the page says so."""
    figure = charts_of(pipeline_page)["pipeline"]
    ranks = figure["layout"]["yaxis"]["ticktext"]
    assert (ranks[0], ranks[-1], len(ranks)) == ("pp=0", "pp=63", 16)
    assert "48 of 64 simulated ranks" in body_of(pipeline_page)


def test_heat_map_agrees_with_the_summary_and_with_the_timeline(result: SimulatedStep, page: str) -> None:
    """A line's mean is its links' share of the step; uplinks are full just while gradients or parameters move."""
    use, timeline, summary = result.links, result.timeline, result.as_json()
    assert use is not None
    [trace] = charts_of(page)["links"]["data"]
    means = {
        label.split("  ")[0].split(" ×")[0]: np.mean(line) for label, line in zip(trace["y"], trace["z"], strict=True)
    }
    for entry in summary["links"]:
        assert means[entry["busiest"]["link"]] == pytest.approx(entry["busiest"]["busy_fraction"], abs=1e-3)
    uplink = next(
        line for label, line in zip(trace["y"], trace["z"], strict=True) if label.startswith("leaf 0 to spine")
    )
    rows = np.flatnonzero(np.array(timeline.stream.values)[timeline.stream.codes] == "dp")
    edges = np.linspace(0, use.makespan_s, len(uplink) + 1)
    covered = np.zeros(len(uplink))
    for start_s, end_s in zip(timeline.start_s[rows], timeline.end_s[rows], strict=True):
        covered += np.clip(np.minimum(edges[1:], end_s) - np.maximum(edges[:-1], start_s), 0, None) / np.diff(edges)
    inside, outside = covered > 0.999, covered == 0
    assert inside.sum() > 10
    assert outside.sum() > 10
    assert np.array(uplink)[outside].max() == 0
    assert np.median(np.array(uplink)[inside]) == pytest.approx(1.0, abs=0.01)


def test_waiting_looks_like_waiting(result: SimulatedStep) -> None:
    """A rank's upper lane is full while it computes or waits for tensor parallelism, the lower while gradients move."""
    timeline, role = result.timeline, result.as_json()["roles"][0]
    bars = choose_bars(timeline).windows[0].bars
    lengths_s = bars.end_s - bars.start_s
    is_below = np.array([PHASES[code].is_communication for code in bars.phase])
    busy_s = role["busy_s"]["compute"] + role["exposed_s"]["tp"]
    assert lengths_s[~is_below].sum() == pytest.approx(busy_s, rel=0.01)
    assert lengths_s[is_below].sum() == pytest.approx(role["busy_s"]["dp"], rel=0.01)
    assert {PHASES[code] for code in bars.phase[is_below]} == {SYNC}


def test_shares_of_the_time_are_at_most_all_of_it(tmp_path: Path) -> None:
    """Where several steps without a flush are laid out, kinds of op have their share of all of them, and it says so."""
    simulate(load_scenario(SCENARIOS / "textbook-pipedream-2bw.yaml")).write(tmp_path)
    text = body_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    shares = [float(share) for share in re.findall(r">(\d+\.\d) %<", text.split("Longest kinds")[1])]
    assert 90 < sum(shares) <= 100
    assert "training steps without a flush" in text
    assert "NOT synchronous SGD" in text


def call(name: str, pause_s: float) -> Timeline:
    """Return a task call of two kernels with a pause between them, in which the parameters are gathered."""
    builder = TimelineBuilder()
    for op, stream, start_s, end_s in (
        ("first", "compute", 0.0, 50.0),
        ("gather", "dp", 50.0, 50.0 + pause_s),
        ("second", "compute", 50.0 + pause_s, 100.0),
    ):
        builder.add(rank=0, stream=stream, name=f"{name}.0/{op}", kind="compute", start_s=start_s, end_s=end_s)
    return builder.build()


@pytest.mark.parametrize(("name", "phase", "gap"), [("forward", FORWARD, PAUSE), ("optimizer", OPTIMIZER, VISIBLE)])
@pytest.mark.parametrize("is_broken", [False, True])
def test_bars_are_broken_where_nothing_runs(name: str, phase: Phase, gap: float, is_broken: bool) -> None:
    """A task call is one bar unless it pauses for a visible time; what it gathers meanwhile is the other lane's."""
    pause_s = 100 * gap * (1.1 if is_broken else 0.9)
    bars = choose_bars(call(name, pause_s)).windows[0].bars
    shown = {key: [(bars.start_s[i], bars.end_s[i]) for i in np.flatnonzero(bars.phase == PHASES.index(key))]
             for key in (phase, SYNC)}  # fmt: skip
    assert shown[SYNC] == [(50.0, 50.0 + pause_s)]
    assert shown[phase] == ([(0.0, 50.0), (50.0 + pause_s, 100.0)] if is_broken else [(0.0, 100.0)])


# --- pictures ----------------------------------------------------------------------------------------------


SCHEDULES = {
    "interleaved_1f1b": 2, "aiao": 2, "zb_v": 2, "dualpipe_v": 2, "chimera": 1,
}  # fmt: skip
"""Schedules, and how many stages a rank has in them."""


def slot_drawing(*changes: str) -> SlotDrawing:
    """Return the slots of the textbook's 1F1B with some keys changed."""
    scenario = load_scenario(SCENARIOS / "textbook-1f1b.yaml", changes)
    return SlotDrawing(schedule_of(scenario).slots, scenario.name)


@pytest.mark.parametrize("name", ["llama3-roce-24k", "gb200-nvl72-pods", "dragonfly-a100", "tpu-v4-slice"])
def test_words_of_clusters_are_inside_and_apart(name: str) -> None:
    """However large a cluster, none of its names is cut, and no two lie on each other."""
    topology = parse_topology(name, 512 if name.startswith("tpu") else 72)
    check_words(lay_out_topology(topology, title=name))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_words_of_schedules_are_inside_and_apart(schedule: str) -> None:
    """No number of a micro-batch is cut or lies on another, in any order of passes."""
    stages = f"parallel.pipeline.virtual_stages={SCHEDULES[schedule]}"
    check_words(slot_drawing(f"parallel.pipeline.schedule={schedule}", stages, "training.num_microbatches=12"))


def test_words_of_64_stages_are_inside_and_apart() -> None:
    """Of 64 ranks some are drawn, so that there is room for their names."""
    check_words(slot_drawing("parallel.pipeline.degree=64", "training.num_microbatches=8"))


def check_words(drawing: Drawing) -> None:
    """Fail where a text of a picture is cut by its edge, or lies on another, by the boxes that are drawn."""
    figure = Figure(figsize=drawing.size_inches, dpi=110, layout="constrained")
    drawing.draw(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = {label for axes in figure.axes for label in hidden_labels(axes)}
    shown = [text for text in figure.findobj(Text) if text.get_text().strip() and text not in hidden]
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in shown]
    width, height = canvas.get_width_height()
    assert [w for w, box in boxes if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1] == []
    overlapping = [
        (one, other)
        for (one, a), (other, b) in combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    assert overlapping == []


def hidden_labels(axes: Any) -> list[Text]:
    """Return the labels of ticks that are not drawn: those beyond the limits, or all where there is no frame."""
    left, right = axes.get_xlim()
    labels = [*axes.get_xticklabels(), *axes.get_yticklabels()]
    return [label for label in labels if not axes.axison or not left <= label.get_position()[0] <= right]
