"""From the section `decoding:` of a service's file to its method."""

from typing import Final

from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.service.schema import DecodingSection
from sim.serving.decoding.drafts import DraftPrices, chain_decoding, tree_decoding
from sim.serving.decoding.method import Decoding
from sim.serving.decoding.tree import ranked_rates

_NUM_RANKS: Final = 10


def read_decoding(document: Document, section: DecodingSection, prices: DraftPrices) -> Decoding:
    """Return the decoding method. Raises ScenarioError for a key that a method lacks, or that it does not read."""
    match section.method:
        case "autoregressive":
            _refuse(document, section, ())
            return Decoding()
        case "draft_model" | "prompt_lookup":
            needed = ("acceptance", "draft_pass") if section.method == "draft_model" else ("acceptance",)
            _refuse(document, section, needed)
            return chain_decoding(section.acceptance or 0.0, section.drafted, section.draft_pass or 0.0)
        case name:
            _refuse(document, section, ("hit_rates",))
            table = [_ranked(document, first, section.rank_ratio) for first in section.hit_rates]
            return tree_decoding(name, table, section.drafted, prices)


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


def _refuse(document: Document, section: DecodingSection, needed: tuple[str, ...]) -> None:
    for key in ("acceptance", "draft_pass", "hit_rates"):
        stated = getattr(section, key) not in {None, ()}
        if stated == (key in needed):
            continue
        rule = f"{section.method} {'does not read it' if stated else 'needs it'}"
        example = {"acceptance": "0.7", "draft_pass": "2 ms", "hit_rates": "[0.6, 0.45, 0.35]"}[key]
        name = f"decoding.{key}"
        place = name if stated else "decoding.method"
        origin = document.origin(tuple(place.split(".")))
        raise ScenarioError(origin, name, rule, "leave it out" if stated else f"write {key}: {example}")
