"""What is searched one by one: clusters of several sizes, and precisions. Each has estimates of its own."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Final

from msgspec import Struct

from scenarios.planning.openings import at
from scenarios.planning.request import NUM_NODES, Request
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document

PRECISION: Final = "training.precision"
_PRECISIONS: Final = ("bf16", "fp8")
"""What ``training.precision: auto`` stands for. fp16 takes what bf16 does, and wider types take more."""


class Variant(Struct, frozen=True):
    """A scenario with the keys ``set`` that tell it from the other variants."""

    document: Document
    set: Mapping[str, Any]

    @property
    def words(self) -> str:
        """Return its keys as they are told."""
        words = {NUM_NODES: "cluster of {} nodes", PRECISION: "{}"}
        return ", ".join(words[key].format(value) for key, value in self.set.items())


def variants_of(document: Document, request: Request) -> list[Variant]:
    """Return the variants of a scenario, the smallest cluster first; without any, the scenario itself."""
    choices: dict[str, tuple[Any, ...]] = {}
    if request.num_nodes:
        choices[NUM_NODES] = tuple(sorted(request.num_nodes))
    if at(document, PRECISION) == "auto":
        choices[PRECISION] = _PRECISIONS
    found = []
    for values in product(*choices.values()):
        keys = dict(zip(choices, values, strict=True))
        changed = apply_overrides(document, [f"{key}={value}" for key, value in keys.items()]) if keys else document
        found.append(Variant(changed, keys))
    return found
