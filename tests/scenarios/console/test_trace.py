"""``simulate trace``: what it prints, writes and refuses."""

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scenarios.command_line import group
from scenarios.summaries.as_json import as_json
from scenarios.summaries.comparing.comparison import SideWarning
from scenarios.summaries.recorded.recording_warning import warnings_of
from tests.traces.kineto_traces import activity, all_reduce, annotation, document, launch, memory, shared_trace, write
from traces.doubt import Doubt
from traces.parquet import write_timeline
from traces.timeline import TimelineBuilder


def run(*arguments: object) -> Result:
    """Run ``simulate trace`` in this process."""
    return CliRunner().invoke(group, ["trace", *map(str, arguments)])


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Return a folder with two ranks on two clocks, three steps each."""
    folder = tmp_path / "profile"
    folder.mkdir()
    for rank in range(2):
        clock, events = 5e6 * rank, []
        for number in range(1, 4):
            at = clock + 10_000 * number
            events += [annotation(f"ProfilerStep#{number}", at, 9_000), launch(2 * number, at + 10)]
            events += [launch(2 * number + 1, at + 20), memory(at + 30, 1 << 20)]
            events.append(activity("gemm", at + 100, 600, correlation=2 * number))
            late = 50 * rank
            events.append(all_reduce(at + 500 + late, 400 - late, elements=250_000, correlation=2 * number + 1))
        write(folder / f"rank{rank}.json.gz", document(events, rank=rank, world_size=2))
    return folder


def test_json_holds_the_figures(profile: Path) -> None:
    """Breakdown, clocks, collectives and kernels of the whole steps come as JSON, alone on standard output."""
    done = run(profile, "--json")
    assert done.exit_code == 0
    summary = json.loads(done.stdout)
    first, second = summary["ranks"]
    assert summary["recorded_steps"] == [1, 2, 3]
    assert first["compute_s"] == pytest.approx(1.2e-3)
    assert first["communication_s"] == pytest.approx(0.8e-3)
    assert first["overlap_s"] == pytest.approx(0.4e-3)
    assert first["overlap_fraction"] == pytest.approx(0.5)
    assert second["clock_offset_s"] == pytest.approx(-5.0)
    assert second["peak_allocated_bytes"] == 1 << 20
    assert summary["span_s"] == pytest.approx(10.8e-3)
    [rate] = summary["collectives"]
    assert (rate["kind"], rate["group"], rate["count"], rate["num_seen"]) == ("all_reduce", "0,1", 2, 2)
    assert rate["bus_bandwidth_bytes_per_s"] == pytest.approx(1e6 / 350e-6)
    assert summary["kernels"][0]["name"] == "gemm"
    assert any("step 3, the last" in warning["text"] for warning in summary["warnings"])


def test_a_warning_holds_its_parts_and_its_words() -> None:
    """Kind, count and example are there to be counted with, the text to be read."""
    [warning] = warnings_of([Doubt("no_steps", 1)])
    parts = {"kind": "no_steps", "count": 1, "example": "", "text": "1 rank recorded no steps: all of its work is kept"}
    assert as_json(warning) == parts
    assert list(as_json(SideWarning(side="a", warning=warning)).items()) == [("side", "a"), *parts.items()]


@pytest.mark.parametrize(("steps", "activities"), [("all", 12), ("complete", 8), ("2", 4), ("2-3", 8)])
def test_steps_choose(profile: Path, steps: str, activities: int) -> None:
    """``--steps`` takes all, the complete ones, one or a range."""
    summary = json.loads(run(profile, "--json", "--steps", steps).stdout)
    assert (summary["steps"], summary["num_activities"]) == (steps, activities)


def test_table_is_for_people(profile: Path) -> None:
    """The table names ranks, kernels and collectives; warnings go to standard error."""
    done = run(profile)
    assert done.exit_code == 0
    for words in ("2 ranks", "moved by at most 5 s", "gemm", "all_reduce 0,1", "2.857 GB/s"):
        assert words in done.stdout
    assert done.stderr.startswith("warning: step 3, the last")


def test_a_missing_rank_makes_a_bandwidth_a_bound(profile: Path) -> None:
    """Where the rank that came last has no file, the bandwidth is at least what is shown."""
    (profile / "rank1.json.gz").unlink()
    done = run(profile)
    assert "1 of 2" in done.stdout
    assert "at least" in done.stdout
    assert "1 of 2 ranks has no file here (1)" in done.stderr


def test_a_page_draws_what_was_recorded(profile: Path, tmp_path: Path) -> None:
    """The page of a recording has its parts, kernels, collectives, doubts, and one drawing with a lane per stream."""
    assert run(profile, "--out", tmp_path / "out").exit_code == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for words in ("Where the time goes", "Longest on all devices", "all_reduce 0,1", "Op by op", "step 3, the last"):
        assert words in page
    [packed] = re.findall(r'id="op-lanes-data">([^<]+)<', page)
    raw = gzip.decompress(base64.b64decode(packed))
    header = json.loads(raw[4 : 4 + int.from_bytes(raw[:4], "little")])
    assert header["sides"] == [""]
    assert [(lane["rank"], lane["end"] - lane["begin"]) for lane in header["lanes"]] == [
        ("rank 0", 2), ("rank 0", 2), ("rank 1", 2), ("rank 1", 2),
    ]  # fmt: skip


def test_a_replay_draws_both_runs(profile: Path, tmp_path: Path) -> None:
    """The page of a replay holds the recording and the changed run side by side, and what explains the difference."""
    changed = ("--set", "cluster.device.compute=2x", "--out", str(tmp_path / "out"))
    assert CliRunner().invoke(group, ["replay", str(profile), *changed]).exit_code == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for words in ("Measured", "cluster.device.compute=2x", "Both timelines, op by op", "What explains the difference"):
        assert words in page
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "report.html", "summary.json", "timeline.json.gz", "timeline.parquet",
    }  # fmt: skip


def test_written_timelines_compare(profile: Path, tmp_path: Path) -> None:
    """``--out`` writes a timeline that Perfetto opens and ``simulate compare`` reads; two runs write the same bytes."""
    for name in ("a", "b"):
        assert run(profile, "--out", tmp_path / name).exit_code == 0
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"report.html", "summary.json", "timeline.json.gz", "timeline.parquet"}
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    opened = json.loads(gzip.decompress((tmp_path / "a" / "timeline.json.gz").read_bytes()))
    assert len([event for event in opened["traceEvents"] if event["ph"] == "X"]) == 8
    paths = [str(tmp_path / name / "timeline.parquet") for name in ("a", "b")]
    compared = CliRunner().invoke(group, ["compare", *paths, "--json", "--fail-above", "0%"])
    assert compared.exit_code == 0
    assert json.loads(compared.stdout)["same_work"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.json",), "there is no such file"),
        (("{profile}", "--steps", "7"), "there is no step 7 here"),
        (("{profile}", "--steps", "some"), "is no choice of steps"),
        (("{profile}", "--steps", "3-2"), "is no choice of steps"),
        (("{broken}",), "the gzip file is not whole"),
        (("{profile}", "--out", "{broken}"), "is a file, not a directory"),
    ],
)
def test_bad_input_is_refused(profile: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    """Bad input leaves with 2, one message, no traceback, and nothing written."""
    broken = tmp_path / "broken.json.gz"
    broken.write_bytes((profile / "rank0.json.gz").read_bytes()[:200])
    out = tmp_path / "out"
    filled = [argument.format(profile=profile, broken=broken) for argument in arguments]
    done = run(*filled, *(() if "--out" in filled else ("--out", out)))
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_two_real_traces_compare(tmp_path: Path) -> None:
    """The profile of one program on two kinds of GPU compares, as it is or once it is a timeline; time alone counts."""
    traces = [str(shared_trace(f"trace_diff_{name}.json.gz")) for name in ("control", "test")]
    done = CliRunner().invoke(group, ["compare", *traces, "--json", "--fail-above", "38%", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "warning: trace_diff_control: 7 of 8 ranks have no file here" in done.stderr
    summary = json.loads(done.stdout)
    assert json.loads((tmp_path / "comparison.json").read_text()) == summary
    assert CliRunner().invoke(group, ["compare", *traces, "--fail-above", "40%"]).exit_code == 0
    assert run(traces[0], "--out", tmp_path / "control").exit_code == 0
    again = CliRunner().invoke(group, ["compare", str(tmp_path / "control"), traces[1], "--json"])
    assert json.loads(again.stdout)["aligned"] == summary["aligned"]
    assert (summary["first_ops"], summary["second_ops"]) == (7875, 12515)
    assert summary["first_s"] == pytest.approx(0.383404)
    assert summary["second_s"] == pytest.approx(0.628371)
    assert summary["kind_error"]["compute"] < 0  # the first is the faster GPU


def test_help_stays_light() -> None:
    """Asking for help reads no trace: neither its reader nor numpy is imported."""
    code = "import sys; from scenarios.cli import main\ntry:\n  main(['--help'])\nfinally:\n"
    code += "  print(sorted({'numpy', 'traces.kineto.trace'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "100"}
    )
    assert done.stdout.endswith("[]\n")
    assert "trace" in done.stdout


def test_a_simulation_compares_with_a_profile(tmp_path: Path) -> None:
    """Collectives meet by kind and size though names, streams and ranks differ; the rest is one side's alone."""
    profile = write(tmp_path / "rank0.json", document([
        launch(1, 0), activity("gemm", 10, 30, correlation=1), launch(2, 5), all_reduce(20, 40, correlation=2),
        launch(3, 7), all_reduce(70, 20, elements=1024, correlation=3),
    ], world_size=2))  # fmt: skip
    builder = TimelineBuilder()
    builder.add_rank(0, "", 2)
    for place, num_bytes in enumerate((1024, 64, 4096)):
        builder.add(
            rank=0, stream="dp", name=f"sum{place}", kind="all_reduce", start_s=1e-5 * place,
            end_s=1e-5 * (place + 1), num_bytes=num_bytes,
        )  # fmt: skip
    write_timeline(builder.build(), tmp_path / "timeline.parquet")
    done = CliRunner().invoke(group, ["compare", str(tmp_path / "timeline.parquet"), str(profile), "--json"])
    summary = json.loads(done.stdout)
    assert summary["aligned"] == {"by_name": 0, "by_kind": 2, "first_alone": 1, "second_alone": 1}
    assert summary["mismatches"] == {"missing": 1, "extra": 1, "name": 2}
    parts = {row["part"]: row["second_s"] for row in summary["step_time"]}
    assert parts["overlap"] == pytest.approx(20e-6)
    assert sum(row["second_s"] for row in summary["critical_path"]) == pytest.approx(summary["second_s"])


