"""The cache of embedding rows: against a cache written row by row, closed forms, and published-size tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from sim.embedding.cache import BatchCache, Future
from sim.embedding.errors import CacheTooSmallError
from sim.embedding.ids import Drift, IdSource, Table, _Cumulative
from sim.embedding.policies import PolicyName
from sim.embedding.popularity import popularity_of
from sim.embedding.run import CacheRun, CacheSpec, most_popular, run_cache

NUM_ROWS = 12


def row_by_row(
    batches: list[list[int]], num_slots: int, policy: str, frequency: list[float], warm: list[int]
) -> list[tuple]:
    """Return hits, fetched and written-back rows of each batch, from dictionaries and loops."""
    cached: dict[int, dict[str, float]] = {row: {"uses": 0, "came": -1, "used": -1} for row in warm}
    found = []
    for now, batch in enumerate(batches):
        rows = set(batch)
        missing = sorted(rows - set(cached))
        worth = {
            row: {
                "dataset_frequency": frequency[row],
                "lru": known["used"],
                "lfu": (known["uses"], known["used"]),
                "light_lfu": (min(known["uses"], 10), known["used"]),
                "fifo": known["came"],
                "belady": -next((later for later in range(now, len(batches)) if row in batches[later]), len(batches)),
            }
            for row, known in cached.items()
        }
        going = sorted(set(cached) - rows, key=lambda row: (worth[row][policy], row))
        going = going[: max(len(cached) + len(missing) - num_slots, 0)]
        hits = sum(row in cached for row in batch)
        for row in going:
            del cached[row]
        for row in missing:
            cached[row] = {"uses": 0, "came": now}
        for row in rows:
            cached[row]["uses"] += batch.count(row)
            cached[row]["used"] = now
        found.append((hits, missing, going))
    return found


@given(
    batches=st.lists(st.lists(st.integers(0, NUM_ROWS - 1), min_size=1, max_size=9), min_size=1, max_size=12),
    num_slots=st.integers(1, NUM_ROWS),
    policy=st.sampled_from(["dataset_frequency", "lru", "lfu", "light_lfu", "fifo", "belady"]),
    frequency=st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0]), min_size=NUM_ROWS, max_size=NUM_ROWS),
    warm=st.sets(st.integers(0, NUM_ROWS - 1)),
    repeats=st.sampled_from([1, 4, 12]),
)
def test_cache_equals_one_written_row_by_row(batches, num_slots, policy, frequency, warm, repeats) -> None:
    """Hits, fetched and written-back rows are those of loops over rows; a batch that cannot fit is refused."""
    batches = [batch * repeats for batch in batches]
    cache, filled = BatchCache(num_slots, policy, np.array(frequency), seed=0), sorted(warm)[:num_slots]
    cache.warm_up(np.array(filled, dtype=np.int64))
    if policy == "belady":  # it counts batches, of which refused ones are none
        batches = [batch for batch in batches if len(set(batch)) <= num_slots]
        cache.foresee(Future.of(map(np.array, batches), NUM_ROWS))
    fitting = [batch for batch in batches if len(set(batch)) <= num_slots]
    found = []
    for batch in batches:
        if batch not in fitting:
            with pytest.raises(CacheTooSmallError) as caught:
                cache.prepare(np.array(batch))
            assert caught.value.num_unique == len(set(batch))
            continue
        prepared = cache.prepare(np.array(batch))
        hits = int(prepared.lookups[prepared.is_hit].sum())
        found.append((hits, prepared.rows_in.tolist(), prepared.rows_out.tolist()))
    assert found == row_by_row(fitting, num_slots, policy, frequency, filled)


def che(popularity: np.ndarray, num_slots: int, policy: PolicyName) -> float:
    """Return the hit rate by Che's approximation (LRU; IEEE JSAC 2002), or by its counterpart of FIFO and random."""

    def resident(time: float) -> np.ndarray:
        return 1 - np.exp(-popularity * time) if policy == "lru" else popularity * time / (1 + popularity * time)

    time = brentq(lambda time: resident(time).sum() - num_slots, 1e-9, 1e9)
    return float((popularity * resident(time)).sum())


def measured(run: CacheRun, first: int) -> tuple[float, float, float]:
    """Return hit rates of lookups and of different rows, and fetched rows, from a batch on."""
    hits = run.hits[first:].sum() / run.lookups[first:].sum()
    return hits, run.unique_hits[first:].sum() / run.unique_rows[first:].sum(), float(run.rows_in[first:].mean())


