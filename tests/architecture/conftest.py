"""What the architecture tests look at: the files that git tracks, and the Python among them."""

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("scenarios", "backends", "sim", "costmodels", "traces")


@dataclass(frozen=True)
class Module:
    """One Python file; ``name`` is its path from the root of the repository, ``nodes`` all nodes of its tree."""

    name: str
    nodes: tuple[ast.AST, ...]
    num_lines: int

    @property
    def in_room(self) -> bool:
        """Return whether it is shipped, not a test or benchmark."""
        return self.name.split("/")[0] in ROOMS

    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Return all functions and methods, inner ones too."""
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.fixture(scope="package")
def root() -> Path:
    """Return the root of the repository."""
    return ROOT


@pytest.fixture(scope="package")
def tracked() -> list[Path]:
    """Return the files that git tracks or would track. Skips outside a checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    return sorted(ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file())


@pytest.fixture(scope="package")
def modules(tracked: list[Path]) -> list[Module]:
    """Return all Python files, parsed."""
    found = []
    for path in tracked:
        if path.suffix == ".py":
            text = path.read_text(encoding="utf-8")
            found.append(Module(path.relative_to(ROOT).as_posix(), tuple(ast.walk(ast.parse(text))), text.count("\n")))
    return found


@pytest.fixture(scope="package")
def manual(root: Path) -> str:
    """Return the text of the README and of all pages of docs."""
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)
