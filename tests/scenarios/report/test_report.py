"""Reports of runs and of comparisons."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib.image import imread
from matplotlib.text import Text
from msgspec.structs import replace

from scenarios.report.charts.axis_unit import memory_unit, time_unit
from scenarios.report.charts.gantt import choose_bars, evenly
from scenarios.report.charts.op_kinds import kind_name, longest_kinds
from scenarios.report.pages.run_page import FoundStep, training_blocks
from scenarios.report.phases import BACKWARD, FORWARD, MESSAGE, OPTIMIZER, OTHER, SYNC, phase_of
from scenarios.report.pictures.pipeline_figure import pipeline_figure, write_pipeline_figure
from scenarios.report.rendering.html_page import write_page
from scenarios.summaries.steps.step import EngineWork, Folded, StepSummary
from tests.scenarios.typed_results import role_of, step_of
from traces.timeline import Timeline, TimelineBuilder

FORWARD_S, BACKWARD_S, SYNC_S = 1.0, 2.0, 3.0
GIB = 2**30


def order_1f1b(stage: int, num_stages: int, num_microbatches: int) -> Iterator[tuple[str, int]]:
    """Yield the ops of one stage in 1F1B order."""
    warmup = min(num_stages - 1 - stage, num_microbatches)
    yield from (("forward", microbatch) for microbatch in range(warmup))
    for microbatch in range(num_microbatches - warmup):
        yield "forward", microbatch + warmup
        yield "backward", microbatch
    yield from (("backward", microbatch) for microbatch in range(num_microbatches - warmup, num_microbatches))


def one_f_one_b(num_stages: int = 4, num_microbatches: int = 8, num_layers: int = 2) -> Timeline:
    """Return a 1F1B step with ``num_layers`` matmuls per task, a message per hop, and a gradient sync at the end."""
    builder, ends = TimelineBuilder(), dict[tuple[str, int, int], float]()
    pending = {stage: list(order_1f1b(stage, num_stages, num_microbatches)) for stage in range(num_stages)}
    clock = dict.fromkeys(pending, 0.0)
    while any(pending.values()):
        for stage, calls in pending.items():
            if not calls:
                continue
            direction, microbatch = calls[0]
            source = stage - 1 if direction == "forward" else stage + 1
            key = (direction, source, microbatch)
            if 0 <= source < num_stages and key not in ends:
                continue
            calls.pop(0)
            ready_s = ends[key] if 0 <= source < num_stages else 0.0
            clock[stage] = _run(builder, stage, (direction, microbatch), max(clock[stage], ready_s), num_layers)
            ends[direction, stage, microbatch] = clock[stage]
    for stage in range(num_stages):
        builder.add_rank(24 * stage, f"pp={stage}", 24)
        builder.add(
            rank=24 * stage, stream="dp", name="gradient_sync.0/sum_dp", kind="all_reduce", group="dp",
            start_s=clock[stage], end_s=clock[stage] + SYNC_S, num_bytes=10**9,
        )  # fmt: skip
        live = [(num_stages - stage) * 4 * GIB, 30 * GIB + (num_stages - stage) * 8 * GIB, 20 * GIB]
        builder.add_memory(24 * stage, [0.0, clock[stage] / 2, clock[stage]], live)
    return builder.build()


def _run(builder: TimelineBuilder, stage: int, call: tuple[str, int], start_s: float, num_layers: int) -> float:
    """Add one task call (direction, micro-batch) and its message; return when it ends."""
    direction, microbatch = call
    length_s = FORWARD_S if direction == "forward" else BACKWARD_S
    common = {"rank": 24 * stage, "microbatch": microbatch, "stage": stage}
    for layer in range(num_layers):
        builder.add(
            stream="compute", name=f"{direction}.{stage}/layer{stage * num_layers + layer}.fc1", kind="compute",
            start_s=start_s + length_s * layer / num_layers, end_s=start_s + length_s * (layer + 1) / num_layers,
            flop=1e14 * length_s / num_layers, num_bytes=10**8, **common,
        )  # fmt: skip
    end_s = start_s + length_s
    builder.add(
        stream=f"pp_send_{direction}", name=f"send_{direction}.{stage}/send", kind="send", start_s=end_s,
        end_s=end_s + 0.125, num_bytes=10**7, **common,
    )  # fmt: skip
    return end_s


def summary_of(timeline: Timeline, **changes: Any) -> StepSummary:
    """Return the summary that goes with a timeline."""
    busy_s = timeline.busy_s()
    total_s = timeline.duration_s
    roles = []
    for info in timeline.ranks:
        computing_s, peak = busy_s[info.rank, "compute"], timeline.memory.peak_bytes(info.rank)
        roles.append(role_of(
            role=info.role, num_ranks=info.num_ranks, peak_memory_bytes=peak,
            memory_by_kind_bytes={"parameter": 20 * GIB, "activation": peak - 20 * GIB}, peak_live_microbatches=4.0,
            busy_s={"compute": computing_s, "dp": SYNC_S},
            computing_s={"needed": 0.75 * computing_s, "recomputed": 0.25 * computing_s},
            exposed_s={"dp": SYNC_S, "pp_recv": 0.5, "bubble": total_s - computing_s - SYNC_S - 0.5},
        ))  # fmt: skip
    base = {
        "scenario": "GPT <145.6B> & more", "world_size": sum(info.num_ranks for info in timeline.ranks),
        "iteration_time_s": total_s, "tokens_per_s": 123456.7, "model_flop_per_s_per_device": 1.48e14,
        "hardware_flop_per_s_per_device": 1.9e14, "mfu": 0.4744, "hfu": 0.609, "bubble_fraction": 0.21,
        "exposed_communication_fraction": 0.09, "fits_memory": True, "memory_capacity_bytes": 80 * GIB,
        "roles": tuple(roles), "fold": Folded(ranks=96, simulated=4),
    }  # fmt: skip
    return step_of(**{**base, **changes})


def charts_of(path: Path) -> dict[str, Any]:
    """Return the figures in a page."""
    match = re.search(r"const charts = (\{.*\});\n", path.read_text(encoding="utf-8"))
    assert match is not None
    charts: dict[str, Any] = json.loads(match.group(1))
    return charts


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    """Return a 1F1B step of 4 stages and 8 micro-batches."""
    return one_f_one_b()


@pytest.fixture
def page(timeline: Timeline, tmp_path: Path) -> Path:
    """Return the report of the step."""
    write_page(tmp_path / "report.html", training_blocks(FoundStep(summary_of(timeline), timeline)))
    return tmp_path / "report.html"


def test_the_fake_step_is_1f1b(timeline: Timeline) -> None:
    """The step that the tests draw has the length of 1F1B and no overlapping ops."""
    timeline.check_streams()
    assert timeline.duration_s == pytest.approx((8 + 4 - 1) * (FORWARD_S + BACKWARD_S) + SYNC_S)


def test_report_answers_first(page: Path) -> None:
    """Step time, throughput, utilisation and memory against capacity stand before the first chart."""
    text = page.read_text(encoding="utf-8")
    answer = text[: text.index("<section>")]
    for words in ("36 s", "123,457 tokens/s", "47.4 %", "148 TFLOP/s", "62.00 GiB", "of 80.00 GiB on pp=0: fits"):
        assert words in answer
    assert "96 ranks" in answer


def test_report_says_when_memory_does_not_fit(timeline: Timeline, tmp_path: Path) -> None:
    """A step that does not fit says so in the memory card, coloured as bad."""
    summary = summary_of(timeline, fits_memory=False, memory_capacity_bytes=40 * GIB)
    write_page(tmp_path / "report.html", training_blocks(FoundStep(summary, timeline)))
    text = page_text(tmp_path / "report.html")
    assert '<div class="card bad">' in text
    assert "does not fit" in text


def page_text(path: Path) -> str:
    """Return a page without its scripts."""
    return re.sub(r"<script>.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_page_needs_no_network_and_escapes_titles(page: Path) -> None:
    """The page loads nothing from elsewhere, forbids it, and shows names as text."""
    text = page_text(page)
    assert "default-src 'none'" in text
    assert not re.search(r'(src|href)\s*=\s*"', text)
    assert "GPT &lt;145.6B&gt; &amp; more" in text
    assert "Plotly" in page.read_text(encoding="utf-8")


def test_two_reports_are_equal_byte_by_byte(timeline: Timeline, page: Path, tmp_path: Path) -> None:
    """Reports differ neither between runs nor with wall times."""
    summary = summary_of(timeline, engine=EngineWork(events=1, wall_time_s=99.0))
    write_page(tmp_path / "again.html", training_blocks(FoundStep(summary, one_f_one_b())))
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_every_chart_is_valid_for_plotly(page: Path) -> None:
    """plotly's own validation accepts each figure, and each has its element in the page."""
    charts = charts_of(page)
    assert set(charts) == {"pipeline", "time", "memory", "memory-by-kind"}
    for chart_id, figure in charts.items():
        go.Figure(figure)
        assert f'id="{chart_id}"' in page.read_text(encoding="utf-8")
        assert any(len(trace["x"]) for trace in figure["data"])


