"""The LRU cache that serves lookups one by one: against a list, Che's approximation, and figures by other code."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.embedding.ids import IdSource, Table
from sim.embedding.single_lookups import LookupLru
from tests.examples import examples
from tests.sim.embedding.test_cache import che


def one_by_one(ids: list[int], num_slots: int) -> list[bool]:
    """Return hits from a list in the order of last use."""
    cached, hits = OrderedDict[int, None](), []
    for row in ids:
        hits.append(row in cached)
        cached[row] = None
        cached.move_to_end(row)
        if len(cached) > num_slots:
            cached.popitem(last=False)
    return hits


@settings(max_examples=examples(60), deadline=None)
@given(
    ids=st.lists(st.integers(0, 11), min_size=1, max_size=80),
    num_slots=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 80), max_size=3),
)
def test_hits_are_those_of_a_list(ids: list[int], num_slots: int, cuts: list[int]) -> None:
    """Every single hit is that of a list, however the lookups are cut into calls."""
    cache = LookupLru(12, num_slots)
    found = [cache.serve(part).tolist() for part in np.split(np.array(ids), sorted(cuts))]
    assert [hit for part in found for hit in part] == one_by_one(ids, num_slots)
    assert cache.num_cached == min(len(set(ids)), num_slots)


def test_hit_rates_follow_che() -> None:
    """A tenth of 10,000 rows of Zipf 1.05: within 0.002 of Che's approximation, and of a simulation by other code."""
    table = Table(name="t", num_rows=10_000, num_lookups=1, zipf=1.05)
    assert che(table.popularity(), 1_000, "lru") == pytest.approx(0.730429, abs=1e-6)
    cache, source = LookupLru(10_000, 1_000), IdSource([table], seed=1)
    _, *measured = (cache.serve(ids) for ids in source.batches(6, 200_000))
    rate = float(np.mean(measured))
    assert rate == pytest.approx(0.730429, abs=2e-3)
    assert rate == pytest.approx(0.730260, abs=2e-3)
