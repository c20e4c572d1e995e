"""Planning of a size: the fewest replicas of a service that meet its objective, in place of a search of strategies."""

from collections.abc import Sequence
from pathlib import Path

from scenarios.errors import ScenarioError
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import workload_of
from scenarios.workloads.workload import Outcome


def sized(path: Path, overrides: Sequence[str], *, has_options: bool) -> Outcome | None:
    """Return the result with the size that a scenario seeks; None for a kind of work whose strategies are searched.

    ``has_options``: of a search of strategies. Raises ScenarioError where there are some, or the scenario states no
    objective.
    """
    document = apply_overrides(read_document(path), overrides)
    kind = workload_of(document)
    if not kind.has_size:
        return None
    if has_options:
        rule = f"options of a search of strategies say nothing about a scenario of {kind.name}"
        remedy = (
            "leave out --objective, --planner, --proofs, --num-nodes, --schedules, --sensitivity, --budget and --resume"
        )
        raise ScenarioError(document.origin(("workload",)), "workload", rule, remedy)
    return kind.sized(load_scenario(path, overrides))