def test_pipeline_shows_every_task_call_once(timeline: Timeline, page: Path) -> None:
    """A bar per task call of every simulated rank, in its colour, with its micro-batch, at its time."""
    traces = {trace["name"]: trace for trace in charts_of(page)["pipeline"]["data"]}
    assert {name: len(trace["x"]) for name, trace in traces.items()} == {
        "forward": 32, "backward": 32, "send and receive": 64, SYNC.words: 4,
    }  # fmt: skip
    forward = traces["forward"]
    assert set(forward["x"]) == {FORWARD_S}
    assert forward["base"][0] == 0.0
    assert sorted(map(int, forward["text"])) == sorted([*range(8)] * 4)
    assert "<b>forward.0</b>, micro-batch 0<br>1 s, from 0 s" in forward["hovertext"]
    ticks = charts_of(page)["pipeline"]["layout"]["yaxis"]["ticktext"]
    assert ticks == [f"pp={stage} ×24" for stage in range(4)]


def test_op_and_task_detail_draw_the_same_bars(timeline: Timeline) -> None:
    """A timeline with a row per task call gives the same bars as one with a row per op."""
    ops, tasks = choose_bars(timeline), choose_bars(one_f_one_b(num_layers=1))
    for key in ("lane", "phase", "start_s", "end_s", "microbatch"):
        np.testing.assert_allclose(getattr(ops.windows[0].bars, key), getattr(tasks.windows[0].bars, key))


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(3, 40), (20, 8), (20, 60)])
def test_large_steps_are_cut_and_say_so(num_stages: int, num_microbatches: int) -> None:
    """Never more bars than the limit asks for (but those that cross an edge); what is missing is said and adds up."""
    timeline = one_f_one_b(num_stages, num_microbatches, 1)
    gantt = choose_bars(timeline, max_ranks=6, max_bars=150)
    num_bars = sum(len(window.bars) for window in gantt.windows)
    assert num_bars <= 150 + 4 * 6 * len(gantt.windows)
    assert len(gantt.ranks) == min(num_stages, 6)
    assert gantt.ranks[-1] == f"pp={num_stages - 1} ×24"
    assert gantt.windows[0].start_s == 0.0
    assert gantt.windows[-1].end_s == pytest.approx(timeline.duration_s)
    for before, after in zip(gantt.windows, gantt.windows[1:], strict=False):
        assert before.start_s < before.end_s <= after.start_s < after.end_s
    said = " ".join(gantt.left_out)
    assert ("ranks" in said) == (num_stages > 6)
    assert "between the three windows" in said


