"""The page of a calibration says what the profile says, draws every measurement, and stays small."""

import math
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.calibration.network import predict_collectives
from costmodels.calibration.samples import KernelSample
from costmodels.hardware import load_node
from costmodels.kernels.tensor import Work
from costmodels.profile import load_profile, packaged_entry
from costmodels.spread import Spread
from costmodels.units import format_percent
from scenarios.calibration.calibration import Calibration, Point
from scenarios.calibration.page import write_calibration_page
from scenarios.calibration.parameters import parameter_sections
from scenarios.calibration.plots import against_plot, collective_plot, distribution_plot, error_of, error_plot
from scenarios.calibration.tables import MeasuredTables, calibrate_tables
from scenarios.command_line import group
from scenarios.report.blocks import LargePlot
from scenarios.report.charts.svg_plot import Axis, Drawing, Plot, log_axis
from scenarios.report.rendering.notebook import notebook_html
from scenarios.summaries.measured.calibration import Certainty, Unsettled
from tests.scenarios.report.test_pages import elements_of

NODE = load_node("dgx-a100-80g")
SPREAD = Spread(deviation=((1e-5, 0.2), (1e-2, 0.1)), common=0.0)
COLUMNS = ("system", "collective", "n_gpus", "n_nodes", "bytes", "kind", "time_s")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a table of products, and one of collectives of two sizes of group, with some noise."""
    folder, shuffler = tmp_path_factory.mktemp("tables"), random.Random(3)
    rows = [(m, n, k) for m in (256, 512, 1024, 2048, 4096) for n in (512, 2048, 8192) for k in (256, 1024, 4096, 8192)]
    products = pd.DataFrame(rows, columns=["m", "n", "k"])
    noise = np.array([shuffler.lognormvariate(0.0, 0.1) for _ in rows])
    products["time_s"] = (10e-6 + 2.0 * products.m * products.n * products.k / 156e12) * noise
    network = [
        ("one", kind, ranks, 1, 1 << p, "measured", (20e-6 + (1 << p) / 200e9) * shuffler.lognormvariate(0, 0.1))
        for kind in ("all_reduce", "alltoall") for ranks in (4, 8) for p in range(10, 30)
    ]  # fmt: skip
    products.to_parquet(folder / "products.parquet")
    pd.DataFrame(network, columns=list(COLUMNS)).to_csv(folder / "network.csv", index=False)
    return [folder / "products.parquet", folder / "network.csv"]


@pytest.fixture(scope="module")
def calibration(tables: list[Path]) -> Calibration:
    """Return the profile that the tables give."""
    return calibrate_tables(NODE, MeasuredTables(tables=tuple(tables)))


@pytest.fixture(scope="module")
def page(calibration: Calibration, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return its page."""
    path = tmp_path_factory.mktemp("page") / "mine.html"
    write_calibration_page(calibration, path, "simulate calibrate --from <table>")
    return path.read_text(encoding="utf-8")


def test_page_is_whole_and_loads_nothing(page: str) -> None:
    """Tags match, words from outside are escaped, nothing comes from elsewhere, and no script runs."""
    for tag, attributes, above in elements_of(page).found:
        assert tag not in {"link", "img", "iframe", "base", "script"}
        assert not {"src", "href"} & set(attributes)
        assert tag != "table" or "wide" in above
    assert "--from &lt;table&gt;" in page


def test_page_has_the_errors_and_the_parameters_of_the_file(page: str, calibration: Calibration) -> None:
    """Mean errors of both halves, every fitted parameter with its standard error or the reason for none, and dates."""
    about: dict[str, Any] = calibration.entry["calibration"]
    for row in about["residuals"].values():
        assert format_percent(row["mean"]) in page
        assert format_percent(row["held_out_mean"]) in page
    names = [path.split(".", 1)[1].removeprefix("protocols.") for path in about["standard_errors"]]
    assert names
    assert [name for name in names if f"<td>{name}</td>" not in page] == []
    assert page.count("at its limit</td>") == len(about["without_standard_error"]["at_limit"])
    assert page.count("not settled</td>") == len(about["without_standard_error"]["not_settled"])
    assert about["date"] in page
    assert "As packaged, because they have too few measurements: fused attention" in page


