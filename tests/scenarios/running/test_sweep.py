"""Sweeps: values and their product, order, refusals, files, and the same answer from any number of processes."""

import csv
import io
import json
import re
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from backends.errors import LostProcessError
from costmodels.units import format_time
from scenarios.cli import main
from scenarios.console.terminal import Terminal
from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import read_value
from scenarios.report.phases import BACKWARD, BACKWARD_WEIGHT, FORWARD, PHASES
from scenarios.report.rendering.html_page import page_text
from scenarios.summaries.point_names import label, varied
from scenarios.summaries.sweep import SWEEP_SCHEMA, SweepSummary, SweptSetting
from scenarios.sweep.console import print_sweep
from scenarios.sweep.files import csv_text, table_of, write_sweep
from scenarios.sweep.page import sweep_blocks
from scenarios.sweep.run import Sweep, prepare, run
from scenarios.sweep.settings import MAX_POINTS, points, read_settings
from scenarios.sweep.table import rows_of
from scenarios.sweep.workers import ThisProcess, local_workers
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import run_step, simulate
from scenarios.workloads.steps.swept import TOO_LARGE
from sim.training.pipeline.rules import Schedule

ROOT = Path(__file__).parents[3]
TINY = ROOT / "scenarios" / "library" / "tiny-gpt-2x2.yaml"
FILES = ("report.html", "sweep.csv", "sweep.json", "sweep.parquet")
RESULTS = [
    "world_size", "iteration_time_s", "tokens_per_s", "model_flop_per_s_per_device", "mfu", "hfu", "bubble_fraction",
    "exposed_communication_fraction", "algorithm", "peak_memory_bytes", "memory_capacity_bytes", "fits_memory",
    "sent_bytes_per_rank", "tensor_sent_bytes_per_rank", "pipeline_sent_bytes_per_rank", "data_sent_bytes_per_rank",
    "expert_sent_bytes_per_rank", "peak_live_microbatches", "peak_live_activations", "mean_iteration_time_s", "goodput",
]  # fmt: skip

SCHEDULES = "parallel.pipeline.schedule=gpipe,1f1b,zb_h1,interleaved_1f1b"


def swept(path: Path, *options: str, jobs: int = 1, pictures: bool = False) -> Sweep:
    """Return the sweep of a scenario over some options."""
    job = prepare(path, read_settings(options))
    return run(job, local_workers, jobs, with_pictures=pictures, tick=lambda: None)


def texts(option: str) -> tuple[str, ...]:
    """Return the values of one option as typed."""
    [setting] = read_settings([option])
    return setting.texts


def command(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Run ``simulate sweep``; return exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as caught:
        main(["sweep", *args])
    output = capsys.readouterr()
    return int(caught.value.code or 0), output.out, output.err


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("1", ("1",)),
        ("1,2,4", ("1", "2", "4")),
        (" a , b ", ("a", "b")),
        ("25 MiB,50 MiB", ("25 MiB", "50 MiB")),
        ("[2,2],[1,3]", ("[2,2]", "[1,3]")),
        ("[[1,2],[3]],[]", ("[[1,2],[3]]", "[]")),
        ("{degree: 2, schedule: gpipe},{degree: 4}", ("{degree: 2, schedule: gpipe}", "{degree: 4}")),
        ("'a,b',c", ("'a,b'", "c")),
        ("'it''s, here',c", ("'it''s, here'", "c")),
        (r'"a\",b",c', (r'"a\",b"', "c")),
        ("don't,won't", ("don't", "won't")),
        ('["a]",b],c', ('["a]",b]', "c")),
    ],
)
def test_commas_in_brackets_and_quotes_separate_nothing(values: str, expected: tuple[str, ...]) -> None:
    """Values are YAML between commas; a comma inside a list, a mapping or quotes belongs to its value."""
    assert texts(f"name={values}") == expected


SCALARS = st.one_of(st.integers(-99, 99), st.booleans(), st.text("ab,'\"[]{}: ", min_size=1, max_size=6))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=4)


@given(st.lists(VALUES, min_size=1, max_size=5, unique_by=json.dumps))
def test_what_is_written_as_yaml_is_read_back(values: list[object]) -> None:
    """Any list of values, each written as JSON (which is YAML), comes back as the same values."""
    option = f"name={','.join(json.dumps(value) for value in values)}"
    [setting] = read_settings([option])
    assert list(setting.values) == values
    assert [read_value(text, "") for text in setting.texts] == values


