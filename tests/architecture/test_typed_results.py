"""Results are frozen dataclasses: whoever reads one names fields, not keys of JSON."""

import ast
from collections.abc import Iterable, Iterator

import pytest

SCENARIOS = "scenarios/"
ROOMS = (
    *("calibration", "commands", "comparing", "console", "here", "recorded", "report", "results", "summaries", "sweep"),
    *("validation", "workloads"),
)

FIGURES = "figures of plotly"
FILE = "keys of a scenario's file"
PROFILE = "sections of a profile's file"
TABLE = "keys or columns of a measured table"
NO_RESULTS = {
    "calibration/calibration.py": PROFILE,
    "calibration/parameters.py": PROFILE,
    "fitting/spread_fit.py": TABLE,
    "calibration/tables.py": TABLE,
    "commands/listing.py": "keys of a scenario's file, and headings of a table's columns",
    "commands/measured/spread.py": PROFILE,
    "console/blocks.py": "styles of pieces",
    "here/plan_set.py": FILE,
    "report/rendering/matplotlib_chart.py": FIGURES,
    "report/rendering/plotly_figure.py": FIGURES,
    "report/pages/thumbnails_chart.py": FIGURES,
    "report/charts/op_lanes.py": "columns of a drawing",
    "results/result.py": "JSON that is not checked yet",
    "summaries/as_json.py": "metadata of fields",
    "validation/collective_row.py": TABLE,
    "workloads/registry.py": FILE,
    "workloads/steps/advising/advise.py": "seconds by purpose",
    "workloads/steps/reading.py": FILE,
    "workloads/steps/transformer.py": FILE,
    "workloads/training/changes/causes.py": FILE,
    "workloads/training/changes/degrees.py": FILE,
    "workloads/training/reading.py": FILE,
}
"""Files that read other mappings by name, each with what these are."""


def constant_keys(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and key of each subscript that is a string constant, and of each ``get`` of one."""
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name(id="Literal")):
                pass
            case ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Load()):
                yield node.lineno, key
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
                yield node.lineno, key


@pytest.mark.parametrize("room", ROOMS)
def test_results_are_read_by_field(modules, room: str) -> None:
    """No file of a room that reads results subscripts one with a string constant."""
    found = [
        f"{module.name}:{line}: {key}"
        for module in modules
        if module.name.startswith(f"{SCENARIOS}{room}/") and module.name.removeprefix(SCENARIOS) not in NO_RESULTS
        for line, key in constant_keys(module.nodes)
    ]
    assert found == []


def test_every_exception_is_needed(modules) -> None:
    """The list of exceptions names files that are there, and that need to be on it."""
    needed = {module.name.removeprefix(SCENARIOS) for module in modules if any(constant_keys(module.nodes))}
    assert NO_RESULTS.keys() - needed == set()
