"""Which links decide between two simulated steps."""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scenarios.cli import main
from scenarios.comparing.explanation import explain
from scenarios.results.summary_file import simulated_step
from scenarios.summaries.comparing.compared_step import ComparedStep
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

SCENARIO = Path(__file__).parents[3] / "scenarios" / "library" / "llama-2-13b-stragglers-64-h100.yaml"
SMALL = ["cluster.stragglers=[]", "model.num_layers=4", "training.global_batch_size=16"]
OVER = "cluster.topology.fabric.oversubscription"


def summary_of(*settings: str) -> ComparedStep:
    """Return what a comparison reads of the small run with other settings."""
    return simulated_step(Path("summary.json"), simulate(load_scenario(SCENARIO, [*SMALL, *settings])).as_json())


@pytest.fixture(scope="module")
def summaries() -> tuple[ComparedStep, ComparedStep]:
    """Return a step on full rails, and one with a quarter of the bandwidth above the leaves."""
    return summary_of(f"{OVER}=1"), summary_of(f"{OVER}=4")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the written results of the same two steps."""
    found = []
    for name, over in (("full", 1), ("quarter", 4)):
        folder = tmp_path_factory.mktemp("results") / name
        simulate(load_scenario(SCENARIO, [*SMALL, f"{OVER}={over}"])).write(folder)
        found.append(folder)
    return found[0], found[1]


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of the command line."""
    with pytest.raises(SystemExit) as caught:
        main(list(args))
    shown = capsys.readouterr()
    return int(caught.value.code or 0), shown.out, shown.err


def test_causes_add_up_to_the_difference_of_the_steps(summaries: Any) -> None:
    """Computing and all waiting of the mean rank make the step, so their differences make its difference."""
    first, second = summaries
    found = explain(first, second, ("full", "quarter"))
    whole_s = first.iteration_time_s - second.iteration_time_s
    assert whole_s < 0
    assert sum(row.difference_s for row in found.causes) == pytest.approx(whole_s)


def test_oversubscribed_uplinks_decide(summaries: Any) -> None:
    """Less bandwidth above the leaves slows gradient synchronisation, which the uplinks then hold back."""
    first, second = summaries
    found = explain(first, second, ("full", "quarter"))
    verdict = found.verdict
    assert verdict.startswith("quarter takes ")
    for words in ("times as long as full", "data-parallel communication", "reduce_scatter",
                  "leaf-spine links hold it back", "100 % full meanwhile"):  # fmt: skip
        assert words in verdict
    op = found.communication[0]
    assert (op.stream, op.kind) == ("dp", "reduce_scatter")
    assert max(op.first_bound_s, key=op.first_bound_s.get) == "nic"
    assert max(op.second_bound_s, key=op.second_bound_s.get) == "leaf-spine"
    grown = min(found.links, key=lambda row: row.difference_busy_fraction)
    assert grown.kind == "leaf-spine"


def test_order_changes_only_signs(summaries: Any) -> None:
    """Whichever comes first, the same step is the slower one, for the same reason."""
    first, second = summaries
    forth, back = explain(first, second, ("a", "b")), explain(second, first, ("b", "a"))
    assert forth.verdict == back.verdict
    assert [-row.difference_s for row in forth.causes] == [row.difference_s for row in back.causes]


def test_latency_is_named_where_it_grows(summaries: Any) -> None:
    """A network that is far away, and as wide, costs latency, and no link is blamed for it."""
    far = summary_of(f"{OVER}=1", "cluster.topology.fabric.uplink.latency=2 ms")
    found = explain(summaries[0], far, ("near", "far"))
    assert found.verdict.startswith("far ")
    assert "most of it latency" in found.verdict
    assert "hold it back" not in found.verdict


@pytest.mark.parametrize(
    ("times", "words"), [(1.5, "b is 50.0 % slower than a"), (2.0, "b takes 2 times as long as a")]
)
def test_twice_as_long_is_said_as_a_factor(summaries: Any, times: float, words: str) -> None:
    """Per cents say little of steps that take a hundred times as long."""
    first = summaries[0]
    second = replace(first, iteration_time_s=times * first.iteration_time_s)
    assert explain(first, second, ("a", "b")).verdict.startswith(words)


def test_equal_steps_are_called_equal(summaries: Any) -> None:
    """Two runs of one scenario differ in nothing."""
    found = explain(summaries[0], summaries[0], ("a", "b"))
    assert "take equally long" in found.verdict
    assert all(row.difference_s == 0 for row in (*found.causes, *found.communication))