def test_product_goes_through_every_combination_the_last_key_fastest() -> None:
    """Points come in the order of nested loops, and say what they set."""
    found = list(points(read_settings(["a.b=1,2", "c=x", "d=[1,2],3"])))
    assert [point.overrides for point in found] == [
        ("a.b=1", "c=x", "d=[1,2]"), ("a.b=1", "c=x", "d=3"), ("a.b=2", "c=x", "d=[1,2]"), ("a.b=2", "c=x", "d=3"),
    ]  # fmt: skip
    assert found[1].values == {"a.b": 1, "c": "x", "d": 3}
    assert [point.index for point in found] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ((), "a sweep needs values to go through"),
        (("seed",), "a setting is a dotted key, =, and values"),
        (("=1,2",), "a setting is a dotted key, =, and values"),
        (("seed.=1",), "a setting is a dotted key, =, and values"),
        (("seed=",), "a value is missing"),
        (("seed=1,,2",), "a value is missing"),
        (("seed=1,2,",), "a value is missing"),
        (("seed=[1,2",), "] is missing at the end"),
        (("seed=1],2",), "] closes no bracket"),
        (("seed=[1},2",), "} closes no bracket"),
        (("seed='1,2",), "' is missing at the end"),
        (("seed=1,2,1",), "the value 1 comes twice"),
        (("seed=a,'a'",), "the value 'a' comes twice"),
        (("seed=1", "seed=2"), "seed was set before"),
        (("a.b=1", "a={b: 2}"), "a.b was set before"),
        (("seed=" + ",".join(map(str, range(101))), "x=" + ",".join(map(str, range(100)))), f"than {MAX_POINTS:,}"),
        (("seed=!!int 3,4",), "tag"),
        (("seed=*a,4",), "alias"),
    ],
)
def test_bad_values_are_refused_before_any_work(tmp_path: Path, capsys, options: tuple[str, ...], rule: str) -> None:
    """A malformed option is one message that names it, exit code 2, and nothing written."""
    out = tmp_path / "out"
    code, shown, error = command(
        capsys, str(TINY), *(word for o in options for word in ("--set", o)), "--out", str(out)
    )
    assert (code, shown) == (2, "")
    assert rule in error
    assert "--set" in error
    assert "Traceback" not in error
    assert not out.exists()


def test_an_outer_key_may_come_before_an_inner_one() -> None:
    """Later options go into what earlier ones put there."""
    found = list(points(read_settings(["a={b: 1}", "a.b=2,3"])))
    assert [point.overrides for point in found] == [("a={b: 1}", "a.b=2"), ("a={b: 1}", "a.b=3")]


def test_points_are_the_single_runs_in_order_of_time() -> None:
    """Each point has the numbers of ``simulate`` with the same values; the fastest stands first."""
    summary = swept(TINY, "training.recompute=none,full", "training.microbatch_size=1,2").as_json()
    assert summary["schema"] == SWEEP_SCHEMA == "meshtwin.sweep/1"
    assert summary["settings"][1] == {"key": "training.microbatch_size", "values": [1, 2]}
    times = [point["iteration_time_s"] for point in summary["points"]]
    assert times == sorted(times)
    assert len(set(times)) == len(times) == 4
    for point in summary["points"]:
        assert list(point) == ["set", *RESULTS]
        single = simulate(load_scenario(TINY, [f"{key}={value}" for key, value in point["set"].items()])).as_json()
        shared = set(single) & set(point)
        assert len(shared) == 11
        assert {key: point[key] for key in shared} == {key: single[key] for key in shared}
        assert point["peak_memory_bytes"] == max(role["peak_memory_bytes"] for role in single["roles"])
        assert point["peak_live_microbatches"] == max(role["peak_live_microbatches"] for role in single["roles"])


def test_sums_over_replicas_are_part_of_the_data_parallel_bytes() -> None:
    """With groups of shards a rank gathers inside its group and sums between groups: both are data parallel."""
    degrees = ["parallel.tensor.degree=1", "parallel.pipeline.degree=1", "parallel.data.degree=4"]
    row = simulate(load_scenario(TINY, [*degrees, "parallel.data.zero_stage=3", "parallel.data.shard_degree=2"])).row()
    assert row.data_sent_bytes_per_rank == row.sent_bytes_per_rank > 0


