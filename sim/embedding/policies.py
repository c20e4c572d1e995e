"""Eviction policies: which rows of a full cache give way. Pure functions of numbers that the cache keeps per slot."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

PolicyName = Literal["dataset_frequency", "lru", "lfu", "light_lfu", "fifo", "random", "belady"]

MOST_COUNTED: Final = 10
"""Uses after which ``light_lfu`` counts a row no further."""


class Candidates(Protocol):
    """Rows that may give way, and what is known of each; arrays of one length."""

    @property
    def frequency(self) -> NDArray[np.float64]:
        """Return how often the data set reads each row."""

    @property
    def uses(self) -> Ints:
        """Return the lookups since each row came into the cache."""

    @property
    def last_used(self) -> Ints:
        """Return the number of the last batch that has read each row."""

    @property
    def next_used(self) -> Ints:
        """Return the number of the next batch that reads each row."""

    @property
    def draw(self) -> NDArray[np.float64]:
        """Return random numbers of 0 to 1, new for every batch."""


Policy = Callable[[Candidates], tuple[NDArray[np.float64] | Ints, ...]]
"""Returns how much each candidate is worth; those of least worth give way. Later arrays decide between equals."""

RANKED: Final[Mapping[PolicyName, Policy]] = {
    "dataset_frequency": lambda rows: (rows.frequency,),
    "lfu": lambda rows: (rows.uses, rows.last_used),
    "light_lfu": lambda rows: (np.minimum(rows.uses, MOST_COUNTED), rows.last_used),
    "random": lambda rows: (rows.draw,),
    "belady": lambda rows: (-rows.next_used,),
}
"""``dataset_frequency``: the rows that the data set reads least (Colossal-AI's cached embedding, arXiv:2208.05321).
``lfu`` counts while a row is in the cache, and forgets the count with the row, as the same code does. Which of equal
counts goes is left open there; here it is the one that was last read by the earliest batch, as in HET's LFU (Hetu,
src/hetu_cache). ``light_lfu`` is HET's light-weight LFU: a count ends at ten, and rows that have reached it stay; here
they give way where a batch leaves no others, of them the one last read by the earliest batch. ``belady`` knows all
batches: the row that is not read for longest goes (Belady 1966), which no policy beats in rows fetched."""

COUNTED: Final[frozenset[PolicyName]] = frozenset({"lfu", "light_lfu"})
"""Policies by which the row of the smallest count goes first. Lines of rows of small counts find most of them without a
look at the others."""

QUEUED: Final[Mapping[PolicyName, Literal["last_used", "admitted"]]] = {"lru": "last_used", "fifo": "admitted"}
"""Policies by which the row of the earliest batch goes first: by its last use, or by its coming. A queue finds that
row without a look at the others."""
