"""Files that belong elsewhere are refused by what they are, with what belongs there, and nothing is written."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scenarios.cli import group
from tests.traces.kineto_traces import activity, document, launch, write
from traces.parquet import write_timeline
from traces.perfetto import write_perfetto
from traces.timeline import TimelineBuilder


def run(*args: object) -> Result:
    """Run ``simulate``."""
    return CliRunner().invoke(group, [str(arg) for arg in args])


def files_in(folder: Path) -> dict[Path, bytes]:
    """Return all files below a folder, with what they hold."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory: a result, a profile of rank 0 without communication, and what is neither."""
    monkeypatch.chdir(tmp_path)
    for folder in ("result", "profile", "outer/inner", "empty.csv"):
        Path(folder).mkdir(parents=True)
    builder = TimelineBuilder()
    builder.add(rank=0, stream="compute", name="a", kind="compute", start_s=0.0, end_s=1.0)
    write_timeline(builder.build(), Path("result/timeline.parquet"))
    write_perfetto(builder.build(), Path("result/timeline.json.gz"))
    Path("result/report.html").write_text("<p>the result's own page</p>")
    trace = document([launch(1, 0), activity("gemm", 10, 30, correlation=1)])
    write(Path("profile/rank0.json"), trace)
    write(Path("outer/inner/rank0.json"), trace)
    Path("scenario.yaml").write_text("name: a\ncluster: {node: dgx-a100-80g}\n")
    Path("empty.parquet").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("compare result missing", "missing: there is no such file or folder"),
        ("compare result scenario.yaml", "scenario.yaml: this is neither a timeline nor a trace"),
        ("compare result/report.html result", "result/report.html: this is neither a timeline nor a trace"),
        ("compare result empty.csv", "empty.csv: this folder holds neither a timeline.parquet nor traces"),
        ("compare result outer", "there is one in outer/inner: name that"),
        ("compare result result/timeline.json.gz", "this is a timeline that simulate wrote"),
        ("compare result profile --out result", "--out result: a result lies there, and its report.html"),
        ("compare result result --steps 3", "--steps: neither side is a profile"),
        ("compare result result --fail-above 10", "'10' is not a percentage; write it as in 10%"),
        ("trace result", "result: this is what simulate wrote with --out"),
        ("trace result/timeline.json.gz", "simulate compare takes the timeline.parquet beside it"),
        ("trace outer", "there are some in outer/inner: name that"),
        ("trace scenario.yaml", "or a folder or tar archive of nothing but these"),
        ("replay result", "result: this is what simulate wrote with --out"),
        ("replay profile --set parallel.tensor.degree=2", "a measured run has nothing of this name to change"),
        ("replay profile --set ranks[7].host.speed=2x", "there is no rank 7 here;\n    there is rank 0 alone"),
        ("replay profile --set cluster.network.bandwidth=2x", "this run has no communication that it could change"),
        (
            "replay profile --set cluster.device.copies=2x",
            "this run has no copies and fills of memory that it could change",
        ),
    ],
)
def test_what_belongs_elsewhere_is_refused(here: Path, args: str, words: str) -> None:
    """One message says what the file is and what belongs there; exit code 2; every file is as it was."""
    before = files_in(here)
    done = run(*args.split(" "))
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert files_in(here) == before


@pytest.mark.parametrize("command", ["trace", "replay"])
def test_an_empty_name_is_no_folder(here: Path, command: str) -> None:
    """An unset variable of a shell does not make the working directory the place of results."""
    before = files_in(here)
    done = run(command, "profile", "--out", "")
    assert done.exit_code == 2
    assert "the name is empty" in done.stderr
    assert files_in(here) == before


def test_sides_are_called_by_their_names(here: Path) -> None:
    """The answer says which time is whose, and the place of the page."""
    done = run("compare", "result", "profile", "--out", here / "both")
    assert done.exit_code == 0, done.stderr
    for words in ("1 s (result) against 30 us (profile)", "first less second", f"written to {here / 'both'}"):
        assert words in " ".join(done.stdout.split())
