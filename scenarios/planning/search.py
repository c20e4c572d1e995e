"""The search: estimate all strategies, prove the best of them by the engine, and say why the others lost."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from scenarios.errors import Origin, ScenarioError
from scenarios.planning.openings import openings_of
from scenarios.planning.ranking import ranked, summarise, with_interval
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.searched import Searched, searched
from scenarios.planning.sensitivity import sensitivity
from scenarios.planning.variants import Variant, variants_of
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document, read_document
from scenarios.summaries.as_json import as_json
from scenarios.summaries.planning import PlanSummary
from sim.planner.space import SEARCHED

_ENDS: Final[Mapping[str, str]] = {
    "exhaustive": "simulates all strategies",
    "osdp": "simulates all of its strategies",
    "megatron": "ends with the first strategy by its rules that fits",
}
"""When planners end that seek no number of strategies."""
_SCHEDULES: Final[Mapping[str, str]] = {
    "osdp": "has replicas alone, and no pipelines",
    "megatron": "knows 1f1b and interleaved_1f1b alone",
}
"""The pipelines of planners that have no choice of schedules."""


class Found(Struct, frozen=True):
    """A finished search, and the scenario of its best plan."""

    summary: PlanSummary
    best: Document

    def as_json(self) -> dict[str, Any]:
        """Return the answers as plan.json holds them."""
        found: dict[str, Any] = as_json(self.summary)
        return found


def search(path: Path, overrides: Sequence[str], request: Request, resources: Resources) -> Found:
    """Return the best plans of a scenario, on each of the clusters and in each precision that are asked for.

    Raises ScenarioError where nothing fits, with what the leanest strategy needs and a change that would fit.
    """
    document = apply_overrides(read_document(path), overrides)
    _refuse_unread_options(request, resources)
    variants = variants_of(document, request)
    if request.goal == "cost":
        _refuse_unpriced(variants[0].document)
    if request.goal == "energy":
        _refuse_unmetered(variants[0].document)
    if len(variants) == 1:
        only = searched(variants[0].document, variants[0].set, request, resources)
        clusters, lost = [only], Counter[str]()
        if not only.fits:
            only.refuse(request, resources.workers)
    else:
        clusters, lost = _of_variants(variants, request, resources)
    fitting = ranked(clusters, request.goal)
    first = fitting[0] = with_interval(fitting[0], resources)
    shifted = list(sensitivity(first.of, first.row, request, resources)) if request.sensitivity else []
    summary = summarise(fitting, clusters, lost, request, shifted)
    best = summary.plans[0]
    return Found(summary, apply_overrides(document, [f"{key}={_written(value)}" for key, value in best.set.items()]))


def _refuse_unread_options(request: Request, resources: Resources) -> None:
    """Raise ScenarioError for options that a planner does not read."""
    planner = request.planner
    unread = {
        "--sensitivity": planner not in ("auto", "exhaustive") and request.sensitivity,
        "--proofs": planner in _ENDS and request.num_proofs != Request().num_proofs and not request.sensitivity,
        "--schedules": planner in _SCHEDULES and request.schedules != SEARCHED,
        "--budget": planner == "megatron" and math.isfinite(resources.ends_at_s),
    }
    rules = {
        "--sensitivity": f"the plans of {planner} are not searched again under other conditions",
        "--proofs": f"{planner} {_ENDS.get(planner)}",
        "--schedules": f"{planner} {_SCHEDULES.get(planner)}",
        "--budget": f"{planner} {_ENDS.get(planner)}",
    }
    for option, is_unread in unread.items():
        if is_unread:
            raise ScenarioError(Origin(option=option), "", rules[option], "leave it out, or --planner auto")


def _written(value: Any) -> Any:
    """Return a value as an option has it; null takes a key out."""
    return "null" if value is None else value


def _of_variants(
    variants: Sequence[Variant], request: Request, resources: Resources
) -> tuple[list[Searched], Counter[str]]:
    """Return the searches of variants in which something fits, and why there is none of the others.

    Raises ScenarioError where nothing fits in any.
    """
    found, lost = list[Searched](), Counter[str]()
    errors: list[ScenarioError] = []
    for variant in variants:
        try:
            of = searched(variant.document, variant.set, request, resources)
        except ScenarioError as error:
            errors.append(error)
            lost[f"{variant.words}: {error.rule}"] += 1
            continue
        if of.fits:
            found.append(of)
        elif variant is variants[-1] and not found:
            of.refuse(request, resources.workers)
        else:
            lost[f"{variant.words}: nothing fits"] += 1
    if not found:
        raise errors[-1]
    return found, lost


def _refuse_unpriced(document: Document) -> None:
    if openings_of(document).cluster.price_usd_per_s is None:
        rule = "no price of these devices is known, and plans are to be compared by cost"
        origin = document.origin(("cluster",))
        raise ScenarioError(origin, "cluster.device_price", rule, "write one, as in 2.50 USD/h")


def _refuse_unmetered(document: Document) -> None:
    unknown = [device.name for device, _ in openings_of(document).anchor.devices if device.power_limit_w is None]
    if unknown:
        rule = f"the power of {unknown[0]} is not known, and plans are to be compared by energy"
        origin = document.origin(("cluster",))
        raise ScenarioError(origin, "cluster.node", rule, "take another node, or --objective time")