def test_equal_times_keep_the_order_of_the_product(write, textbook: str) -> None:
    """GPipe and 1F1B take equally long with equal stages; who was named first stands first."""
    path = write(textbook, ("hop: 0.25 s", "hop: 0 s"))
    for names in (["gpipe", "1f1b"], ["1f1b", "gpipe"]):
        summary = swept(path, f"parallel.pipeline.schedule={','.join(names)}").as_json()
        assert [point["iteration_time_s"] for point in summary["points"]] == [33.0, 33.0]
        assert [point["set"]["parallel.pipeline.schedule"] for point in summary["points"]] == names


def test_schedules_have_the_bubbles_and_live_micro_batches_of_their_papers(write, textbook: str) -> None:
    """With tF = tB = tW = 1 s, 4 ranks and 8 micro-batches: (P-1)(tF+tB+tW), over v if interleaved, (P-1)(tF+tB-tW)."""
    path = write(textbook, ("hop: 0.25 s", "hop: 0 s"))
    options = ("parallel.pipeline.schedule=gpipe,1f1b,interleaved_1f1b,zb_h1", "parallel.pipeline.virtual_stages=1,2")
    summary = swept(path, *options).as_json()
    found = {tuple(point["set"].values()): point for point in summary["points"]}
    bubble_s = {key: point["bubble_fraction"] * point["iteration_time_s"] for key, point in found.items()}
    assert bubble_s["gpipe", 1] == pytest.approx(9.0)
    assert bubble_s["1f1b", 1] == pytest.approx(9.0)
    assert bubble_s["interleaved_1f1b", 2] == pytest.approx(4.5)
    assert bubble_s["zb_h1", 1] == pytest.approx(3.0)
    live = {key: point["peak_live_activations"] for key, point in found.items()}
    assert (live["gpipe", 1], live["1f1b", 1], live["interleaved_1f1b", 2]) == (8, 4, 5.5)
    assert found["1f1b", 1]["peak_memory_bytes"] is None
    assert found["1f1b", 1]["sent_bytes_per_rank"] is None


def test_refused_points_are_listed_with_their_rule() -> None:
    """A point that the rules refuse is neither dropped nor fatal: what was set, and one line."""
    summary = swept(TINY, SCHEDULES, "parallel.pipeline.virtual_stages=1,2").as_json()
    assert len(summary["points"]) + len(summary["refused"]) == 8
    reasons = {tuple(entry["set"].values()): entry["reason"] for entry in summary["refused"]}
    assert list(reasons) == [("gpipe", 2), ("1f1b", 2), ("interleaved_1f1b", 1)]
    key = "parallel.pipeline.virtual_stages"
    assert reasons["gpipe", 2] == f"{key}: gpipe has one virtual stage per rank, got 2"
    assert all("\n" not in reason for reason in reasons.values())


def test_no_valid_point_is_bad_input(capsys, tmp_path: Path) -> None:
    """Where all points are refused, the first refusal is the error: exit code 2 and nothing written."""
    args = (str(TINY), "--set", "parallel.pipeline.degree=3,5", "--out", str(tmp_path / "out"))
    code, shown, error = command(capsys, *args)
    assert (code, shown) == (2, "")
    assert "all 2 points are refused, the first one: tensor 2 x pipeline 3" in error
    assert "--set parallel.pipeline.degree=3" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((str(TINY), "--set", "parallel.pipeline.schedul=gpipe,1f1b"), "did you mean schedule?"),
        (("no/such/file.yaml", "--set", "seed=1,2"), "there is no such file"),
        ((str(TINY), "--set", "seed=1,2", "--jobs", "0"), "0 is not in the range"),
        ((str(TINY), "--set", "seed=1,2", "--jobs", "two"), "'two' is not a valid integer"),
        ((str(TINY), "--set", "seed=1,2", "--out", ""), "the name is empty"),
        ((str(TINY), "--set", "seed=1,2", "--out", str(TINY)), "is a file, not a directory"),
    ],
)
def test_bad_arguments_are_refused(capsys, args: tuple[str, ...], words: str) -> None:
    """Files, folders and numbers are refused as by the other commands: exit code 2, one message."""
    code, shown, error = command(capsys, *args)
    assert (code, shown) == (2, "")
    assert words in error
    assert "Traceback" not in error


