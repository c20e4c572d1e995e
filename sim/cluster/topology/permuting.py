"""Permutations that are known by what they do to some numbers."""

import numpy as np

from sim.cluster.topology.links import NONE, AnyInts, IntArray


def permutation(before: AnyInts, after: AnyInts, size: int) -> IntArray | None:
    """Return where each number below ``size`` goes if ``before[i]`` goes to ``after[i]`` for all i; others stay.

    -1 goes to itself alone. None where one number would go to two places, or two to one.
    """
    found = np.arange(size + 1, dtype=np.int32)
    found[NONE] = NONE
    found[before] = after
    if not np.array_equal(found[before], after):
        return None
    images = found[:NONE]
    return images if found[NONE] == NONE and np.array_equal(np.sort(images), np.arange(size)) else None
