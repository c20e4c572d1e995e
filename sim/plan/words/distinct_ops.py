"""The distinct ops of a program: most of its ops differ in nothing but names, as most layers of a model do."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, Final, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.plan.words.buffer import Buffer
from sim.plan.words.op import SEED, Compute, Op


class DistinctOps(Struct, frozen=True, dict=True, eq=False):
    """The ops of a program, of those that are alike the first, and of every op its place among them.

    Ops are alike that differ in nothing but names and seeds, on buffers of the same shapes, types and tiers. So they
    do the same work, move the same bytes the same way and take equally long. ``of_task``: by task, a place for each op.

        prices = [price(op) for op in found.ops]
        of_forward = [prices[place] for place in found.of_task["forward.0"]]
    """

    ops: tuple[Op, ...]
    of_task: Mapping[str, tuple[int, ...]]

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Return the place of every op, task by task."""
        return np.fromiter(chain.from_iterable(self.of_task.values()), np.int64)

    def of_tasks(self, names: Iterable[str]) -> dict[int, Op]:
        """Return the distinct ops of some tasks, by their places, in order."""
        return {place: self.ops[place] for place in sorted(set().union(*map(self.of_task.__getitem__, names)))}

    @classmethod
    def of(cls, buffers: Mapping[str, Buffer], tasks: Iterable[tuple[str, tuple[Op, ...]]]) -> "DistinctOps":
        """Return the distinct ops of tasks, given by name. A buffer that does not exist is like others that do not."""
        numbers: dict[tuple[object, ...], int] = {}
        kinds = {
            name: numbers.setdefault((buffer.shape, buffer.dtype, buffer.tier), len(numbers))
            for name, buffer in buffers.items()
        }
        places: dict[tuple[object, ...], int] = {}
        first: list[Op] = []
        of_task: dict[str, tuple[int, ...]] = {}
        for name, ops in tasks:
            found = []
            for op in ops:
                place = places.setdefault(_key(op, kinds), len(first))
                if place == len(first):
                    first.append(op)
                found.append(place)
            of_task[name] = tuple(found)
        return cls(tuple(first), of_task)


def _key(op: Op, kinds: Mapping[str, int]) -> tuple[object, ...]:
    """Return all of an op but names and seeds. ``kinds``: a number for each buffer, the same for those alike."""
    kind, reads, writes = type(op), op.reads, op.writes
    attributes = (unseeded(op.attributes),) if isinstance(op, Compute) and op.attributes else ()
    return (kind, _FACTS[kind](op), len(reads), reads == writes, *attributes, *map(kinds.get, reads + writes))


def unseeded(attributes: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return a kernel's attributes without the one that tells the random numbers of one layer from another's."""
    if SEED not in attributes:
        return tuple(attributes.items())
    return tuple([item for item in attributes.items() if item[0] != SEED])


_FACTS: Final = {
    kind: attrgetter(
        *[name for name in kind.__struct_fields__ if name not in {"name", "reads", "writes", "attributes"}]
    )
    for kind in get_args(Op)
}
"""What takes all of an op of each class but names, and but what is looked at apart."""
