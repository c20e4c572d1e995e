"""Files that belong elsewhere are refused by what they are, with what belongs there, and nothing is written."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scenarios.command_line import group
from tests.scenarios.calibration.measured_tables import table_of_steps, two_systems
from tests.traces.kineto_traces import activity, document, launch, write
from traces.parquet import write_timeline
from traces.perfetto import write_perfetto
from traces.timeline import TimelineBuilder

PROFILES = Path(__file__).parents[3] / "costmodels" / "profiles"


def run(*args: object) -> Result:
    """Run ``simulate``."""
    return CliRunner().invoke(group, [str(arg) for arg in args])


def files_in(folder: Path) -> dict[Path, bytes]:
    """Return all files below a folder, with what they hold."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuse(here: Path, args: str, words: str) -> None:
    """Check that a command is refused with these words, without a traceback, and leaves every file as it was."""
    before = files_in(here)
    done = run(*args.split(" "))
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert files_in(here) == before


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
    for name in ("empty.parquet", "nothing.csv", "nothing.yaml"):
        Path(name).touch()
    Path("products.csv").write_text("m,n,k,time_s\n" + "".join(f"64,64,{k},1e-5\n" for k in range(64, 90)))
    Path("lacking.csv").write_text("m,n,time_s\n64,64,1e-5\n")
    Path("semicolons.csv").write_text("m;n;k;time_s\n1;1;1;1\n")
    Path("chakra").mkdir()
    Path("chakra/run.0.et").touch()
    Path("shortcut-of-yesterday.yaml").symlink_to("nowhere")
    Path("strange.csv").write_text("a,b\n1,2\n")
    Path("stated.csv").write_text(
        "system,collective,n_gpus,n_nodes,bytes,kind,time_s\none,all_reduce,8,1,64,stated,1\n"
    )
    two_systems(tmp_path)
    table_of_steps(tmp_path, "1,1,1,fitted,1\n2,1,2,fitted,1\n")
    Path("a100.yaml").write_bytes((PROFILES / "a100.yaml").read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("compare result missing", "missing: there is no such file or folder"),
        ("compare result scenario.yaml", "scenario.yaml: this is neither a timeline nor a trace"),
        ("compare result/report.html result", "result/report.html: this is neither a timeline nor a trace"),
        ("compare result empty.csv", "empty.csv: this folder holds neither a timeline.parquet nor traces"),
        ("compare result outer", "there is one in outer/inner: name that"),
        ("compare result result/timeline.json.gz", "this is a timeline of simulate"),
        ("compare result profile --out result", "--out result: this folder holds a result, and the comparison"),
        ("compare result result --steps 3", "--steps: neither side is a profile"),
        ("compare result result --fail-above 10", "'10' is not a percentage; write it as in 10%"),
        ("trace result", "result: this is what simulate wrote with --out"),
        ("trace result/timeline.json.gz", "simulate compare takes the timeline.parquet beside it"),
        ("trace outer", "there are some in outer/inner: name that"),
        ("trace chakra", "these are Chakra execution traces;\n    simulate replay takes them"),
        ("trace scenario.yaml", "or a folder or tar archive of nothing but these"),
        ("replay result", "result: this is what simulate wrote with --out"),
        ("replay profile --set parallel.tensor.degree=2", "a measured run has no part of this name"),
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
    refuse(here, args, words)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("  memory_fraction:", "  memory_fracton:", "gemm.memory_fraction: profile mine gemm has no 'memory_fraction'"),
        (
            "  peak_fraction: 1.0",
            "  peak_fraction: fast",
            "gemm.peak_fraction: profile mine gemm 'peak_fraction' must be",
        ),
        (
            "node: dgx-a100-80g",
            "node: dgx-a100-8g",
            "node: there is no node 'dgx-a100-8g' in the catalogue;\n    did you",
        ),
        ("gemm:", "gem:", "gem: a profile has no section 'gem';\n    it has attention"),
        ("schema: meshtwin.profile/1", "schema: 2", "schema: 'schema' is 2, where a profile has 'meshtwin.profile/1'"),
    ],
)
def test_what_is_wrong_in_a_profile_is_told_by_line_and_key(here: Path, old: str, new: str, words: str) -> None:
    """The refusal of a changed profile names the line of the changed key, or of the section that lacks one."""
    lines = Path("a100.yaml").read_text().splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith(old))
    lines[place] = new + lines[place].removeprefix(old)
    Path("mine.yaml").write_text("\n".join(lines))
    done = run("spread", "mine.yaml", "products.csv", "--out", "new.yaml")
    assert done.exit_code == 2
    section = next(at for at in range(place, -1, -1) if not lines[at].startswith(" "))
    told = section if "has no 'memory_fraction'" in words else place
    assert f"error: mine.yaml:{told + 1}: {words}" in done.stderr
    assert not (here / "new.yaml").exists()


