"""The kernels on blocks of a mesh: parts of rows and blocks of tables add up to whole ones."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as nn

from tests.backends.kernels.test_kernels import B, H, S, V, assert_close, gradients, random, run

PARTS = 2


def cut(x: Tensor) -> list[Tensor]:
    """Return the parts of the last dimension."""
    return [part.contiguous() for part in x.chunk(PARTS, -1)]


@pytest.mark.parametrize("centred", [True, False])
def test_norms_of_parts_of_rows_are_the_norm_of_the_rows(*, centred: bool) -> None:
    """With the sums of all parts added up, outputs and gradients are torch's layer norm and RMS norm."""
    x, dy, weight, bias = random(S, B, H), random(S, B, H, seed=1), random(H, seed=2), random(H, seed=3)

    def whole(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        if centred:
            return nn.layer_norm(x, (H,), weight, bias[0], 1e-5)
        return nn.rms_norm(x, (H,), weight, 1e-5)

    parameters = (weight, bias) if centred else (weight,)
    of_rank = list(zip(*map(cut, (x, dy, *parameters)), strict=True))
    total = sum((run("norm_sums", part[0], centred=centred)[0] for part in of_rank), torch.zeros(()))
    attributes = {"width": H, "epsilon": 1e-5}
    y = [run("norm_of_sums", own, *values, total, **attributes)[0] for own, _, *values in of_rank]
    assert_close([torch.cat(y, -1)], [whole(x, *parameters)])
    given = [(d, own, values[0], total) for own, d, *values in of_rank]
    back = sum((run("norm_backward_sums", *inputs, **attributes)[0] for inputs in given), torch.zeros(()))
    made = [run("norm_of_sums_backward", *inputs, back, **attributes) for inputs in given]
    expected = gradients(whole, (x, *parameters), dy)
    assert_close([torch.cat(parts, -1) for parts in zip(*made, strict=True)], expected)
    before = [random(H // PARTS, seed=7) for _ in parameters]
    accumulated = run("norm_of_sums_backward", *given[1], back, *[x.clone() for x in before], **attributes)[1:]
    assert_close(accumulated, [b + g for b, g in zip(before, made[1][1:], strict=True)])


def test_lookups_in_all_blocks_of_a_table_are_a_lookup_in_the_table() -> None:
    """Blocks add up to the rows of the table, and each block has its part of the table's gradient."""
    table, dy = random(V, H), random(S, B, H, seed=1)
    ids = torch.randint(V, (S, B), generator=torch.Generator().manual_seed(3))
    y: tuple[Tensor, ...] = ()
    made = []
    for block, rows in enumerate(table.chunk(PARTS)):
        y = run("block_embedding", ids, rows.contiguous(), *y, block=block)
        made += run("block_embedding_backward", ids, dy, block=block, rows=V // PARTS)
    assert_close(y, [nn.embedding(ids, table)])
    assert_close([torch.cat(made)], gradients(lambda t: nn.embedding(ids, t), (table,), dy))


def test_a_bias_is_added_to_every_row_in_place() -> None:
    """The bias has the last dimensions, one or several."""
    x, bias = random(S, B, H, 2), random(H, 2, seed=1)
    expected = x + bias
    (y,) = run("add_bias", bias, x)
    assert y is x
    assert_close([y], [expected])
