"""The colour of each op in drawings of two timelines: compute by its part of the step, other ops by kind."""

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from scenarios.report.causes import COMPUTING
from scenarios.report.phases import OTHER, phase_of
from traces.comparison.sides import Side, Sides
from traces.comparison.step_time import class_of
from traces.kineto.breakdown import COMMUNICATION, COMPUTE

_COMMUNICATION: Final = ("#9a6fc9", "#d9694f", "#b5528c", "#5c8f9e", "#b07a4f")
_MEMORY: Final = ("#7f8f4e", "#a3ad7a", "#5f6f3a")


class OpColours(Struct, frozen=True):
    """Legend entries (words and colours), and the entry of each name and kind of op."""

    legend: tuple[tuple[str, str], ...]
    by_name: NDArray[np.int64]
    by_kind: NDArray[np.int64]

    def of(self, side: Side) -> NDArray[np.int64]:
        """Return the legend index of each row of a side."""
        chosen = self.by_kind[side.kind]
        return np.where(chosen >= 0, chosen, self.by_name[side.name])


def op_colours(both: Sides) -> OpColours:
    """Return the colours of all ops of two timelines."""
    legend: dict[tuple[str, str], int] = {}
    computes = np.array([class_of(kind) == COMPUTE for kind in both.kinds])
    named, present = np.zeros(len(both.names), dtype=np.bool_), np.zeros(len(both.kinds), dtype=np.bool_)
    for side in (both.first, both.second):
        named[side.name[computes[side.kind]]] = True
        present[side.kind] = True
    by_name = np.full(len(both.names), -1, dtype=np.int64)
    phases = {code: phase_of(both.names[code]) for code in np.flatnonzero(named).tolist()}
    of_a_plan = any(phase != OTHER for phase in phases.values())
    for code, phase in phases.items():
        entry = (phase.words, phase.colour) if of_a_plan else COMPUTING
        by_name[code] = legend.setdefault(entry, len(legend))
    by_kind, places = np.full(len(both.kinds), -1, dtype=np.int64), {COMMUNICATION: 0}
    for code in np.flatnonzero(present & ~computes).tolist():
        group = class_of(both.kinds[code])
        palette = _COMMUNICATION if group == COMMUNICATION else _MEMORY
        place = places[group] = places.get(group, -1) + 1
        by_kind[code] = legend.setdefault((both.kinds[code], palette[place % len(palette)]), len(legend))
    return OpColours(tuple(legend), by_name, by_kind)
