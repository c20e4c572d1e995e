"""Run notebooks, and write the pictures that docs show: ``python docs/run_notebooks.py notebooks/01*.ipynb``."""

import ast
import json
import sys
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

ROOT: Final = Path(__file__).parents[1]
PICTURES: Final = {
    "01-first-steps": ("timeline", "network", "batch"),
    "02-simulated-against-executed": ("simulated", "executed"),
    "03-tensor-dimensions": ("bytes", "map"),
    "04-moe-imbalance": ("waiting", "moved", "learning"),
    "05-planning": ("front",),
    "06-cache-hit-rates": ("curves", "time"),
    "07-hierarchical-memory": ("trade",),
    "08-ones-elasticity": ("growth", "completion"),
    "09-clover": ("speedup", "table"),
    "10-capacity": ("load",),
}
"""The cells, by their ids, whose figures are kept, by the notebook."""


def run_notebook(path: Path) -> dict[str, Any]:
    """Return the value of the last line of each code cell, by the cell's id.

    Cells run from top to bottom in one namespace, without a Jupyter kernel: ``run_notebook(path)["timeline"]``. A cell
    whose last line is no expression has none. Raises what a cell raises.
    """
    namespace: dict[str, Any] = {"__name__": "notebook"}
    found = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        lines = ast.parse("".join(cell["source"])).body
        last = lines.pop() if lines and isinstance(lines[-1], ast.Expr) else None
        where = f"{path.name}, cell {cell['id']}"
        exec(compile(ast.Module(lines, []), where, "exec"), namespace)
        if isinstance(last, ast.Expr):
            found[cell["id"]] = eval(compile(ast.Expression(last.value), where, "eval"), namespace)
    return found


def picture_path(notebook: str, cell: str) -> Path:
    """Return where the picture of a cell is kept."""
    return ROOT / "docs" / "notebooks" / f"{notebook}-{cell}.png"


if __name__ == "__main__":
    mpl.use("agg")
    for each in map(Path, sys.argv[1:]):
        values = run_notebook(each)
        for name in PICTURES[each.stem]:
            values[name].savefig(picture_path(each.stem, name), dpi=120, metadata={"Software": None})
