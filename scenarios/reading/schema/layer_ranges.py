"""Layers of a model, by number or as ranges."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

from msgspec import Meta

from scenarios.reading.sections.markers import Checked, Parsed, RefusalError

MOST_LAYERS: Final = 10_000
_RANGE: Final = r"(\d{1,5})-(\d{1,5})"


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
    found = re.fullmatch(_RANGE, part)
    if found is None or int(found[1]) > int(found[2]):
        message = f"{part!r} is neither the number of a layer nor a range as 0-19"
        raise ValueError(message)
    return range(int(found[1]), int(found[2]) + 1)


def _layer_or_range(part: Any) -> int | str:
    """Return the number of a layer, or a range as it is written."""
    if isinstance(part, bool) or not isinstance(part, int | str):
        raise RefusalError("a layer is a number, or a range", "write [0, 4-7]")
    if isinstance(part, int) and not 0 <= part < MOST_LAYERS:
        raise RefusalError(
            f"{part} is no layer: their numbers lie between 0 and {MOST_LAYERS - 1:,}", "write another one"
        )
    try:
        _layers(part)
    except ValueError as error:
        raise RefusalError(str(error), "write [0, 4-7]") from error
    return part


def _each_once(parts: tuple[int | str, ...]) -> tuple[int | str, ...]:
    try:
        layers_of(parts)
    except ValueError as error:
        raise RefusalError(str(error), "name each layer once") from error
    return parts


LayerPart = Annotated[
    int | str,
    Parsed(
        _layer_or_range,
        {
            "anyOf": [
                {"exclusiveMaximum": MOST_LAYERS, "minimum": 0, "type": "integer"},
                {"maxLength": 20, "minLength": 1, "type": "string"},
            ]
        },
    ),
]
LayerRanges = Annotated[tuple[LayerPart, ...], Meta(max_length=MOST_LAYERS), Checked(_each_once)]
