"""Kernels of click models against autograd, in float64, and the work of finding and moving rows."""

import pytest
import torch
from torch.nn import functional as nn

from costmodels.kernels import KERNELS, TensorSpec
from sim.embedding.ids import Table
from sim.embedding.rank_batch import rank_batches
from sim.embedding.run import CacheSpec
from tests.backends.kernels.test_kernels import assert_close, gradients, random, run

SAMPLES, TABLES, WIDTH = 5, 3, 4
VECTORS = random(SAMPLES, TABLES, WIDTH)


def test_relu_matches_autograd() -> None:
    """Forward and backward are those of torch."""
    x, dy = random(SAMPLES, WIDTH), random(SAMPLES, WIDTH, seed=1)
    assert_close(run("relu", x), [torch.relu(x)])
    assert_close(run("relu_backward", dy, x), gradients(torch.relu, [x], dy))


@pytest.mark.parametrize("width", [WIDTH, WIDTH - 1])
def test_features_lie_side_by_side(width: int) -> None:
    """Numbers come first, then each vector's first elements; the gradient of the others is zero."""
    numbers, dy = random(SAMPLES, 2), random(SAMPLES, 2 + TABLES * width, seed=1)

    def joined(vectors: torch.Tensor) -> torch.Tensor:
        return torch.cat([numbers, *(vectors[:, table, :width] for table in range(TABLES))], dim=1)

    assert_close(run("features", numbers, VECTORS, width=width), [joined(VECTORS)])
    assert_close(run("features_backward", dy, VECTORS, width=width), gradients(joined, [VECTORS], dy))


def test_dot_interaction_matches_products_one_by_one() -> None:
    """Each pair of x and the vectors is multiplied once; the FLOP are those of all products in a matrix."""
    x, pairs = random(SAMPLES, WIDTH), TABLES * (TABLES + 1) // 2
    dy = random(SAMPLES, WIDTH + pairs, seed=1)

    def interaction(x: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        every = [x, *vectors.unbind(1)]
        products = [(every[i] * every[j]).sum(1, keepdim=True) for i in range(len(every)) for j in range(i)]
        return torch.cat([x, *products], dim=1)

    assert_close(run("dot_interaction", x, VECTORS), [interaction(x, VECTORS)])
    assert_close(run("dot_interaction_backward", dy, x, VECTORS), gradients(interaction, [x, VECTORS], dy))


@pytest.mark.parametrize("pairs", [False, True])
def test_factorization_matches_sums_one_by_one(*, pairs: bool) -> None:
    """The last column is added up; with pairs the products of each two vectors without it, too."""

    def summed(vectors: torch.Tensor) -> torch.Tensor:
        total = vectors[:, :, -1].sum(1, keepdim=True)
        for i in range(TABLES if pairs else 0):
            for j in range(i):
                total = total + (vectors[:, i, :-1] * vectors[:, j, :-1]).sum(1, keepdim=True)
        return total

    dy = random(SAMPLES, 1, seed=1)
    assert_close(run("factorization", VECTORS, pairs=pairs), [summed(VECTORS)])
    assert_close(run("factorization_backward", dy, VECTORS, pairs=pairs), gradients(summed, [VECTORS], dy))


def test_cross_layer_matches_autograd() -> None:
    """The gradients of x0 and of the product are autograd's; x's is dy itself."""
    x0, s, bias, x, dy = (random(*shape) for shape in ((5, 6), (5, 1), (6,), (5, 6), (5, 6)))
    assert_close(run("cross", x0, s, bias, x), [x0 * s + bias + x])
    assert_close(run("cross_backward", dy, x0, s), gradients(lambda a, b: a * b + bias + x, [x0, s], dy))


def test_logistic_loss_is_the_rank_s_part_of_the_mean() -> None:
    """Five of ten samples have half of the mean loss."""
    logits, labels, loss = random(SAMPLES, 1), (random(SAMPLES, 1, seed=1) > 0).double(), torch.zeros(1).double()
    expected = nn.binary_cross_entropy_with_logits(logits, labels) / 2
    assert_close(run("logistic_loss", logits, labels, loss, batch_size=10), [expected.reshape(1)])
    found = gradients(lambda x: nn.binary_cross_entropy_with_logits(x, labels) / 2, [logits], torch.tensor(1.0))
    assert_close(run("logistic_loss_backward", logits, labels, batch_size=10), found)


def test_rows_read_and_written_are_counted() -> None:
    """Sums read a row per lookup; moved rows are read and written once; finding sorts ids, and the cache's rows."""
    tables = [Table(name="a", num_rows=100, num_lookups=2, zipf=1.0)]
    cache = CacheSpec(num_slots=20, policy="lru", warm_up=1.0)
    ((batch,),) = rank_batches(tables, cache, ("row", 1), range(3, 4), 8, 0)
    row, ids = TensorSpec((batch.num_slots, 32), "float32"), TensorSpec((16,), "int64")
    maps = TensorSpec((240,), "int64")

    def work(kernel: str, *inputs: TensorSpec, **attributes: object):
        return KERNELS[kernel].work(inputs, KERNELS[kernel].outputs(inputs, attributes), attributes)

    sums = work("pool_rows", row, ids, ids, bags=(8, 1))
    assert (sums.bytes_read, sums.bytes_written) == (16 * 128 + 2 * 16 * 8, 8 * 128)
    moved = work("gather_rows", row, TensorSpec((3,), "int64"), count=3, bytes_per_s=384.0)
    assert (moved.bytes_read, moved.bytes_written, moved.duration_s) == (3 * 136, 3 * 128, 1.0)
    rows = TensorSpec((batch.num_unique,), "int64")
    assert work("unique_rows", ids, batch=batch).executed_flop == 16
    assert work("search_cache", rows, ids, maps, batch=batch).executed_flop == batch.num_unique + batch.num_slots