def test_a_point_that_no_computer_could_simulate_is_refused_too() -> None:
    """A refusal that only the simulation finds is listed like the others."""
    run_of_years = "{mtbf_per_device: 1 s, checkpoint: {save: 60 s}, restart: 60 s, duration: 10 d}"
    short_run = "{mtbf_per_device: 1000 d, checkpoint: {save: 60 s}, restart: 60 s, duration: 1 d, replications: 2}"
    summary = swept(TINY, f"reliability={run_of_years},{short_run}").as_json()
    assert len(summary["points"]) == 1
    [refused] = summary["refused"]
    assert refused["set"]["reliability"]["duration"] == "10 d"
    assert refused["reason"].startswith("reliability.replications: ")


def test_one_and_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    """The number of processes changes nothing in any file."""
    for jobs in (1, 2):
        write_sweep(
            swept(TINY, SCHEDULES, "training.recompute=none,full", jobs=jobs, pictures=True), tmp_path / str(jobs)
        )
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / str(jobs)).iterdir()} for jobs in (1, 2))
    assert sorted(first) == sorted(second) == list(FILES)
    assert [name for name in FILES if first[name] != second[name]] == []


def test_any_executor_will_do() -> None:
    """Points may come back in any order: here the last is the first to be run."""

    class Backwards(Executor):
        def __init__(self) -> None:
            self.waiting: list[tuple[Future, object, tuple[object, ...]]] = []

        def submit(self, fn, /, *args: object, **kwargs: object) -> Future:
            self.waiting.append((Future(), fn, args))
            if len(self.waiting) == 2:
                for future, function, given in reversed(self.waiting):
                    future.set_result(function(*given))
            return self.waiting[-1][0]

    @contextmanager
    def backwards(num_jobs: int):
        assert num_jobs == 2
        yield Backwards()

    done = []
    job = prepare(TINY, read_settings(["training.microbatch_size=1,2"]))
    found = run(job, backwards, 8, tick=lambda: done.append(1))
    assert len(done) == 2
    assert found.as_json() == swept(TINY, "training.microbatch_size=1,2").as_json()


def test_a_process_that_dies_is_a_failed_run(monkeypatch, capsys, tmp_path: Path) -> None:
    """Where the system ends a worker, the sweep says so and leaves with 1; nothing is written."""

    @contextmanager
    def dying(num_jobs: int):
        future: Future[object] = Future()
        future.set_exception(LostProcessError("died"))
        executor = ThisProcess()
        monkeypatch.setattr(executor, "submit", lambda *_: future)
        yield executor

    monkeypatch.setattr("scenarios.commands.sweep.workers_at", lambda *_: dying)
    code, shown, error = command(capsys, str(TINY), "--set", "seed=1,2", "--out", str(tmp_path / "out"))
    assert (code, shown) == (1, "")
    assert "use fewer --jobs" in error
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_this_process_reaches_the_caller() -> None:
    """The executor of one process hands on results and errors as any other does."""
    assert ThisProcess().submit(max, 1, 2).result() == 2
    with pytest.raises(ZeroDivisionError):
        ThisProcess().submit(divmod, 1, 0).result()


def test_json_is_the_file_and_nothing_else(capsys, tmp_path: Path) -> None:
    """``--json`` prints what sweep.json holds; a pipe sees no progress bar."""
    args = (str(TINY), "--set", SCHEDULES, "--jobs", "1", "--out", str(tmp_path), "--json")
    code, shown, error = command(capsys, *args)
    assert (code, error) == (0, "")
    assert shown == (tmp_path / "sweep.json").read_text(encoding="utf-8")
    assert set(json.loads(shown)) == {"schema", "scenario", "workload", "settings", "points", "refused"}
    assert sorted(path.name for path in tmp_path.iterdir()) == list(FILES)