def test_compare_takes_folders_and_writes_a_page(capsys: Any, folders: Any, tmp_path: Path) -> None:
    """The verdict stands on the console, in JSON and on the page, under the folders' names."""
    out = tmp_path / "comparison"
    code, shown, _ = run(capsys, "compare", *map(str, folders), "--out", str(out))
    assert code == 0
    written = json.loads((out / "comparison.json").read_text())
    verdict = written["explanation"]["verdict"]
    assert verdict.startswith("quarter takes ")
    assert verdict in shown
    assert verdict in unescape((out / "report.html").read_text(encoding="utf-8"))
    files = [str(folder / "timeline.parquet") for folder in folders]
    assert json.loads(run(capsys, "compare", *files, "--json")[1]) == written


def test_timelines_without_summaries_are_compared_all_the_same(capsys: Any, folders: Any, tmp_path: Path) -> None:
    """Without a summary beside it, a timeline is compared op by op, and nothing is said of links."""
    alone = tmp_path / "timeline.parquet"
    alone.write_bytes((folders[0] / "timeline.parquet").read_bytes())
    code, shown, _ = run(capsys, "compare", str(alone), str(folders[1]), "--json")
    assert code == 0
    assert json.loads(shown)["explanation"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "the summary cannot be read"),
        ('{"schema": "meshtwin.summary/1", "communication": [], "iteration_time_s": 1.0}', "it says 1.0 s"),
        (
            '{"schema": "meshtwin.summary/1", "communication": [], "iteration_time_s": STEP}',
            "not as simulate writes it: object missing required field `roles`",
        ),
    ],
)
def test_damaged_summaries_are_refused(capsys: Any, folders: Any, tmp_path: Path, text: str, words: str) -> None:
    """A summary that is cut off, or another run's, is one error, and nothing is written."""
    step = json.loads((folders[0] / "summary.json").read_text())["iteration_time_s"]
    (tmp_path / "timeline.parquet").write_bytes((folders[0] / "timeline.parquet").read_bytes())
    (tmp_path / "summary.json").write_text(text.replace("STEP", repr(step)))
    code, shown, error = run(capsys, "compare", str(tmp_path), str(folders[1]), "--out", str(tmp_path / "out"))
    assert (code, shown) == (2, "")
    assert words in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (
            ("communication", 0, "fullest_fraction"),
            [1.0],
            "got `array` - at `$.communication[0].ful",
        ),
        (
            ("communication", 0, "fullest_fraction", "nic"),
            "full",
            "got `str` - at `$.communication[0].fullest",
        ),
        (("communication", 0, "fullest_fraction", "nic"), None, "got `null` - at `$.communication[0].fullest"),
        (("communication", 0, "fullest_fraction"), {}, "fullest_fraction of reduce_scatter on dp lacks"),
        (("communication", 0, "bound_s", "nic"), float("nan"), "`float` >= 0.0 - at `$.communication[0].bound_s"),
        (("communication", 0, "stream"), {}, "expected `str`, got `object` - at `$.communication[0].stream"),
        (("communication",), {}, "expected `array`, got `object` - at `$.communication"),
        (("links", 0, "busiest"), 1, "expected `object`, got `int` - at `$.links[0].busiest"),
        (("roles",), [], "length >= 1 - at `$.roles"),
        (("roles", 0, "num_ranks"), 0, "`int` >= 1 - at `$.roles[0].num_ranks"),
        (("roles", 0, "exposed_s"), {"dp": -1.0}, "`float` >= 0.0 - at `$.roles[0].exposed_s"),
        (("iteration_time_s",), 10**400, "it says"),
    ],
)
def test_malformed_parts_of_summaries_are_refused(
    capsys: Any, folders: Any, tmp_path: Path, place: tuple[Any, ...], value: object, words: str
) -> None:
    """Each part of a summary that a comparison reads is held to its form, and the message names the part."""
    summary = json.loads((folders[0] / "summary.json").read_text())
    part = summary
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    (tmp_path / "timeline.parquet").write_bytes((folders[0] / "timeline.parquet").read_bytes())
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    code, shown, error = run(capsys, "compare", str(tmp_path), str(folders[1]))
    assert (code, shown) == (2, "")
    assert f"{tmp_path / 'summary.json'}: " in error
    assert words in error
