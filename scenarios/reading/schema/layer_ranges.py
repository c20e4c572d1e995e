"""Layers of a model, by number or as ranges."""

import re
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import AfterValidator, Field

_RANGE: Final = re.compile(r"(\d{1,5})-(\d{1,5})")


def layers_of(parts: Iterable[int | str]) -> tuple[int, ...]:
    """Return the numbers of layers and ranges, in order. Raises ValueError for what is neither, or named twice."""
    layers = [layer for part in parts for layer in _layers(part)]
    twice = next((layer for layer in sorted(layers) if layers.count(layer) > 1), None)
    if twice is not None:
        message = f"layer {twice} is named twice"
        raise ValueError(message)
    return tuple(sorted(layers))


def written_layers(layers: Iterable[int]) -> list[int | str]:
    """Return layers as a list that ``layers_of`` reads, with runs as ranges."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _layers(part: int | str) -> Iterable[int]:
    if isinstance(part, int):
        return (part,)
    found = _RANGE.fullmatch(part)
    if found is None or int(found[1]) > int(found[2]):
        message = f"{part!r} is neither the number of a layer nor a range as 0-19"
        raise ValueError(message)
    return range(int(found[1]), int(found[2]) + 1)


def _checked(parts: tuple[int | str, ...]) -> tuple[int | str, ...]:
    layers_of(parts)
    return parts


LayerPart = Annotated[int, Field(ge=0, lt=10_000)] | Annotated[str, Field(min_length=1, max_length=20)]
LayerRanges = Annotated[tuple[LayerPart, ...], AfterValidator(_checked), Field(strict=False, max_length=10_000)]
