"""docs/python.md: its example prints what the page says, and its tables name all of the Python API."""

import inspect
import re
import runpy
from pathlib import Path

import pytest

from scenarios import api

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
RESULTS = (api.Simulated, api.Swept, api.Planned, api.Ran, api.Difference, api.Validation)


@pytest.fixture(scope="module")
def page() -> str:
    """Return the text of the page."""
    return PAGE.read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """Return what stands below a heading."""
    parts = re.split(r"^## (.+)$", page, flags=re.M)
    return parts[parts.index(heading) + 1]


def test_the_example_prints_what_the_page_says(page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run as a script, it prints the text below it, to the letter."""
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", page, flags=re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script))
    assert capsys.readouterr().out == printed


def test_the_table_of_functions_is_whole(page: str) -> None:
    """Each public function has one row, and each row is a function."""
    functions = {name for name in api.__all__ if inspect.isfunction(getattr(api, name))}
    rows = re.findall(r"^\| `(\w+)\(", section(page, "Functions"), re.M)
    assert sorted(rows) == sorted(functions)


def test_the_table_of_results_is_whole(page: str) -> None:
    """Below each class stand all of its public fields, properties and methods, and nothing else."""
    found: dict[str, set[str]] = {}
    for owner, attributes in re.findall(r"^\| (?:`(\w+)`)? ?\| (.*?) \|", section(page, "Results"), re.M):
        if owner:
            names = found.setdefault(owner, set())
        names |= set(re.findall(r"`(\w+)", attributes))
    public = {
        cls.__name__: {name for name in (*vars(cls), *cls.__annotations__) if not name.startswith("_")}
        for cls in RESULTS
    }
    assert found == public