def test_virtual_stages_of_a_rank_alternate() -> None:
    """The second virtual stage of a rank is told from the first."""
    builder = TimelineBuilder(detail="task")
    for chunk, stage in enumerate((1, 3)):
        builder.add(
            rank=0, stream="compute", name=f"forward.{stage}", kind="forward", start_s=chunk, end_s=chunk + 1,
            stage=stage, microbatch=0,
        )  # fmt: skip
    assert choose_bars(builder.build()).windows[0].bars.chunk.tolist() == [0, 1]


def test_time_breakdown_adds_up_to_the_step(page: Path) -> None:
    """Computing, communication and bubble of every role are the whole step."""
    data = charts_of(page)["time"]["data"]
    total = np.sum([trace["x"] for trace in data], axis=0)
    np.testing.assert_allclose(total, 100.0)
    names = {trace["name"] for trace in data}
    computing = {"computing", "computing again (recomputation)"}
    assert names == computing | {"data-parallel communication", "pipeline messages", "pipeline bubble"}


def test_memory_curve_reaches_the_peak_and_shows_capacity(page: Path) -> None:
    """The first role's curve tops at its peak, below a line at the capacity; far capacities are told in words."""
    chart = charts_of(page)["memory"]
    assert max(chart["data"][0]["y"]) == pytest.approx(62.0)
    assert chart["layout"]["shapes"][0]["y0"] == 80.0


def test_capacity_far_above_the_peak_is_told_not_drawn(timeline: Timeline, tmp_path: Path) -> None:
    """Where the peak would vanish beside the capacity, the axis keeps to the peak."""
    summary = summary_of(timeline, memory_capacity_bytes=1000 * GIB)
    write_page(tmp_path / "report.html", training_blocks(FoundStep(summary, timeline)))
    assert "shapes" not in charts_of(tmp_path / "report.html")["memory"]["layout"]
    assert "1000.00 GiB, is far above the picture" in page_text(tmp_path / "report.html")