def test_every_measurement_is_drawn_where_it_belongs(calibration: Calibration) -> None:
    """One circle per measurement in each plot; predictions that are too long lie above the line of equality."""
    points = [p for p in calibration.points if p.family == "gemm"]
    against, error = svg(against_plot(points)), svg(error_plot(points, SPREAD))
    for drawing in (against, error):
        places = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', drawing)]
        assert len(places) == len(points)
    drawn = re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"[^>]*><title>([^<]*)', error)
    middle = float(re.findall(r'class="guide" d="M[\d.]+ ([\d.]+)L', error)[0])
    by_key = {p.words: error_of(p) for p in points}
    for height, words in drawn:
        error = by_key[words.split("\n")[0]]
        assert (float(height) < middle) == (error > 0) or abs(float(height) - middle) < 1


def test_distribution_counts_every_row_once(calibration: Calibration) -> None:
    """The steps of each half add up to all of its rows, those off the axis in the outermost ones."""
    points = [p for p in calibration.points if p.family == "gemm"]
    far = [replace(points[0], predicted_s=1e4 * points[0].measured_s), *points]
    drawing = svg(distribution_plot(far, SPREAD))
    ticks = [
        (float(y) - 4, float(part)) for y, part in re.findall(r'y="([\d.]+)" text-anchor="end">([\d.]+) %', drawing)
    ]
    (bottom, _), (top, highest) = ticks[0], ticks[-1]
    for half in ("fitted", "held-out"):
        path = re.search(rf'class="{half}" d="M([^"]*)Z"', drawing)
        assert path is not None
        heights = [
            (bottom - float(corner.split()[1])) / (bottom - top) * highest for corner in path.group(1).split("L")
        ]
        assert sum(heights[1:-1:2]) == pytest.approx(100.0, abs=1.0)


def svg(drawing: Drawing) -> str:
    """Return a drawing as a page has it."""
    return notebook_html([LargePlot(drawing)])


def words_across(drawing: Drawing) -> list[tuple[float, str]]:
    """Return where the words below a drawing's horizontal axis have their middles, from left to right."""
    below = [words for words in drawing.words if words.anchor == "middle" and not words.is_upright]
    return sorted((float(words.x), words.text) for words in below if float(words.y) < drawing.height - 10)


@given(st.floats(1e-4, 6.0), st.floats(1.0, 1e5))
def test_words_of_an_axis_do_not_touch(error: float, span: float) -> None:
    """Whatever errors and lengths there are, there are some 7 units for every letter, those of a font of 12."""
    sample = KernelSample(key="a", family="gemm", dtype="float32", work=Work(1.0, 1.0, 1, 1), seconds=1e-5)
    points = [
        Point(replace(sample, seconds=seconds), seconds * math.exp(factor * error), held_out=False)
        for seconds in (1e-5, 1e-5 * span) for factor in (-1.0, 0.0, 1.0)
    ]  # fmt: skip
    for drawing, least in ((distribution_plot(points, None), 3), (error_plot(points, None), 1)):
        words = words_across(drawing)
        assert len(words) >= least
        for (left, before), (right, after) in pairwise(words):
            assert right - left > 3.5 * (len(before) + len(after)), (before, after)


def test_numbers_of_parameters_show_their_digits() -> None:
    """Areas of tiles stand there whole, and alike in both columns; small numbers have four digits."""
    entry = {**packaged_entry("a100"), "node": NODE.name}
    gemm = {**entry["gemm"], "shallow_area": 65536.0, "throttle": 0.123456}
    unsettled = Unsettled(at_limit=(), not_settled=("gemm.shallow_area",))
    certainty = Certainty(standard_errors={"gemm.throttle": 0.1}, without_standard_error=unsettled)
    (section,) = parameter_sections({**entry, "gemm": gemm}, ["gemm"], certainty)
    body = notebook_html([section])
    assert "<td>shallow_area</td>" in body
    row = body.partition("<td>shallow_area</td>")[2].partition("</tr>")[0]
    assert "65,536" in row
    assert "8192" in row
    assert "0.1235" in body


