"""The time of experts' kernels by their number of rows, priced when it is first asked for."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.op import Compute
from sim.plan.words.program import Phase, Plan, Program, Task

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_STEP: Final = 16
"""Few rows are priced at the next multiple of it: no tile of a product has fewer."""
_PARTS: Final = 512
"""Many rows are priced at the next of so many numbers between two powers of two."""
_COPY: Final = re.compile(r"\.part(\d+)\b")


class RowTimes:
    """The seconds of some kernels one after the other on any number of rows; none on no rows.

    ``ops``: the kernels of ``program``, as they are for some number of rows.
    """

    def __init__(self, plan: Plan, program: Program, ops: Sequence[Compute], pricing: ClusterPricing) -> None:
        self._plan, self._program, self._ops, self._pricing = plan, program, ops, pricing
        self._known = np.zeros(1)

    def seconds(self, places: Ints) -> Floats:
        """Return the seconds for numbers of rows of any shape; see ``places_of``."""
        most = int(places.max(initial=0))
        if most >= len(self._known):
            self._known = np.append(self._known, np.full(most + 1 - len(self._known), np.nan))
        missing = np.unique(places[np.isnan(self._known[places])])
        if len(missing):
            self._known[missing] = self._priced(missing * _STEP)
        found: Floats = self._known[places]
        return found

    def _priced(self, rows: Ints) -> list[float]:
        """Return the seconds for numbers of rows, all in one program, so that they are timed together."""
        cases = [[_with_rows(self._program, op, number) for op in self._ops] for number in rows.tolist()]
        ops = [op for case in cases for op, _ in case]
        buffers = {name: buffer for case in cases for _, own in case for name, buffer in own.items()}
        program = replace(self._program, buffers=buffers, tasks={"rows": Task("rows", Phase.FORWARD, tuple(ops))})
        plan, price = replace(self._plan, programs=(program,)), self._pricing.price
        return [sum(price(plan, program, op, 0).duration_s for op, _ in case) for case in cases]


def places_of(rows: Floats) -> Ints:
    """Return where the times of numbers of rows are found, which need not be whole; many rows share a place."""
    coarse = np.exp2(np.floor(np.log2(np.maximum(rows, 1.0) / (_PARTS * _STEP))).clip(0.0))
    places: Ints = (np.ceil(rows / (_STEP * coarse) - 1e-9) * coarse).astype(np.int64)
    return places


def first_copy(ops: Sequence[Compute]) -> list[Compute]:
    """Return the kernels of one copy of an expert, of those of several."""
    copies = [found.group(1) if (found := _COPY.search(op.name)) else "" for op in ops]
    return [op for op, copy in zip(ops, copies, strict=True) if copy == copies[0]]


def _with_rows(program: Program, op: Compute, number: int) -> tuple[Compute, Mapping[str, Buffer]]:
    """Return a kernel of so many rows, of one copy, and its buffers."""
    reads, writes = op.reads, op.writes
    if op.kernel == "part_rows":
        writes = writes[:1]
    elif op.kernel == "join_rows":
        reads = reads[:2]
    names = {name: _name(program.buffers[name], number) for name in (*reads, *writes)}
    buffers = {
        new: replace(buffer, name=new, shape=(1, number, *buffer.shape[2:])) if new != name else buffer
        for name, new in names.items()
        for buffer in (program.buffers[name],)
    }
    attributes = {**op.attributes, "rows": (number,)} if "rows" in op.attributes else op.attributes
    renamed = [tuple(names[name] for name in side) for side in (reads, writes)]
    return replace(op, reads=renamed[0], writes=renamed[1], attributes=attributes), buffers


def _name(buffer: Buffer, number: int) -> str:
    """Return the name of a buffer with so many rows; its own if it has no rows."""
    has_rows = buffer.kind in {Kind.ACTIVATION, Kind.WORKSPACE} and len(buffer.shape) > 1
    return f"{buffer.name}@{number}" if has_rows else buffer.name
