"""From the section `decoding:` of a service's file to its method."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from scenarios.errors import ScenarioError
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.service.schema import DecodingSection
from sim.serving.decoding.drafts import (
    TREE_DRAFTS,
    DraftPrices,
    chain_decoding,
    recorded_steps,
    recorded_tree,
    tree_decoding,
)
from sim.serving.decoding.method import Decoding
from sim.serving.decoding.tree import Table, ranked_rates
from traces.errors import TraceError
from traces.recorded_drafts import RecordedDrafts, RecordedSteps, read_drafts, recorded_drafts, recording_names

TIMED_DRAFTS: Final = frozenset({"draft_model", *TREE_DRAFTS})
"""Methods whose drafts take time."""
Part = TypeVar("Part")
_NUM_RANKS: Final = 10
_DRAFTED: Final = 4
_EXAMPLES: Final = MappingProxyType(
    {
        "recorded": "python_help",
        "acceptance": "0.7",
        "draft_pass": "2 ms",
        "hit_rates": "[0.6, 0.45, 0.35]",
    }
)


def read_decoding(document: Document, section: DecodingSection, prices: DraftPrices) -> Decoding:
    """Return the decoding method. Raises ScenarioError for a key that a method lacks, or that it does not read."""
    match section.method:
        case "autoregressive":
            _refuse(document, section, ())
            return Decoding()
        case "draft_model" | "prompt_lookup" | "jacobi":
            drafting = ("draft_pass",) if section.method == "draft_model" else ()
            _refuse(document, section, ("acceptance", *drafting), ("drafted",))
            return chain_decoding(_acceptance(document, section), _drafted(section), section.draft_pass or 0.0)
        case "lookahead":
            _refuse(document, section, ("recorded",), ("drafted",))
            steps = _steps_of(document, section, _recorded(document, section, lambda found: found.chains))
            return recorded_steps(steps.lengths, steps.positions)
        case name if section.tree == "static":
            _refuse(document, section, ("hit_rates",), ("drafted",) if section.recorded else ("drafted", "rank_ratio"))
            return tree_decoding(name, _table(document, section), _drafted(section), prices)
        case name:
            _refuse(document, section, ("recorded",), ("drafted",))
            trees = _recorded(document, section, lambda found: found.trees)
            of_shape = {nodes: steps for (shape, nodes), steps in trees.items() if shape == section.tree}
            steps = _steps_of(document, section, of_shape)
            return recorded_tree(name, steps.lengths, steps.positions, steps.frontiers, prices)


def _drafted(section: DecodingSection) -> int:
    """Return how many tokens a pass verifies beside the one that is sure."""
    return _DRAFTED if section.drafted is None else section.drafted


def _steps_of(document: Document, section: DecodingSection, recorded: Mapping[int, RecordedSteps]) -> RecordedSteps:
    """Return the recorded steps with ``drafted`` tokens. Raises ScenarioError where none were recorded."""
    drafted = _drafted(section)
    if drafted in recorded:
        return recorded[drafted]
    rule = f"{section.recorded} has no steps of {section.method} with {drafted} drafted tokens"
    remedy = f"write one of {', '.join(map(str, recorded))}"
    raise ScenarioError(document.origin(("decoding", "drafted")), "decoding.drafted", rule, remedy)


def _acceptance(document: Document, section: DecodingSection) -> float:
    """Return the probability that a drafted token of a chain is accepted."""
    if section.recorded:
        return _recorded(document, section, lambda found: found.acceptance)
    return section.acceptance or 0.0


def _table(document: Document, section: DecodingSection) -> Table:
    """Return the hit rates of a tree's guesses, by depth and rank."""
    if section.recorded:
        return _recorded(document, section, lambda found: found.tables)
    return [_ranked(document, first, section.rank_ratio) for first in section.hit_rates]


def _ranked(document: Document, first: float, ratio: float | None) -> tuple[float, ...]:
    """Return the hit rates of a depth by rank. Raises ScenarioError where they add up to more than 1."""
    if ratio is None:
        return ranked_rates(first)
    rates = tuple(first * ratio**rank for rank in range(_NUM_RANKS))
    if sum(rates) > 1.0 + 1e-9:
        rule = (
            f"{_NUM_RANKS} guesses from {first} on, each {ratio} times as often right, are right {sum(rates):.2f} times"
        )
        raise ScenarioError(document.origin(("decoding", "rank_ratio")), "decoding.rank_ratio", rule, "write less")
    return rates


def _recorded(
    document: Document, section: DecodingSection, part: Callable[[RecordedDrafts], Mapping[str, Part]]
) -> Part:
    """Return what a recording has of the method. Raises ScenarioError where there is none, or it lacks the method."""
    parts = part(_recording(document, section.recorded or ""))
    if section.method not in parts:
        rule = f"{section.recorded} has no drafts by {section.method}"
        if section.tree != "static":
            rule += f" with tree: {section.tree}"
        remedy = f"take a method that it has: {', '.join(parts)}" if parts else "name another recording"
        raise ScenarioError(document.origin(("decoding", "recorded")), "decoding.recorded", rule, remedy)
    return parts[section.method]


def _recording(document: Document, name: str) -> RecordedDrafts:
    """Return the packaged recording of a name, or that of a file. Raises ScenarioError where there is none."""
    if name in recording_names():
        return recorded_drafts(name)
    place = document.origin(("decoding", "recorded"))
    if not name.endswith((".yaml", ".yml")):
        remedy = f"write {', '.join(recording_names())}, or the name of a file that ends in .yaml"
        raise ScenarioError(place, "decoding.recorded", f"there is no recording {name}", remedy)
    try:
        return read_drafts(named_file(document, ("decoding", "recorded"), name, "name a recording of drafts"))
    except TraceError as error:
        raise ScenarioError(place, "decoding.recorded", error.problem, error.remedy) from error


def _refuse(
    document: Document, section: DecodingSection, needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    """Refuse a key that the method lacks or does not read; a recording stands for rates and acceptance."""
    rates = {"acceptance", "hit_rates"}
    if section.tree != "static" and section.method not in TREE_DRAFTS:
        origin = document.origin(("decoding", "tree"))
        raise ScenarioError(origin, "decoding.tree", f"{section.method} drafts no tree", "leave it out")
    if section.recorded and rates & set(needed):
        needed = (*(key for key in needed if key not in rates), "recorded")
    for key in ("recorded", "acceptance", "draft_pass", "hit_rates", "drafted", "rank_ratio"):
        stated = getattr(section, key) not in {None, ()}
        if stated and key not in (*needed, *optional):
            rule, remedy, place = f"{section.method} does not read it", "leave it out", key
        elif not stated and key in needed:
            rule, remedy, place = f"{section.method} needs it", f"write {key}: {_EXAMPLES[key]}", "method"
        else:
            continue
        raise ScenarioError(document.origin(("decoding", place)), f"decoding.{key}", rule, remedy)