def test_fitted_curves_are_the_profile_s_own(calibration: Calibration) -> None:
    """The curve of a group ends where the profile predicts its largest collective, in seconds."""
    points = [p for p in calibration.points if p.family == "all_reduce"]
    node, profile = NODE, load_profile("a100")
    drawing = svg(collective_plot(points, node, profile, is_rate=False))
    curves = re.findall(r'stroke-width:1.6" d="M([^"]*)"', drawing)
    assert len(curves) == 2
    last = max((p.sample for p in points), key=lambda s: (getattr(s, "num_bytes", 0), getattr(s, "ranks_per_node", ())))
    (alone_s,) = predict_collectives([last], node, profile)
    (first_s,) = predict_collectives([replace(last, num_bytes=1024)], node, profile)
    begin, end = (float(curves[1].split("L")[place].split()[1]) for place in (0, -1))
    ticks = {1e-4: "100 us", 1e-3: "1 ms"}
    places = {
        seconds: float(found.group(1)) - 4
        for seconds, words in ticks.items()
        if (found := re.search(rf'y="([\d.]+)" text-anchor="end">{words}<', drawing))
    }
    per_decade = places[1e-4] - places[1e-3]
    assert begin - end == pytest.approx(per_decade * np.log10(alone_s / first_s), abs=1.0)


def test_thousands_of_measurements_stay_small(calibration: Calibration) -> None:
    """Fourteen thousand points are dots on a grid, the farthest off say what they are, and a plot has 150 KB."""
    shuffler, point = np.random.default_rng(0), calibration.points[0]
    times = np.exp(shuffler.uniform(-12, -2, 14_000))
    many = [
        replace(point, sample=replace(point.sample, seconds=t), predicted_s=t * f, held_out=i % 2 == 0)
        for i, (t, f) in enumerate(zip(times.tolist(), np.exp(shuffler.normal(0, 0.2, 14_000)).tolist(), strict=True))
    ]
    for drawing in (against_plot(many), error_plot(many, SPREAD), distribution_plot(many, SPREAD)):
        assert len(svg(drawing)) < 150_000
    assert svg(error_plot(many, SPREAD)).count("<title>") == 80


def test_axes_keep_order_and_their_ticks_inside() -> None:
    """Larger values lie further up, ticks are round and within the axis, what is beyond lies on its edge."""
    for values in ([1e-6, 3.0], [2e-3, 2.1e-3], [0.5, 40.0]):
        axis = log_axis("time", values, str)
        parts = axis.part(np.geomspace(axis.low / 10, axis.high * 10, 50))
        assert (np.diff(parts) >= 0).all()
        assert (parts[0], parts[-1]) == (0.0, 1.0)
        assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
        assert all(0 < axis.part([value])[0] < 1 for value in values)
    linear = Axis("part", 0.0, 2.0, (), str, is_log=False)
    across, down = Plot(linear, linear, 100, 100).places([0.0, 2.0], [0.0, 2.0])
    assert across[0] < across[1]
    assert down[0] > down[1]


@given(st.floats(1e-12, 1e6), st.floats(1.0, 1e9))
def test_every_axis_has_ticks(low: float, span: float) -> None:
    """Whatever the values, one alone included, an axis has one to six ticks, and two or more where they differ."""
    ticks = log_axis("time", [low, low * span], str).ticks
    assert (1 if span < 1.3 else 2) <= len(ticks) <= 6
    assert len({*ticks}) == len(ticks)


def test_calibrate_writes_the_page_beside_the_profile(tmp_path: Path, tables: list[Path]) -> None:
    """P.yaml comes with P.html; where that is a directory, nothing is measured and nothing written."""
    options = ["calibrate", "--from", str(tables[0]), "--node", NODE.name, "--out"]
    result = CliRunner().invoke(group, [*options, str(tmp_path / "p.yaml")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.html", "p.yaml"]
    assert "<title>p</title>" in (tmp_path / "p.html").read_text(encoding="utf-8")
    (tmp_path / "q.html").mkdir()
    refused = CliRunner().invoke(group, [*options, str(tmp_path / "q.yaml")])
    assert refused.exit_code == 2
    assert "q.html is a directory" in " ".join(refused.output.split())
    assert not (tmp_path / "q.yaml").exists()
