"""The pages on how meshtwin is built name the rooms that there are, and files where they lie."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.workloads.registry import KINDS

ROOMS = ("scenarios", "backends", "sim", "costmodels", "traces")
AGAIN = frozenset({"basic.py", "test_surface.py", "residents.py"})
"""Names that come back long after their path was given."""
BRACES = re.compile(r"\{([^}]*)\}")


def named(path: str) -> Iterator[str]:
    """Yield the paths of a text with alternatives in braces: ``sim/{a,b}.py``."""
    found = BRACES.search(path)
    if found is None:
        yield path
        return
    for choice in found.group(1).split(","):
        yield from named(path[: found.start()] + choice.strip() + path[found.end() :])


def misplaced(root: Path, text: str) -> Iterator[str]:
    """Yield the paths in backticks that do not exist, and file names that are not in the folder named before them."""
    folder = root
    for quoted in re.findall(r"`([\w./{},-]+)`", text):
        for path in named(quoted):
            if path.partition("/")[0] in {*ROOMS, "tests", "docs", "benchmarks"} and "/" in path:
                place = root / path
                folder = place if place.is_dir() else place.parent
                if not place.exists():
                    yield path
            elif re.fullmatch(r"[a-z_]\w+\.py", path) and not list(folder.rglob(path)):
                yield path


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_files_lie_where_the_page_says(root: Path, page: str) -> None:
    """A path in backticks exists, and a bare name of a file is one of the folder that was named last."""
    assert set(misplaced(root, (root / page).read_text(encoding="utf-8"))) <= AGAIN


def test_a_wrong_place_is_found(root: Path) -> None:
    """The test above sees a file that is not there, in braces too, and a name in the folder of another path."""
    text = "`sim/plan/words/{op,no}.py`, `op.py`; `sim/jobs/policy.py`, `simulator.py`, `op.py`"
    assert list(misplaced(root, text)) == ["sim/plan/words/no.py", "op.py"]


def test_every_room_is_on_the_design_page(root: Path) -> None:
    """Each folder of a room, of the torch backend and of the kinds of work stands in the tables of rooms."""
    tables = (root / "docs" / "design.md").read_text(encoding="utf-8").partition("## The rooms")[2].partition("## ")[0]
    words = set(re.findall(r"`([\w./]+)`", tables))
    rooms = {path.parent for room in ("scenarios", "sim", "backends") for path in (root / room).glob("*/__init__.py")}
    shown = {f"{path.relative_to(root)}/" for path in rooms if path.name != "torch"}
    inside = {path.parent.name for path in (root / "backends" / "torch").glob("*/__init__.py")}
    assert shown <= words
    assert inside | {kind.name for kind in KINDS} <= words