ON_A100 = "--node dgx-a100-80g"
CLOCK = "--constant profile.sustained.clock_fraction --jobs 1"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (f"residuals result {ON_A100}", "result: this is a directory, not a file;\n    name a file in it, for example"),
        (f"residuals empty.csv {ON_A100}", "empty.csv: this is a directory, not a file;\n    name a .parquet or .csv"),
        (f"residuals empty.parquet {ON_A100}", "empty.parquet: the file is empty"),
        (f"residuals lacking.csv {ON_A100}", "lacking.csv:1: k: a table of matrix products needs 1 more column"),
        (
            f"residuals strange.csv {ON_A100}",
            "strange.csv:1: the columns are a, b;\n    a table has, of matrix products",
        ),
        (f"residuals stated.csv {ON_A100}", "stated.csv: kind: no row is of the kind 'measured'"),
        (f"residuals semicolons.csv {ON_A100}", "there is one column, 'm;n;k;time_s';\n    write cells with commas"),
        (f"residuals products.csv {ON_A100} --system one", "--system one: no table of collectives is named"),
        (
            f"residuals collectives.csv {ON_A100}",
            "the table has several systems;\n    name one with --system; known: one",
        ),
        (
            f"residuals collectives.csv {ON_A100} --system oth",
            "a system 'oth';\n    name one with --system; did you mean other?",
        ),
        (
            f"residuals products.csv {ON_A100} --profile scenario.yaml",
            "scenario.yaml: this is a scenario, not a profile",
        ),
        (f"residuals products.csv {ON_A100} --profile steps.yaml", "this is a table of measurements, not a profile"),
        (f"residuals products.csv {ON_A100} --profile nothing.yaml", "simulate calibrate --out my-profile.yaml"),
        (f"residuals products.csv {ON_A100} --profile profile", "name a file, or write one with: simulate calibrate"),
        ("spread a100.yaml steps.csv --out new.yaml", "steps.csv:1: "),
        ("spread products.csv a100.yaml --out new.yaml", "products.csv: the profile comes first"),
        ("spread a100.yaml a100.yaml --out new.yaml", "a100.yaml: this is no table of measurements"),
        ("spread a100.yaml steps.yaml steps.yaml --out new.yaml", "steps.yaml: this table is named twice"),
        ("spread a100.yaml products.csv --constants 1 --out new.yaml", "--constants: it belongs to tables of steps"),
        ("spread a100.yaml products.csv --all-groups --out new.yaml", "--all-groups: it belongs to tables of steps"),
        ("spread a100.yaml products.csv --recorded-on dgx-2 --out new.yaml", "it names the node of a trace"),
        ("spread a100.yaml products.csv --system one --out new.yaml", "--system one: no table of collectives"),
        ("spread a100.yaml products.csv --out profile", "--out profile: a profile is a YAML file"),
        (
            "spread a100.yaml --trace h100.json --out new.yaml",
            "recorded on NVIDIA H100 80GB HBM3, and the profile is one of a100",
        ),
        (f"fit products.csv {CLOCK}", "products.csv: this file has data without their meaning"),
        (f"fit scenario.yaml {CLOCK}", "scenario.yaml: this is no table of measurements"),
        (f"fit profile {CLOCK}", "profile: this is a directory, not a file;\n    name a file in it"),
        (
            f"fit shortcut-of-yesterday.yaml {CLOCK}",
            "shortcut-of-yesterday.yaml: there is no such file;\n    check the path",
        ),
        (f"fit step.yaml {CLOCK}", "step.yaml: there is no such file;\n    did you mean steps.yaml?"),
        (f"fit steps.yaml steps.yaml {CLOCK}", "steps.yaml: this table is named twice"),
        (f"fit steps.yaml {CLOCK} --every 2", "1 row to fit to cannot settle 1 constant;"),
        (
            "fit steps.yaml --jobs 1 --constant software.lunch",
            "did you mean software.launch? known: software.(launch, ",
        ),
        ("fit steps.yaml --jobs 1 --constant nothing", "profile.decode.("),
        (
            "fit steps.yaml --jobs 1 --constant software.rank_skew",
            "write rank_skew, with a first guess, into the section",
        ),
    ],
)
def test_tables_and_profiles_are_told_apart(here: Path, args: str, words: str) -> None:
    """Each mistake has one message with file or option, rule and remedy; exit code 2; no file is new or another."""
    events = [launch(1, 0), activity("gemm", 10, 30, correlation=1)]
    write(Path("h100.json"), {**document(events), "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]})
    refuse(here, args, words)


def test_measurements_that_are_nothing_like_the_profile_make_one_wonder(here: Path) -> None:
    """Products a hundred times as long as predicted are taken, with a warning; the answer explains its columns."""
    Path("slow.csv").write_text("m,n,k,time_s\n" + "".join(f"512,512,{k},{1e-3 * k}\n" for k in range(64, 900, 9)))
    done = run("spread", "a100.yaml", "slow.csv", "--out", "new.yaml")
    assert done.exit_code == 0, done.stderr
    assert (
        "warning: gemm has much larger errors than the profile states: were these measured on dgx-a100-80g?"
        in done.stderr
    )
    for words in ("deviation", "before", "in common", "of log(measured/predicted)", "written to new.yaml"):
        assert words in done.stdout
    assert run("spread", "new.yaml", "slow.csv", "--out", "again.yaml").stderr == ""
    assert (here / "again.yaml").exists()


@pytest.mark.parametrize(
    "args",
    [["trace", "profile"], ["replay", "profile"], ["spread", "a100.yaml", "products.csv"], ["calibrate"]],
    ids=lambda args: args[0],
)
def test_an_empty_name_is_no_place(here: Path, args: list[str]) -> None:
    """An unset variable of a shell does not make the working directory the place of results."""
    before = files_in(here)
    done = run(*args, "--out", "")
    assert done.exit_code == 2
    assert "the name is empty" in done.stderr
    assert files_in(here) == before


@pytest.mark.parametrize(
    "args",
    [
        ["trace", ""], ["replay", ""], ["compare", "", "result"], ["fit", "", *CLOCK.split(" ")],
        ["spread", "", "products.csv", "--out", "new.yaml"], ["spread", "a100.yaml", "", "--out", "new.yaml"],
        ["residuals", "", *ON_A100.split(" ")], ["validate", ""],
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_name_is_not_the_working_directory(here: Path, args: list[str]) -> None:
    """Nor is it what is read: whatever lies in the working directory, the empty name is refused."""
    Path("timeline.parquet").write_bytes(Path("result/timeline.parquet").read_bytes())
    before = files_in(here)
    done = run(*args)
    assert done.exit_code == 2
    assert "the name is empty; name a file or a folder" in done.stderr
    assert files_in(here) == before


def test_sides_are_called_by_their_names(here: Path) -> None:
    """The answer says which time is whose, and the place of the page."""
    done = run("compare", "result", "profile", "--out", here / "both")
    assert done.exit_code == 0, done.stderr
    for words in ("1 s (result) against 30 us (profile)", "first less second", f"written to {here / 'both'}"):
        assert words in " ".join(done.stdout.split())
