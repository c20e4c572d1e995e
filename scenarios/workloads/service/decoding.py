"""From the section `decoding:` of a service's file to its method."""

from typing import Final

from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.service.schema import DecodingSection
from sim.serving.decoding.drafts import TREE_DRAFTS, DraftPrices, chain_decoding, tree_decoding
from sim.serving.decoding.method import Decoding
from sim.serving.decoding.tree import Table, ranked_rates
from traces.recorded_drafts import RecordedDrafts, recorded_drafts, recording_names

TIMED_DRAFTS: Final = frozenset({"draft_model", *TREE_DRAFTS})
"""Methods whose drafts take time."""
_NUM_RANKS: Final = 10


def read_decoding(document: Document, section: DecodingSection, prices: DraftPrices) -> Decoding:
    """Return the decoding method. Raises ScenarioError for a key that a method lacks, or that it does not read."""
    match section.method:
        case "autoregressive":
            _refuse(document, section, ())
            return Decoding()
        case "draft_model" | "prompt_lookup":
            drafting = ("draft_pass",) if section.method == "draft_model" else ()
            _refuse(document, section, ("acceptance", *drafting))
            return chain_decoding(_acceptance(document, section), section.drafted, section.draft_pass or 0.0)
        case name:
            _refuse(document, section, ("hit_rates",))
            return tree_decoding(name, _table(document, section), section.drafted, prices)


def _acceptance(document: Document, section: DecodingSection) -> float:
    """Return the probability that a drafted token of a chain is accepted."""
    if section.recorded:
        return _recorded(document, section).acceptance[section.method]
    return section.acceptance or 0.0


def _table(document: Document, section: DecodingSection) -> Table:
    """Return the hit rates of a tree's guesses, by depth and rank."""
    if section.recorded:
        return _recorded(document, section).tables[section.method]
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


def _recorded(document: Document, section: DecodingSection) -> RecordedDrafts:
    """Return the recording. Raises ScenarioError where there is none of that name, or it lacks the method."""
    place, names = document.origin(("decoding", "recorded")), recording_names()
    if section.recorded not in names:
        rule = f"there is no recording {section.recorded}"
        raise ScenarioError(place, "decoding.recorded", rule, f"write one of {', '.join(names)}")
    found = recorded_drafts(section.recorded)
    methods = (*found.tables, *found.acceptance)
    if section.method not in methods:
        rule = f"{section.recorded} has no drafts by {section.method}"
        raise ScenarioError(place, "decoding.recorded", rule, f"take a method that it has: {', '.join(methods)}")
    return found


def _refuse(document: Document, section: DecodingSection, needed: tuple[str, ...]) -> None:
    """Refuse a key that the method lacks or does not read; a recording stands for rates and acceptance."""
    rates = {"acceptance", "hit_rates"}
    if section.recorded and rates & set(needed):
        needed = tuple(key for key in needed if key not in rates)
    elif section.recorded:
        origin = document.origin(("decoding", "recorded"))
        raise ScenarioError(origin, "decoding.recorded", f"{section.method} does not read it", "leave it out")
    for key in ("acceptance", "draft_pass", "hit_rates"):
        stated = getattr(section, key) not in {None, ()}
        if stated == (key in needed):
            continue
        rule = f"{section.method} {'does not read it' if stated else 'needs it'}"
        example = {"acceptance": "0.7", "draft_pass": "2 ms", "hit_rates": "[0.6, 0.45, 0.35]"}[key]
        name = f"decoding.{key}"
        key_path = ("decoding", key if stated else "method")
        raise ScenarioError(
            document.origin(key_path), name, rule, "leave it out" if stated else f"write {key}: {example}"
        )