@pytest.mark.parametrize(("policy", "stated"), [("lru", 0.397629), ("fifo", None), ("random", None)])
def test_single_lookups_follow_closed_forms(policy: PolicyName, stated: float | None) -> None:
    """One lookup per batch, 100 rows of Zipf 1 and 10 slots: hit rates within 0.03 of the approximations."""
    table = Table(name="t", num_rows=100, num_lookups=1, zipf=1.0)
    expected = che(table.popularity(), 10, policy)
    if stated is not None:
        assert expected == pytest.approx(stated, abs=1e-6)
    run = run_cache([table], CacheSpec(num_slots=10, policy=policy, warm_up=0.7), 3000, 1, seed=3)
    assert measured(run, 300)[0] == pytest.approx(expected, abs=0.03)


def test_most_popular_rows_have_the_stated_hit_rate() -> None:
    """The hit rate of the most popular rows, for 10,000 and 1,000 rows of Zipf 1.05 and a tenth of them: to 1e-6."""
    for num_rows, expected in ((10_000, 0.806644), (1_000, 0.731554)):
        table = Table(name="t", num_rows=num_rows, num_lookups=1, zipf=1.05)
        cache = CacheSpec(num_slots=num_rows // 10, policy="lru", warm_up=0.0)
        assert run_cache([table], cache, 1, 1, seed=0).static_hit_rate == pytest.approx(expected, abs=1e-6)


def test_count_cache_of_a_million_rows_is_as_stated() -> None:
    """1.5 % of a million rows by counts in the cache: within 1.5 % of other code, which ran 200 batches before."""
    table = Table(name="t", num_rows=1_000_000, num_lookups=26, zipf=1.05)
    run = run_cache([table], CacheSpec(num_slots=15_000, policy="lfu", warm_up=0.0), 120, 512, seed=1)
    assert measured(run, 80) == pytest.approx((0.76080, 0.44878, 3155.1), rel=0.015)


def test_counts_are_better_than_last_use_and_worse_than_the_data_sets_frequency() -> None:
    """A tenth of 10,000 rows of Zipf 1.05: LRU, then LFU, then the rows that the data set reads most."""
    table = Table(name="t", num_rows=10_000, num_lookups=2, zipf=1.05)
    runs = [
        run_cache([table], CacheSpec(num_slots=1_000, policy=policy, warm_up=0.0), 900, 64, seed=1)
        for policy in ("lru", "lfu", "dataset_frequency")
    ]
    lru, lfu, frequency = (measured(run, 450)[0] for run in runs)
    assert lru + 0.01 < lfu < frequency - 0.005 < runs[0].static_hit_rate


def test_frequency_cache_of_a_million_rows_is_as_stated() -> None:
    """1.5 % of a million rows of Zipf 1.05, 512 x 26 lookups per batch: within 1 % of a simulation by other code."""
    table = Table(name="t", num_rows=1_000_000, num_lookups=26, zipf=1.05)
    run = run_cache([table], CacheSpec(num_slots=15_000, policy="dataset_frequency", warm_up=0.7), 40, 512, seed=1)
    assert run.static_hit_rate == pytest.approx(0.778147, abs=1e-6)
    assert measured(run, 20) == pytest.approx((0.76852, 0.46557, 3059.0), rel=0.01)


def test_no_policy_fetches_fewer_rows_than_belady() -> None:
    """Over the whole run, from a cache that is warm or empty; the light-weight LFU fetches about what LFU does."""
    tables = [
        Table(name="a", num_rows=2_000, num_lookups=3, zipf=1.05),
        Table(name="b", num_rows=300, num_lookups=1, zipf=1.0),
    ]
    for warm_up in (0.0, 0.7):
        names: tuple[PolicyName, ...] = ("belady", "dataset_frequency", "lfu", "light_lfu", "lru", "fifo", "random")
        specs = {name: CacheSpec(num_slots=250, policy=name, warm_up=warm_up) for name in names}
        fetched = {name: int(run_cache(tables, spec, 60, 32, 1).rows_in.sum()) for name, spec in specs.items()}
        assert all(fetched["belady"] < rows for name, rows in fetched.items() if name != "belady")
        assert fetched["light_lfu"] == pytest.approx(fetched["lfu"], rel=0.03)


@given(counts=st.lists(st.integers(0, 3), min_size=1, max_size=12), num_rows=st.integers(0, 14))
def test_most_popular_rows_are_those_of_a_sort(counts: list[int], num_rows: int) -> None:
    """The rows of highest counts, of equals the first ones."""
    in_order = sorted(range(len(counts)), key=lambda row: -counts[row])
    assert most_popular(np.array(counts, dtype=float), num_rows).tolist() == sorted(in_order[:num_rows])


def test_batches_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch) -> None:
    """One by one, or all at once: the same ids for every worker."""
    drifts = Drift(every=3, fraction=0.5), None
    tables = [
        Table(name=str(number), num_rows=50, num_lookups=number, zipf=1.0, drift=drift)
        for number, drift in enumerate(drifts, 1)
    ]
    found = []
    for at_once in (1, 50, 10_000):
        monkeypatch.setattr("sim.embedding.ids._DRAWN_AT_ONCE", at_once)
        source = IdSource(tables, seed=3)
        found.append([batch.tolist() for worker in (0, 2) for batch in source.batches(7, 4, worker)])
    assert found[0] == found[1] == found[2]