def test_table_says_what_was_set_and_what_was_refused(capsys) -> None:
    """For people: heads, a line per point, then the refused points."""
    code, shown, error = command(capsys, str(TINY), "--set", SCHEDULES, "--set", "seed=3", "--jobs", "1")
    assert (code, error) == (0, "")
    assert "Tiny GPT on 4 processes, 3 points by step time" in shown
    for words in ("schedule", "step time", "MFU", "bubble", "exposed", "memory", "sent", "live", "zb_h1", "1 refused"):
        assert words in shown
    assert "seed" not in shown
    summary = swept(TINY, SCHEDULES).as_json()
    names = [point["set"]["parallel.pipeline.schedule"] for point in summary["points"]]
    assert [line.split()[0] for line in shown.splitlines()[1:5]] == ["schedule", *names]
    assert "1 refused, by 1 rule" in shown
    assert "1 point, parallel.pipeline.virtual_stages: interleaved_1f1b needs 2 or more" in shown
    assert "\n    interleaved_1f1b\n" in shown
    assert f"fastest: {names[0]}, " in shown


def test_other_algorithms_are_marked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Points that are no synchronous backpropagation say so in the table, below it, and on the page."""
    schedules = "parallel.pipeline.schedule=1f1b,pipedream_2bw,local"
    sweep = swept(ROOT / "scenarios" / "library" / "textbook-1f1b.yaml", schedules)
    assert {point.set["parallel.pipeline.schedule"]: point.results.algorithm for point in sweep.summary.points} == {
        "1f1b": "backpropagation",
        "pipedream_2bw": "backpropagation, gradients one step late",
        "local": "local updates, greedy",
    }
    write_sweep(sweep, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    print_sweep(sweep.summary, Console(width=200), None)
    for words in (page, capsys.readouterr().out):
        assert "staleness 1; NOT synchronous SGD" in words
        assert "NOT the gradients of backpropagation" in words
    for words in ("pipedream_2bw*", "local*", "Fastest synchronous"):
        assert words in page
    assert "1f1b*" not in page


def test_csv_has_a_row_per_point_and_per_refusal() -> None:
    """sweep.csv: keys set, results to the last digit, and why a point was refused."""
    summary = swept(TINY, SCHEDULES, "parallel.pipeline.layers_per_stage=[2,2],[1,3]").summary
    rows = list(csv.DictReader(io.StringIO(csv_text(summary))))
    keys = ["parallel.pipeline.schedule", "parallel.pipeline.layers_per_stage"]
    assert list(rows[0]) == [*keys, *RESULTS, "refused"]
    assert [float(row["iteration_time_s"]) for row in rows[:6]] == [p.results.iteration_time_s for p in summary.points]
    assert {row[keys[1]] for row in rows} == {"[2, 2]", "[1, 3]"}
    assert [row["refused"] == "" for row in rows] == [True] * 6 + [False] * 2
    assert rows[-1]["iteration_time_s"] == ""
    table = table_of(summary)
    assert table.column_names == list(rows[0])
    assert table.column("iteration_time_s").to_pylist() == [
        *(p.results.iteration_time_s for p in summary.points),
        None,
        None,
    ]
    assert [value or "" for value in table.column("refused").to_pylist()] == [row["refused"] for row in rows]
    assert table.column(keys[1]).to_pylist()[-1] == [1, 3]


def test_labels_are_short_and_differ() -> None:
    """A word stands alone, anything else with the shortest name of its key that no other has."""
    settings = (
        SweptSetting(key="parallel.tensor.degree", values=(1, 2)),
        SweptSetting(key="parallel.data.degree", values=(1, 2)),
        SweptSetting(key="training.recompute", values=("none", "full")),
        SweptSetting(key="seed", values=(0,)),
    )
    summary = SweepSummary(scenario="s", workload="training", settings=settings, points=(), refused=())
    assert list(varied(summary).values()) == ["tensor.degree", "data.degree", "recompute"]
    values = {"parallel.tensor.degree": 1, "parallel.data.degree": 2, "training.recompute": "full", "seed": 0}
    assert label(summary, values) == "tensor.degree=1 · data.degree=2 · full"
    assert label(replace(summary, settings=settings[:1]), values) == "tensor.degree=1"
    assert label(replace(summary, settings=settings[3:]), values) == "s"
    nodes = SweptSetting(key="parallel.expert.nodes", values=(1, 2))
    assert list(varied(replace(summary, settings=(nodes,))).values()) == ["expert.nodes"]


def charts(page: str) -> dict[str, dict]:
    """Return the figures of a page."""
    match = re.search(r"<script>const charts = (\{.*?\});\n", page)
    assert match
    return json.loads(match[1])


def test_page_shows_every_point(tmp_path: Path) -> None:
    """A bar per point that lasts as long as its step, a dot, a picture of its pipeline; the refused ones by rule."""
    sweep = swept(TINY, SCHEDULES, pictures=True)
    write_sweep(sweep, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'src="http' not in page
    assert "interleaved_1f1b needs 2 or more virtual stages" in page
    figures = charts(page)
    assert set(figures) == {"times", "memory", "pipelines"}
    assert {tuple(trace["y"]) for trace in figures["times"]["data"]} == {tuple(
        point.set["parallel.pipeline.schedule"] for point in sweep.summary.points
    )}  # fmt: skip
    widths = [sum(parts) for parts in zip(*(trace["x"] for trace in figures["times"]["data"]), strict=True)]
    times = [point.results.iteration_time_s for point in sweep.summary.points]
    assert [width / widths[0] for width in widths] == pytest.approx([time / times[0] for time in times], rel=1e-6)
    assert sum(len(trace["x"]) for trace in figures["memory"]["data"]) == 3
    assert len(figures["pipelines"]["layout"]["annotations"]) == 3
    ranges = {tuple(v["range"]) for k, v in figures["pipelines"]["layout"].items() if k.startswith("xaxis")}
    assert len(ranges) == 1


def test_pictures_hold_every_forward_and_backward() -> None:
    """A pipeline's picture has a bar per forward and backward, in its rank's line, and ends with the step."""
    [picture] = swept(TINY, "parallel.pipeline.schedule=zb_h1", pictures=True).pictures
    counts = [int((picture.phase == PHASES.index(phase)).sum()) for phase in (FORWARD, BACKWARD, BACKWARD_WEIGHT)]
    assert counts == [8, 8, 8]  # 2 ranks x 4 micro-batches: forwards, backwards for inputs, and for weights
    assert picture.num_lanes == 2
    assert picture.end_s.max() == pytest.approx(picture.complete_s)


def test_runs_without_pipelines_have_no_pictures(write, tmp_path: Path) -> None:
    """Where no point has a pipeline there is nothing to draw, and the page is whole all the same."""
    sweep = swept(TINY, "parallel.tensor.degree=4", "parallel.pipeline.degree=1", "seed=1,2", pictures=True)
    assert sweep.pictures == ()
    write_sweep(sweep, tmp_path)
    assert set(charts((tmp_path / "report.html").read_text(encoding="utf-8"))) == {"times", "memory"}


def test_shipped_comparison_has_room_for_every_schedule() -> None:
    """All schedules that need nothing else are in the documented command, and valid with 1 virtual stage or 2."""
    path = ROOT / "scenarios" / "library" / "compare-schedules.yaml"
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    [names] = re.findall(r"--set parallel\.pipeline\.schedule=(gpipe,[\w,]+)", page)
    job = prepare(path, read_settings([f"parallel.pipeline.schedule={names}", "parallel.pipeline.virtual_stages=1,2"]))
    assert {point.values["parallel.pipeline.schedule"] for point, _ in job.points} == set(names.split(","))
    others = {"custom", "local", "terapipe", "seq_1f1b", "pipedream_2bw"}
    assert {*names.split(","), *others} == set(get_args(Schedule))


def test_documentation_says_what_the_comparison_finds() -> None:
    """Times and memory that docs/schedules.md states of schedules are today's.

    Slices are chosen in multiples of 128 tokens: what the default of 16 finds is one of these choices.
    """
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    path = ROOT / "scenarios" / "library" / "compare-schedules.yaml"
    named = {
        "DualPipeV": ("dualpipe_v", "virtual_stages=2"),
        "1F1B": ("1f1b",),
        "Seq1F1B": ("seq_1f1b", "slice_granularity=128"),
        "2BW": ("pipedream_2bw",),
        "updates": ("local",),
    }
    for words, (schedule, *keys) in named.items():
        overrides = [f"parallel.pipeline.{key}" for key in (f"schedule={schedule}", *keys)]
        found = run_step(load_scenario(path, overrides))
        peak_bytes = max(found.memory_of(rank).peak_bytes for rank in found.programs)
        [stated] = re.findall(rf"\b{words}\s\(([\d.]+) s\D*([\d.]+) GiB", page.split("All schedules on one page")[1])
        assert stated == (f"{found.iteration_time_s:.3f}", f"{peak_bytes / 2**30:.1f}")


LARGE = ("training.recompute=none,full", "parallel.tensor.degree=4,8", "parallel.data.degree=24,48")


@pytest.fixture(scope="module")
def large() -> Sweep:
    """Return a sweep of the quickstart: one point fits, three do not, four are refused by the same rule."""
    return swept(ROOT / "scenarios" / "library" / "quickstart.yaml", *LARGE)


def shown_at(width: int, summary: SweepSummary) -> str:
    """Return what a terminal of so many columns shows of a sweep."""
    console = Terminal(width=width)
    with console.capture() as captured:
        print_sweep(summary, console, None)
    return captured.get()


def test_points_that_fit_stand_first_and_the_best_of_them_is_named(large: Sweep) -> None:
    """A faster point that needs more memory than there is comes after a slower one that fits; all surfaces agree."""
    points = large.summary.points
    assert [point.results.fits_memory for point in points] == [True, False, False, False]
    times = [point.results.iteration_time_s for point in points]
    assert times[0] > max(times[1:])
    assert times[1:] == sorted(times[1:])
    assert [float(row["iteration_time_s"] or "nan") for row in csv.DictReader(io.StringIO(csv_text(large.summary)))][
        :4
    ] == times
    shown = shown_at(200, large.summary)
    assert "4 points by step time, those that fit first" in shown
    best = f"full · tensor.degree=8 · data.degree=24, {format_time(times[0])}"
    assert f"fastest that fits: {best}\n" in shown
    page = page_text(sweep_blocks(large.summary))
    assert page.count('<b class="bad">NO</b>') == 3
    assert "Fastest that fits" in page
    assert ", does not fit" in page
    ends = [mark.get("font", {}).get("color") for mark in charts(page)["times"]["layout"]["annotations"]]
    assert ends == [None, *[TOO_LARGE[1]] * 3]


def test_a_sweep_in_which_nothing_fits_says_so(large: Sweep) -> None:
    """No point is recommended where all need more memory than there is."""
    none = replace(large.summary, points=large.summary.points[1:])
    assert "no point fits: all need more memory than there is" in shown_at(120, none)
    assert "all points need more memory than there is" in page_text(sweep_blocks(none))


def test_refusals_are_grouped_by_their_rule(large: Sweep) -> None:
    """Refusals that differ in numbers are one line with their count; the files have each of them."""
    assert len(large.summary.refused) == 4
    shown = shown_at(200, large.summary)
    assert (
        "4 refused, by 1 rule\n4 points, such as: parallel.data.degree: tensor 4 x pipeline 8 x data 24 = 768" in shown
    )
    assert shown.count("parallel.data.degree: tensor") == 1
    page = page_text(sweep_blocks(large.summary))
    assert page.count("parallel.data.degree: tensor") == 1
    assert csv_text(large.summary).count("parallel.data.degree: tensor") == 4
    many = replace(large.summary, refused=large.summary.refused * 3)
    assert "; and 4 more\n" in shown_at(200, many)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_a_sweep_is_readable_at_any_width(large: Sweep, width: int) -> None:
    """Keys stand first in every part of the table, and no value is cut."""
    _, rows = rows_of(large.summary)
    shown = shown_at(width, large.summary)
    words = " ".join(shown.split())
    for cell in {cell for row in rows for cell in row}:
        assert cell in words
    heads = [line.split() for line in shown.splitlines() if "recompute " in line and "tensor.degree " in line]
    tables = [head for head in heads if head[1] == "tensor.degree"]
    assert all(head[:3] == ["recompute", "tensor.degree", "data.degree"] for head in tables)
    assert len(tables) == {200: 1, 120: 2, 100: 2, 80: 3}.get(width, 0) or width == 60
    assert max(map(len, shown.split("fastest that fits")[0].splitlines())) <= width


def test_options_that_undo_each_other_are_refused() -> None:
    """A part of a mapping that is varied already is no second option; another part of it is."""
    varied = "training={num_microbatches: 4, optimizer: adam},{num_microbatches: 8}"
    with pytest.raises(ScenarioError, match=r"values of training state it too"):
        read_settings([varied, "training.num_microbatches=2,3"])
    assert len(read_settings([varied, "training.learning_rate=0.1,0.2"])) == 2