def test_shares_of_all_differences_add_up_to_one(tmp_path: Path) -> None:
    """The largest ops, all others and idling explain all of it; ops that are faster and slower do not cancel there."""
    paths = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    for path, lengths_s in zip(paths, ((1.0, 2.0), (2.0, 1.0)), strict=True):
        builder, end_s = TimelineBuilder(), 0.0
        builder.add_rank(0, "", 1)
        for place in range(40):
            start_s, end_s = end_s, end_s + lengths_s[place % 2]
            builder.add(rank=0, stream="compute", name=f"op{place}", kind="compute", start_s=start_s, end_s=end_s)
        write_timeline(builder.build(), path)
    compared = json.loads(CliRunner().invoke(group, ["compare", *map(str, paths), "--json"]).stdout)
    rows = [*compared["rows"], compared["others"], compared["idle"]]
    assert compared["others"]["difference_s"] == pytest.approx(0.0)
    assert compared["others"]["share_fraction"] == pytest.approx(30 / 40)
    assert sum(row["share_fraction"] for row in rows) == pytest.approx(1.0)


def test_a_recording_comes_with_the_program() -> None:
    """It is listed with its source, found by its name, and replayed as measured; a faster host would halve its time."""
    recorded = CliRunner().invoke(group, ["list", "recordings", "--json"])
    [record] = json.loads(recorded.stdout)["recordings"]
    assert record["name"] == "resnet-ddp-a100"
    assert "HolisticTraceAnalysis" in record["source"]
    summary = json.loads(run(record["name"], "--json").stdout)
    assert summary["path"] == record["name"]
    assert (summary["num_activities"], summary["world_size"], summary["recorded_steps"]) == (1258, 2, [5])
    replayed = CliRunner().invoke(group, ["replay", record["name"], "--set", "cluster.host.speed=2x", "--json"])
    answer = json.loads(replayed.stdout)
    assert answer["measured_s"] == pytest.approx(summary["span_s"])
    assert answer["span_ratio"] == pytest.approx(0.5, abs=0.01)


def test_the_recording_is_an_excerpt_of_the_whole_trace() -> None:
    """What the whole trace says of this step, the excerpt says too."""
    whole = json.loads(run(shared_trace("ddp_a100_collective_arguments.json.gz"), "--steps", "5", "--json").stdout)
    excerpt = json.loads(run("resnet-ddp-a100", "--json").stdout)
    assert excerpt["span_s"] == pytest.approx(whole["span_s"], rel=1e-12)
    for key in ("name", "count"):
        assert [kernel[key] for kernel in excerpt["kernels"]] == [kernel[key] for kernel in whole["kernels"]]
    sizes = [
        [(rate["kind"], rate["bytes"], rate["count"]) for rate in each["collectives"]] for each in (excerpt, whole)
    ]
    assert sizes[0] == sizes[1]
