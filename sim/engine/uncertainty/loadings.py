"""By how much every independent source of errors moves every class of calls.

The logarithm of a class's time is off by a sum of independent standard normal sources, each times a loading: one source
for its family, one for each place in it, and one of its own. Loadings of places are the rows of the Cholesky factor of
their correlation, so that what neighbours have in common is as the profile says.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from costmodels.spread import Place, Spread
from sim.engine.uncertainty.errors import ErrorClass, ModelErrors
from sim.engine.uncertainty.longest_path import Floats

STEP: Final = "whole step"
Source = str | tuple[str, Place] | ErrorClass
"""An independent source of error: the whole step, a family, a place in a family, or one class."""
_NUGGET: Final = 1e-9
"""Added to correlations of 1, so that places that are nearly one still have a factor."""


class Loadings(Struct, frozen=True, eq=False):
    """``matrix[c, s]``: change of the log time of class c for one standard deviation of source s."""

    classes: Mapping[ErrorClass, int]
    sources: tuple[Source, ...]
    matrix: Floats


def loadings(classes: Sequence[ErrorClass], predicted_s: Mapping[ErrorClass, float], errors: ModelErrors) -> Loadings:
    """Return the loadings of different classes; ``predicted_s``: how long calls of each take, 0 where that is left out.

    A class whose family has no errors has none.
    """
    rows = {found: row for row, found in enumerate(classes)}
    sources: list[Source] = []
    blocks: list[Floats] = []
    for family, spread in errors.spread.items():
        ours = [found for found in classes if found.family == family]
        if not ours:
            continue
        deviation = np.array([spread.at(predicted_s.get(found, 0.0)) for found in ours])
        names, block = _of_family(family, spread, ours)
        full = np.zeros((len(classes), len(names)))
        full[[rows[found] for found in ours]] = deviation[:, None] * block
        sources += names
        blocks.append(full)
    return Loadings(rows, tuple(sources), np.concatenate([np.zeros((len(classes), 0)), *blocks], axis=1))


def _of_family(family: str, spread: Spread, classes: Sequence[ErrorClass]) -> tuple[list[Source], Floats]:
    """Return the sources of a family's classes and by what each moves each, in deviations of the class."""
    sources, parts = list[Source](), list[Floats]()
    if spread.common > 0.0:
        sources.append(family)
        parts.append(np.full((len(classes), 1), np.sqrt(spread.common)))
    if spread.near > 0.0:
        places = list(dict.fromkeys(found.place for found in classes))
        factor = np.linalg.cholesky(spread.correlation(places) + _NUGGET * np.eye(len(places)))
        sources += [(family, place) for place in places]
        parts.append(np.sqrt(spread.near) * factor[[places.index(found.place) for found in classes]])
    if spread.own > 0.0:
        sources += classes
        parts.append(np.sqrt(spread.own) * np.eye(len(classes)))
    return sources, np.concatenate(parts, axis=1)
