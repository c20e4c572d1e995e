"""Trainings of cached embedding tables: the simulated counts, and the bits of tables without a cache."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.execution.embedding import EmbeddingRequest
from backends.registry import load_torch_backend
from backends.torch.embedding.cached_rows import CachedRows, Copied
from sim.embedding.errors import CacheTooSmallError
from sim.embedding.ids import Table
from sim.embedding.policies import PolicyName
from sim.embedding.run import CacheSpec, run_cache

tables = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 3), st.floats(0.0, 2.0)), min_size=1, max_size=3).map(
    lambda rows: [Table(name=str(i), num_rows=n, num_lookups=k, zipf=z) for i, (n, k, z) in enumerate(rows)]
)


@settings(max_examples=12)
@given(
    tables=tables,
    policy=st.sampled_from([name for name in get_args(PolicyName) if name != "belady"]),
    num_slots=st.integers(1, 60),
    warm_up=st.floats(0.0, 1.0),
    batch_size=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_training_counts_as_simulated_and_ends_with_equal_bits(
    tables, policy, num_slots, warm_up, batch_size, seed
) -> None:
    """Hits, rows and bytes of every batch are the simulated ones, and weights those without a cache, bit by bit."""
    cache = CacheSpec(num_slots=num_slots, policy=policy, warm_up=warm_up)
    request = EmbeddingRequest(
        tables=tables, embedding_dim=3, cache=cache, num_batches=6, batch_size=batch_size, seed=seed, check=True
    )
    try:
        simulated = run_cache(tables, cache, 6, batch_size, seed)
    except CacheTooSmallError as error:
        with pytest.raises(CacheTooSmallError, match=str(error)):
            load_torch_backend().train_embeddings(request)
        return
    found = load_torch_backend().train_embeddings(request)
    assert found.hits.tolist() == simulated.hits.sum(axis=1).tolist()
    assert found.rows_in.tolist() == simulated.rows_in.tolist()
    assert found.rows_out.tolist() == simulated.rows_out.tolist()
    assert found.in_bytes.tolist() == (12 * simulated.rows_in).tolist()
    assert found.out_bytes.tolist() == (12 * simulated.rows_out).tolist()
    assert found.differing_weights == 0


REQUEST = EmbeddingRequest(
    tables=[Table(name="t", num_rows=40, num_lookups=2, zipf=0.5)],
    embedding_dim=4,
    cache=CacheSpec(num_slots=16, policy="lru", warm_up=0.0),
    num_batches=8,
    batch_size=6,
    seed=1,
    check=True,
)


def test_rows_that_are_not_written_back_are_noticed(monkeypatch) -> None:
    """A cache that forgets the changes of rows that give way ends with other weights."""
    monkeypatch.setattr(CachedRows, "_write_back", lambda _, slots: Copied(len(slots), 0))
    found = load_torch_backend().train_embeddings(REQUEST)
    assert found.differing_weights is not None
    assert found.differing_weights > 0


def test_rows_in_wrong_slots_are_noticed(monkeypatch) -> None:
    """A device that fetches other rows than the cache decided counts other hits."""
    fetch = CachedRows._fetch
    monkeypatch.setattr(CachedRows, "_fetch", lambda self, rows, slots: fetch(self, np.sort(rows)[::-1].copy(), slots))
    found = load_torch_backend().train_embeddings(REQUEST)
    simulated = run_cache(REQUEST.tables, REQUEST.cache, REQUEST.num_batches, REQUEST.batch_size, REQUEST.seed)
    assert found.hits.sum() < simulated.hits.sum()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_on_a_gpu_counts_as_simulated() -> None:
    """Rows that move between pinned memory and a GPU are those of the simulation."""
    found = load_torch_backend().train_embeddings(replace(REQUEST, device="cuda", check=False))
    simulated = run_cache(REQUEST.tables, REQUEST.cache, REQUEST.num_batches, REQUEST.batch_size, REQUEST.seed)
    assert found.hits.tolist() == simulated.hits.sum(axis=1).tolist()