def test_ranks_are_those_of_a_search_in_the_sums() -> None:
    """Every drawn rank is the first whose cumulative popularity is above the number drawn."""
    for table in (Table(name="t", num_rows=rows, num_lookups=1, zipf=zipf) for rows in (1, 7, 500) for zipf in (0, 2)):
        draws = np.random.default_rng(1).random((3, 500))
        popularity = table.popularity()
        expected = np.searchsorted(np.cumsum(popularity), draws, side="right")
        assert np.array_equal(_Cumulative(popularity).search(draws), expected)


def test_ids_of_tables_are_apart_and_as_often_as_stated() -> None:
    """Each table's ids lie in its own rows, as many as it has lookups, and popular rows come as often as stated."""
    tables = [
        Table(name="a", num_rows=5, num_lookups=2, zipf=1.0),
        Table(name="b", num_rows=3, num_lookups=1, zipf=0.0),
    ]
    source = IdSource(tables, seed=1)
    (ids,) = source.batches(1, 30_000)
    assert ids[:60_000].max() < 5 <= ids[60_000:].min()
    counted = np.bincount(ids, minlength=8) / 30_000
    assert counted == pytest.approx(source.lookups_per_sample(), abs=0.02)


def test_popularity_drifts_for_all_workers_together() -> None:
    """Until the first drift ids are those without one; then every worker has other popular rows, the same for all."""
    steady, drifting = (
        IdSource([Table(name="t", num_rows=60, num_lookups=1, zipf=3.0, drift=drift)], seed=3)
        for drift in (None, Drift(every=4, fraction=1.0))
    )
    plain, found = (list(source.batches(12, 500, 1)) for source in (steady, drifting))
    assert np.array_equal(plain[:4], found[:4])
    favourites = [[np.bincount(batch).argmax() for batch in drifting.batches(12, 500, worker)] for worker in (0, 1)]
    assert favourites[0] == favourites[1]
    assert [len(set(favourites[0][first : first + 4])) for first in (0, 4, 8)] == [1, 1, 1]
    assert len(set(favourites[0])) == 3


def test_drift_misleads_counts_of_the_past() -> None:
    """After all rows have changed ranks, last use finds as many as before; counts lose, those of old data most."""
    lost = []
    for policy in ("lru", "light_lfu", "dataset_frequency"):
        rates = []
        for drift in (None, Drift(every=150, fraction=1.0)):
            table = Table(name="t", num_rows=2_000, num_lookups=1, zipf=1.2, drift=drift)
            run = run_cache([table], CacheSpec(num_slots=100, policy=policy, warm_up=0.0), 200, 64, seed=1)
            rates.append(run.hits[155:].sum() / run.lookups[155:].sum())
        lost.append(rates[0] - rates[1])
    assert abs(lost[0]) < 0.02
    assert 0.05 < lost[1] < lost[2]


@pytest.mark.parametrize("zipf", [0.8, 1.2])
def test_recorded_lookups_tell_their_zipf_exponent(zipf: float) -> None:
    """The fitted exponent is that from which ids were drawn; a few lookups, or even ones, tell none."""
    source = IdSource([Table(name="t", num_rows=5_000, num_lookups=1, zipf=zipf)], seed=2)
    (ids,) = source.batches(1, 150_000)
    found = popularity_of(ids)
    assert found.num_different == len(set(ids.tolist()))
    assert found.zipf == pytest.approx(zipf, abs=0.05)
    assert popularity_of(ids[:50]).zipf is None
