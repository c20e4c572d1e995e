"""What is searched one by one: sizes of the cluster, precisions, tensor methods. Each has estimates of its own."""

from collections.abc import Iterator, Mapping
from math import isqrt, prod
from typing import Any, Final

from msgspec import Struct

from scenarios.planning.openings import TENSOR, at, openings_of
from scenarios.planning.request import NUM_NODES, Request
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document

PRECISION: Final = "training.precision"
_PRECISIONS: Final = ("bf16", "fp8")
"""What ``training.precision: auto`` stands for. fp16 takes what bf16 does, and wider types take more."""
_MOST_MESH: Final = 64
"""Ranks of a mesh."""


class Variant(Struct, frozen=True):
    """A scenario with the keys ``set`` that tell it from the other variants."""

    document: Document
    set: Mapping[str, Any]

    def with_value(self, key: str, value: Any) -> "Variant":
        """Return the variant with another key set."""
        return Variant(apply_overrides(self.document, [f"{key}={value}"]), {**self.set, key: value})

    @property
    def words(self) -> str:
        """Return its keys as they are told."""
        words = {NUM_NODES: "cluster of {} nodes", PRECISION: "{}", TENSOR: "{}"}
        return ", ".join(words[key].format(_in_words(value)) for key, value in self.set.items())


def _in_words(value: Any) -> str:
    """Return a value in words; of a tensor section its method and mesh, as 2d [4, 4]."""
    return f"{value['method']} {value.get('mesh', '')}".rstrip() if isinstance(value, dict) else str(value)


def variants_of(document: Document, request: Request) -> list[Variant]:
    """Return the variants of a scenario, the smallest cluster first; without any, the scenario itself."""
    choices: dict[str, tuple[Any, ...]] = {}
    if request.num_nodes:
        choices[NUM_NODES] = tuple(sorted(request.num_nodes))
    if at(document, PRECISION) == "auto":
        choices[PRECISION] = _PRECISIONS
    found = [Variant(document, {})]
    for key, values in choices.items():
        found = [variant.with_value(key, value) for variant in found for value in values]
    if at(document, f"{TENSOR}.method") == "auto":
        found = [
            variant.with_value(TENSOR, section) for variant in found for section in _tensor_sections(variant.document)
        ]
    return found


def _tensor_sections(document: Document) -> Iterator[dict[str, Any]]:
    """Yield the tensor section of every method and mesh, with the other keys that are written.

    Meshes fill the cluster. A written degree leaves those of so many ranks.
    """
    written = {key: value for key, value in at(document, TENSOR).items() if key != "method"}
    on_one_axis = {**written, "method": "1d"}
    yield on_one_axis
    world_size = openings_of(apply_overrides(document, [f"{TENSOR}={on_one_axis}"])).sizes.world_size
    degree = written.pop("degree", "auto")
    for method, mesh in _meshes():
        if degree in ("auto", prod(mesh)) and world_size % prod(mesh) == 0:
            yield {**written, "method": method, "mesh": list(mesh)}


def _meshes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the meshes of every method of at most ``_MOST_MESH`` ranks. One of 2.5D is no deeper than wide."""
    for side in range(2, isqrt(_MOST_MESH) + 1):
        yield "2d", (side, side)
        for depth in range(2, side + 1):
            if prod((side, side, depth)) <= _MOST_MESH:
                yield "2.5d", (side, side, depth)
        if side**3 <= _MOST_MESH:
            yield "3d", (side, side, side)
