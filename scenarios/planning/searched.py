"""One variant, searched: its strategies with their estimates, and what came of those that the engine tried."""

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from msgspec import Struct

from scenarios.errors import Origin, ScenarioError
from scenarios.planning.layerwise import layerwise_of
from scenarios.planning.misfit import refuse_misfit, refuse_planner
from scenarios.planning.openings import KEYS, MANAGER, Openings, at, openings_of
from scenarios.planning.proving import Tried, fits, prove_all, prove_best, prover
from scenarios.planning.published import megatron_of, osdp_of, prove_in_turn
from scenarios.planning.request import MOST_EXHAUSTIVE, Request
from scenarios.planning.resources import Resources
from scenarios.planning.slicing import with_slices_chosen
from scenarios.planning.studied import Studied, studied_of
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document
from sim.planner.space import SEARCHED, SLICED


class Searched(Struct, frozen=True):
    """``variant``: the keys that say which of several clusters and precisions it is; none where there is only one.

    ``out_of_time``: whether the budget of time was spent at its end.
    """

    studied: Studied
    tried: list[Tried]
    variant: Mapping[str, Any]
    out_of_time: bool = False

    @property
    def fits(self) -> bool:
        """Return whether a strategy was simulated."""
        return any(fits(outcome) for _, outcome in self.tried)

    def refuse(self, request: Request, workers: Executor) -> None:
        """Raise ScenarioError: nothing fits."""
        if request.planner in ("auto", "exhaustive"):
            refuse_misfit(self.studied, workers)
        refuse_planner(self.studied.openings, request.planner, workers)


def searched(document: Document, variant: Mapping[str, Any], request: Request, resources: Resources) -> Searched:
    """Return the search of a document without variants; where nothing fits, also with all state on the hosts.

    Raises ScenarioError for what is wrong with the file.
    """
    found = _searched(document, variant, request, resources)
    if found.fits or not _may_move(document, request):
        return found
    return _searched(apply_overrides(document, [f"{MANAGER}=auto"]), variant, request, resources)


def _may_move(document: Document, request: Request) -> bool:
    """Return whether the scenario and the planner leave open that all state lies on the hosts."""
    is_open = at(document, "memory") is None and at(document, KEYS["offload"]) in (None, "auto")
    return is_open and request.planner == "auto" and at(document, KEYS["zero_stage"]) in (None, "auto", 3)


def _searched(document: Document, variant: Mapping[str, Any], request: Request, resources: Resources) -> Searched:
    openings = openings_of(document, request.schedules)
    _refuse_unsearched(openings)
    studied = _studied(openings, request, resources.workers)
    return Searched(studied, _tried(studied, request, resources), variant, resources.out_of_time)


def _refuse_unsearched(openings: Openings) -> None:
    """Raise ScenarioError for schedules that are to be searched where the scenario writes one."""
    if openings.schedules != SEARCHED and (written := openings.fixed.get("schedule")):
        rule = f"the scenario writes {KEYS['schedule']}: {written}, so no schedules are searched"
        remedy = f"leave it out, or --set {KEYS['schedule']}=auto"
        raise ScenarioError(Origin(option="--schedules"), "", rule, remedy)


def _studied(openings: Openings, request: Request, workers: Executor) -> Studied:
    """Return the strategies of a planner with their estimates."""
    if request.planner in ("galvatron", "galvatron_bmw", "alpa"):
        return layerwise_of(openings, request.planner, request.num_proofs, workers)
    chosen = {"megatron": megatron_of, "osdp": osdp_of}.get(request.planner, studied_of)
    studied = chosen(openings, workers)
    return with_slices_chosen(studied, workers) if studied.grid.runs(SLICED).any() else studied


def _tried(studied: Studied, request: Request, resources: Resources) -> list[Tried]:
    """Return what came of the strategies that the engine tried."""
    ask, is_over = prover(studied, resources), lambda: resources.out_of_time
    if request.planner == "megatron":
        return prove_in_turn(studied, ask)
    if request.planner in ("exhaustive", "osdp"):
        _refuse_many(studied)
        return prove_all(studied, request.objective, ask, is_over)
    return prove_best(studied, request.objective, request.num_proofs, ask, is_over)


def _refuse_many(studied: Studied) -> None:
    if len(studied.grid) > MOST_EXHAUSTIVE:
        origin = studied.openings.document.origin(("parallel",))
        rule = f"{len(studied.grid):,} strategies are more than the {MOST_EXHAUSTIVE:,} that are all simulated"
        raise ScenarioError(origin, "parallel", rule, "fix some keys, or --planner auto")
