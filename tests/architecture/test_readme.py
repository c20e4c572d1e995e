"""The README and the pages of docs show what is: its scenario, its output, its commands and its links."""

import re
import runpy
from pathlib import Path

import pytest

from docs.run_blocks import printed_by
from scenarios.command_line import COMMANDS
from scenarios.library.shipped import scenario_names
from scenarios.workloads.steps.advising import trials

ROOT = Path(__file__).parents[2]
VERDICT = re.compile(r"^(\| `(\w+)` \| \d+ \|.*\| (?:passed|FAILED) \|)$", re.M)
PAGES = sorted(path.relative_to(ROOT).as_posix() for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md"))


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    """Return the text of the README."""
    return (root / "README.md").read_text(encoding="utf-8")


def test_first_scenario_is_shown_as_it_is(root: Path, readme: str) -> None:
    """The scenario that the README explains is scenarios/library/quickstart.yaml, word for word."""
    lines = (root / "scenarios" / "library" / "quickstart.yaml").read_text(encoding="utf-8").splitlines()
    assert "\n".join(f"    {line}" for line in lines) in readme


def test_other_commands_run(readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ``simulate`` of the README runs; what the first one prints, advice with it, has a test of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trials, "QUICK_S", 0.5)
    monkeypatch.setattr("scenarios.commands.sweep.available_cores", lambda: 1)  # no processes to start
    first, *others = re.findall(r"^    (simulate .+)$", readme, re.M)
    assert first == "simulate scenarios/library/quickstart.yaml"
    assert [line.split()[1] for line in others] == ["quickstart", "sweep", "new"]
    for line in others:
        assert printed_by(line), line
    assert {path.name for path in (tmp_path / "out" / "tp4").iterdir()} >= {"report.html", "summary.json"}
    assert (tmp_path / "my.yaml").is_file()


def test_targets_of_make_exist(root: Path, readme: str) -> None:
    """Every ``make`` of the README is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(encoding="utf-8"), re.M))
    asked = re.findall(r"^    make (\w+)", readme, re.M)
    assert asked
    assert set(asked) <= targets


def test_first_output_is_todays(root: Path, readme: str) -> None:
    """What the README says that the first scenario prints is what it prints; ``make docs`` brings it up to date."""
    refresh = runpy.run_path(str(root / "docs" / "refresh.py"))
    assert refresh["replaced"](readme, "quickstart", refresh["quickstart_block"]()) == readme


def test_accuracy_covers_every_published_table(root: Path, readme: str) -> None:
    """Each table of traces/published has its verdict in docs/accuracy.md, and those of whole steps in the README."""
    tables = {path.stem for path in (root / "traces" / "published").glob("*.yaml")}
    page = (root / "docs" / "accuracy.md").read_text(encoding="utf-8")
    everywhere, shown = ({name: row for row, name in VERDICT.findall(text)} for text in (page, readme))
    assert everywhere.keys() == tables
    assert shown == {name: row for name, row in everywhere.items() if not name.startswith(("nccl_", "torch_"))}


def test_commands_exist(manual: str) -> None:
    """Every command line in README and docs names a command, a scenario file or a packaged scenario."""
    words = re.findall(r"^\s+simulate (\S+)|`simulate (\S+?)[\s`]", manual, re.M)
    unknown = {a or b for a, b in words} - set(COMMANDS) - {"--help"} - set(scenario_names())
    assert [word for word in sorted(unknown) if not word.endswith(".yaml")] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_and_paths_lead_somewhere(root: Path, name: str) -> None:
    """Every relative link, with its heading, and every file of the repository that is named in backticks, exists."""
    page = root / name
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text)
    targets = [(page.parent / path if path else page, heading) for path, heading in links]
    assert [target for target in targets if not leads_somewhere(*target)] == []
    rooms = "scenarios|backends|sim|costmodels|traces|tests|docs|benchmarks"
    paths = re.findall(rf"`((?:{rooms})/[\w./-]*)`", text)
    assert [path for path in paths if not (root / path).exists()] == []


def leads_somewhere(target: Path, heading: str) -> bool:
    """Return whether a file is there, and has that heading, as web pages name it."""
    if not target.exists():
        return False
    titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M) if heading else []
    return not heading or heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_readme_leads_to_every_page(root: Path, readme: str) -> None:
    """Every page of docs is linked from the README."""
    pages = [path.relative_to(root).as_posix() for path in (root / "docs").glob("*.md")]
    assert [page for page in pages if f"({page})" not in readme] == []