def test_longest_kinds_are_means_over_all_ranks(timeline: Timeline) -> None:
    """Ops alike up to layer are one kind; seconds are per rank, folded ranks counted as often as they stand for."""
    kinds = {(kind.name, kind.phase): kind for kind in longest_kinds(timeline)}
    backward = kinds["fc1", "backward"]
    assert backward.time_s == pytest.approx(8 * BACKWARD_S)
    assert backward.num_ops == pytest.approx(16)
    assert backward.flop == pytest.approx(8 * BACKWARD_S * 1e14)
    assert next(iter(kinds)) == ("fc1", "backward")


def test_names_lose_their_indices_and_find_their_phase() -> None:
    """Layer, stage and bucket numbers go, numbers inside names stay."""
    assert kind_name("forward.0/layer3.fc1.all_reduce") == "fc1.all_reduce"
    assert kind_name("optimizer.0/adam.layer3.norm1.weight") == "adam.norm1.weight"
    assert kind_name("send_forward.12") == "send_forward"
    names = [
        "forward.0/x",
        "backward.1",
        "send_forward.0",
        "recv_backward.2",
        "gradient_sync.0/a",
        "optimizer.1",
        "zero",
    ]
    assert [phase_of(name) for name in names] == [FORWARD, BACKWARD, MESSAGE, MESSAGE, SYNC, OPTIMIZER, OTHER]


def test_textbook_steps_without_hardware_have_a_report(timeline: Timeline, tmp_path: Path) -> None:
    """Rates and capacity that a textbook job does not have are left out."""
    keys = ("tokens_per_s", "model_flop_per_s_per_device", "hardware_flop_per_s_per_device", "mfu", "hfu")
    nothing = dict.fromkeys((*keys, "fits_memory", "memory_capacity_bytes"))
    write_page(tmp_path / "report.html", training_blocks(FoundStep(summary_of(timeline, **nothing), timeline)))
    text = page_text(tmp_path / "report.html")
    assert "Time per step" in text
    assert "Throughput" not in text
    assert "Peak memory" not in text


def stretched(timeline: Timeline, factor: float) -> Timeline:
    """Return a timeline as executed, ``factor`` times as long."""
    times = {"start_s": timeline.start_s * factor, "end_s": timeline.end_s * factor}
    return replace(timeline, source="executed", **times)


def test_figure_is_a_png_of_the_pipeline(timeline: Timeline, tmp_path: Path) -> None:
    """The picture has the pipeline's colours, and two writes are equal byte by byte."""
    for name in ("a.png", "b.png"):
        write_pipeline_figure(timeline, tmp_path / name, title="1F1B")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    pixels = (imread(tmp_path / "a.png")[..., :3] * 255).round().astype(int).reshape(-1, 3)
    for phase in (FORWARD, BACKWARD, SYNC):
        colour = [int(phase.colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (pixels == colour).all(axis=1).sum() > 500


def test_a_long_title_of_a_figure_is_read_beside_its_legend(timeline: Timeline) -> None:
    """The title covers neither the legend nor the first line of the timeline."""
    figure = pipeline_figure(timeline, title="a title that is long enough to reach the legend, " * 3)
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    (title,) = [text for text in figure.findobj(Text) if text.get_text().startswith("a title")]
    place = title.get_window_extent()
    assert not place.overlaps(legend.get_window_extent())
    assert not place.overlaps(axes.get_window_extent())


def test_a_notebook_shows_a_figure(timeline: Timeline) -> None:
    """The last line of a cell may be a figure, also where nobody has called pyplot: it knows its picture."""
    assert pipeline_figure(timeline)._repr_png_().startswith(b"\x89PNG")


def test_units_suit_the_values() -> None:
    """Axes have the unit that keeps numbers readable."""
    assert [time_unit(seconds)[0] for seconds in (30.0, 0.03, 3e-5)] == ["s", "ms", "us"]
    assert [memory_unit(size)[0] for size in (80 * GIB, 5 * 2**20, 9 * 2**10, 12)] == ["GiB", "MiB", "KiB", "bytes"]


def test_even_choice_keeps_first_and_last() -> None:
    """At most the limit is chosen, in order, ends included."""
    assert evenly(range(64), 5) == [0, 16, 32, 47, 63]
    assert evenly(range(3), 5) == [0, 1, 2]
