"""Planning of a size: the fewest replicas of a service that meet its objective, in place of a search of strategies."""

from collections.abc import Sequence
from pathlib import Path

from scenarios.errors import ScenarioError
from scenarios.planning.request import Request
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import workload_of
from scenarios.workloads.workload import Outcome


def sized(path: Path, overrides: Sequence[str], request: Request) -> Outcome | None:
    """Return the result with the size that a scenario seeks; None for a kind of work whose strategies are searched.

    Raises ScenarioError where the scenario states no objective, or where options of a search are given.
    """
    document = apply_overrides(read_document(path), overrides)
    kind = workload_of(document)
    if not kind.has_size:
        return None
    if request != Request():
        rule = f"options of a search of strategies say nothing about a scenario of {kind.name}"
        remedy = "leave out --objective, --planner, --proofs, --num-nodes and --sensitivity"
        raise ScenarioError(document.origin(("workload",)), "workload", rule, remedy)
    return kind.sized(load_scenario(path, overrides))
