"""Every torch kernel against autograd or torch.nn.functional, in float64."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as nn

from backends.torch.kernels import DTYPES, KERNELS, KernelContext, RankContext
from backends.torch.values.slicing import flat_piece
from costmodels.kernels import KERNELS as COST_KERNELS
from costmodels.kernels import TensorSpec
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.mesh import Mesh

MESH = Mesh((("dp", 2), ("tp", 2)))
S, B, N, G, D, H, F, V = 6, 3, 4, 2, 4, 8, 10, 12
TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
WITH_PRODUCTS = {"gemm", "attention", "attention_backward", "decode"}  # their FLOP are those of matrix products


def rank_context(rank: int = 0, step: int = 0, slept: list[float] | None = None) -> RankContext:
    """Return the context of one of four ranks."""
    return RankContext(MESH, rank, 5, step, torch.device("cpu"), (slept if slept is not None else []).append)


def run(kernel: str, *inputs: Tensor, rank: int = 0, microbatch: int = 0, **attributes: Any) -> tuple[Tensor, ...]:
    """Run a kernel and hold its outputs to the cost model's shapes and types; its work must be sound."""
    cost, specs = COST_KERNELS[kernel], [spec_of(x) for x in inputs]
    spec = cost.outputs(specs, attributes)
    work = cost.work(specs, spec, attributes)
    assert work.bytes_written <= sum(tensor.num_bytes for tensor in spec)
    assert (work.flop > 0 or kernel.startswith("einsum_")) == (cost.family in WITH_PRODUCTS) == (work.gemm is not None)
    assert work.executed_flop >= 0
    outputs = KERNELS[kernel](KernelContext(rank_context(rank), microbatch), inputs, attributes)
    assert [spec_of(y) for y in outputs] == list(spec)
    for y in outputs:
        assert y.is_contiguous()
        assert y.untyped_storage().nbytes() == y.numel() * y.element_size()
        shared = [x for x in inputs if x.numel() and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()]
        assert all(x is y for x in shared), "an output shares its memory with an input"
    return outputs


def spec_of(x: Tensor) -> TensorSpec:
    """Return shape and type as the cost models name them."""
    return TensorSpec(tuple(x.shape), str(x.dtype).removeprefix("torch."))


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return seeded normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 97 * len(shape)), dtype=dtype)


def gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], dy: Tensor) -> tuple[Tensor, ...]:
    """Return autograd's gradients of a function of some tensors."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, dy)


def assert_close(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Compare tensors one by one."""
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, **TOLERANCE)


def test_registries_have_the_same_kernels() -> None:
    """A kernel has a cost and a torch implementation, or neither."""
    assert set(KERNELS) == set(COST_KERNELS)


# --- matrix products ---------------------------------------------------------------------------------------

PRODUCTS = [
    pytest.param((S, B, H), (H, F), {}, "sbh,hf->sbf", id="plain"),
    pytest.param((S, B, H), (H, G, 4, D), {"contract": 1}, "sbh,hgcd->sbgcd", id="several output dimensions"),
    pytest.param((S, B, N, D), (N, D, H), {"contract": 2}, "sbnd,ndh->sbh", id="two contracted dimensions"),
    pytest.param((S, B, H), (V, H), {"transposed": True}, "sbh,vh->sbv", id="transposed"),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes", "equation"), PRODUCTS)
def test_matmul_and_its_gradients_match_einsum(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], equation: str
) -> None:
    """Forward, input gradient and weight gradient, accumulated or not, are those of the same einsum."""
    x, w = random(*x_shape), random(*w_shape, seed=1)
    (y,) = run("matmul", x, w, **attributes)
    assert_close([y], [torch.einsum(equation, x, w)])
    dy, before = random(*y.shape, seed=2), random(*w_shape, seed=3)
    dx, dw = gradients(lambda a, b: torch.einsum(equation, a, b), (x, w), dy)
    accumulated = before.clone()
    (returned,) = run("matmul_weight_gradient", x, dy, accumulated, **attributes)
    assert returned is accumulated
    assert_close(run("matmul_weight_gradient", x, dy, **attributes), [dw])
    assert_close([*run("matmul_input_gradient", dy, w, **attributes), accumulated], [dx, before + dw])


def test_matmul_adds_its_bias() -> None:
    """The bias has the weight's output dimensions."""
    x, w, bias = random(S, B, H), random(H, G, 4, D, seed=1), random(G, 4, D, seed=2)
    (y,) = run("matmul", x, w, bias)
    assert_close([y], [torch.einsum("sbh,hgcd->sbgcd", x, w) + bias])


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("x_shape", "w_shape", "attributes", "equation"), PRODUCTS)
def test_parts_of_a_product_sum_to_the_whole(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], equation: str, count: int
) -> None:
    """Products of parts of the weight add up, their input gradients lie side by side, each has its weight gradient."""
    x, w = random(*x_shape), random(*w_shape, seed=1)
    parts = [part.contiguous() for part in w.chunk(count, 1 if attributes.get("transposed") else 0)]
    expected = torch.einsum(equation, x, w)
    dy = random(*expected.shape, seed=2)
    dx, dw = gradients(lambda a, b: torch.einsum(equation, a, b), (x, w), dy)
    y: tuple[Tensor, ...] = ()
    made: tuple[Tensor, ...] = ()
    for index, part in enumerate(parts):
        given = {**attributes, "part": (index, count)}
        y = run("matmul_part", x, part, *y, **given)
        made = run("matmul_part_input_gradient", dy, part, *made, **given)
        before = random(*part.shape, seed=3)
        (accumulated,) = run("matmul_part_weight_gradient", x, dy, before.clone(), **given)
        own = dw.chunk(count, 1 if attributes.get("transposed") else 0)[index]
        assert_close([accumulated, *run("matmul_part_weight_gradient", x, dy, **given)], [before + own, own])
    assert_close([*y, *made], [expected, dx])
    bias = random(*expected.shape[-1:], seed=5)
    if expected.dim() == 3:
        (again,) = run(
            "matmul_part", x, parts[-1], torch.zeros_like(expected), bias, part=(count - 1, count), **attributes
        )
        last = run("matmul_part", x, parts[-1], part=(count - 1, count), **attributes)[0]
        assert_close([again], [last + bias])


@pytest.mark.parametrize("rank", [0, 1])
def test_products_of_pieces_of_rows_are_those_of_the_whole(rank: int) -> None:
    """Each piece fills its rank's rows, its own first, and rows, bias and weight gradients are the whole product's."""
    x, w, bias, dy = random(S, B, H), random(H, F, seed=1), random(F, seed=2), random(S, B, F, seed=3)
    given = {"pieces": 2, "axes": ("tp",)}
    own = [[whole.chunk(2)[(rank + number) % 2].contiguous() for number in range(2)] for whole in (x, dy)]
    y: tuple[Tensor, ...] = ()
    dx: tuple[Tensor, ...] = ()
    for number, (x_piece, dy_piece) in enumerate(zip(*own, strict=True)):
        told = {**given, "piece": number, "fills": number > 0}
        y = run("matmul_piece", x_piece, w, bias, *y, rank=rank, **told)
        dx = run("matmul_piece_input_gradient", dy_piece, w, *dx, rank=rank, **told)
        (rows,) = run("matmul_rows", x, w, rank=rank, piece=number, **given)
        assert_close([rows], [(x @ w).chunk(2)[(rank + number) % 2]])
    assert_close([*y, *dx], [x @ w + bias, dy @ w.T])
    before, expected = random(H, F, seed=4), torch.einsum("sbk,sbn->kn", x, dy)
    for in_pieces, operands in (("x", (*own[0], dy)), ("dy", (x, *own[1]))):
        kernel, told = "matmul_pieces_weight_gradient", {**given, "in_pieces": in_pieces}
        accumulated = run(kernel, *operands, before.clone(), rank=rank, **told)
        assert_close([*accumulated, *run(kernel, *operands, rank=rank, **told)], [before + expected, expected])


def test_bias_gradient_sums_over_all_but_the_bias_dimensions() -> None:
    """One and several trailing dimensions alike, added to what is there, or made anew."""
    dx = random(S, B, G, 4, D)
    for shape in ((D,), (G, 4, D)):
        gradient = random(*shape, seed=4)
        total = dx.sum(tuple(range(5 - len(shape))))
        assert_close(run("bias_gradient", dx, gradient.clone()), [gradient + total])
        assert_close(run("bias_gradient", dx, dims=len(shape)), [total])


# --- attention ---------------------------------------------------------------------------------------------


def attention(q: Tensor, k: Tensor, v: Tensor, window: int = 0) -> Tensor:
    """Return causal attention by torch's own function; ``window``: keys that a query sees at most."""
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    seen = seen.triu(1 - window) if window else seen
    return nn.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).permute(2, 0, 1, 3)


def separate_attention(q: Tensor, k: Tensor, v: Tensor, **seen: int) -> tuple[Tensor, Tensor]:
    """Return attention and its probabilities by the separate kernels."""
    (scores,) = run("attention_scores", q, k, **seen)
    (probs,) = run("causal_softmax", scores, **seen)
    return run("attention_context", probs, v)[0], probs


@pytest.mark.parametrize(("sequence", "width"), [(S, D), (300, D), (300, 3)])
def test_attention_matches_torch(sequence: int, width: int) -> None:
    """Separate and fused kernels equal torch's: grouped heads, several query blocks, values of another width."""
    q, k, v = random(sequence, 1, N, D), random(sequence, 1, G, D, seed=1), random(sequence, 1, G, width, seed=2)
    expected = attention(q, k, v)
    y, lse = run("flash_attention", q, k, v)
    assert_close([y, separate_attention(q, k, v)[0]], [expected, expected])
    scores = run("attention_scores", q, k)[0].masked_fill(torch.ones(sequence, sequence).triu(1) > 0, -torch.inf)
    assert_close([lse], [scores.logsumexp(-1)])


@pytest.mark.parametrize(("sequence", "width"), [(S, D), (300, D), (300, 3)])
def test_attention_gradients_match_torch(sequence: int, width: int) -> None:
    """Separate and fused backward kernels equal autograd through torch's attention."""
    q, k, v = random(sequence, 1, N, D), random(sequence, 1, G, D, seed=1), random(sequence, 1, G, width, seed=2)
    dy = random(sequence, 1, N, width, seed=3)
    expected = gradients(attention, (q, k, v), dy)
    y, lse = run("flash_attention", q, k, v)
    assert_close(run("flash_attention_backward", dy, q, k, v, y, lse), expected)
    _, probs = separate_attention(q, k, v)
    dprobs, dv = run("attention_context_backward", dy, probs, v)
    (dscores,) = run("causal_softmax_backward", dprobs, probs)
    dq, dk = run("attention_scores_backward", dscores, q, k)
    assert_close((dq, dk, dv), expected)


@pytest.mark.parametrize(("sequence", "window"), [(S, 2), (S, 1), (300, 7), (300, 256), (600, 290)])
def test_attention_in_a_window_matches_torch(sequence: int, window: int) -> None:
    """Separate and fused kernels, forward and backward, equal torch's attention with such a mask."""
    q, k, v = random(sequence, 1, N, D), random(sequence, 1, G, D, seed=1), random(sequence, 1, G, D, seed=2)
    dy, expected = random(sequence, 1, N, D, seed=3), attention(q, k, v, window)
    whole = gradients(lambda *x: attention(*x, window), (q, k, v), dy)
    y, lse = run("flash_attention", q, k, v, window=window)
    separate, probs = separate_attention(q, k, v, window=window)
    assert_close([y, separate], [expected, expected])
    assert_close(run("flash_attention_backward", dy, q, k, v, y, lse, window=window), whole)
    dprobs, dv = run("attention_context_backward", dy, probs, v, window=window)
    (dscores,) = run("causal_softmax_backward", dprobs, probs, window=window)
    assert_close((*run("attention_scores_backward", dscores, q, k, window=window), dv), whole)


def sliced_attention(kernels: str, q: Tensor, k: Tensor, v: Tensor, dy: Tensor, cuts: Sequence[int]) -> list[Tensor]:
    """Return attention and the gradients of q, k and v, computed slice by slice over caches of keys and values."""
    edges, spans, saved = [0, *cuts, q.shape[0]], [], []
    for start, stop in pairwise(edges):
        spans.append(slice(start, stop))
        part, context = q[start:stop].contiguous(), {"context": start}
        if kernels == "flash":
            y, lse = run("flash_attention", part, k, v, **context)
            saved.append((part, k, v, y, lse))
        else:
            (probs,) = run("causal_softmax", *run("attention_scores", part, k, **context))
            (y,) = run("attention_context", probs, v, **context)
            saved.append((part, probs, y))
    dq, given = [], ()
    for rows, kept in reversed(list(zip(spans, saved, strict=True))):
        context, slope = {"context": rows.start}, dy[rows].contiguous()
        if kernels == "flash":
            first, *given = run("flash_attention_backward", slope, *kept, *given, **context)
        else:
            dprobs, dv = run("attention_context_backward", slope, kept[1], v, *given[1:], **context)
            (dscores,) = run("causal_softmax_backward", dprobs, kept[1])
            first, dk = run("attention_scores_backward", dscores, kept[0], k, *given[:1], **context)
            given = (dk, dv)
        dq.insert(0, first)
    return [torch.cat([kept[-2 if kernels == "flash" else -1] for kept in saved]), torch.cat(dq), *given]


@pytest.mark.parametrize("kernels", ["core", "flash"])
@pytest.mark.parametrize("cuts", [(), (3,), (1, 2, 5), (300,)])
def test_attention_in_slices_is_attention(kernels: str, cuts: tuple[int, ...]) -> None:
    """Slice by slice over caches, forward and backward are those of the whole sequence."""
    sequence = 520 if cuts == (300,) else 6
    q, k, v, dy = (random(sequence, 2, heads, D, seed=i) for i, heads in enumerate((N, G, G, N)))
    expected = [attention(q, k, v), *gradients(attention, (q, k, v), dy)]
    assert_close(sliced_attention(kernels, q, k, v, dy, cuts), expected)


def test_append_fills_a_cache_and_rows_takes_it_apart() -> None:
    """Slices of a tensor, appended one by one to one cache, make the tensor; its rows are the slices."""
    x = random(6, 2, G, D)
    (cache,) = run("append", x[:2].contiguous(), places=((0, 2),), rows=6)
    (again,) = run("append", x[2:].contiguous(), cache, places=((2, 4),), rows=6)
    assert again is cache
    assert_close([cache, *run("rows", cache, start=2, count=3)], [x, x[2:5]])
    assert_close(run("take_rows", cache, rows=(5, 1)), [x[[5, 1]]])
    (apart,) = run("append", x, places=((3, 4), (0, 2)), rows=7)
    assert_close([apart[[3, 4, 5, 6, 0, 1]]], [x])


@pytest.mark.parametrize(
    ("rows", "part"), [({"start": 2}, [2, 3, 4]), ({"dealt_over": "tp"}, [0, 1, 6, 7])], ids=["slice", "dealt"]
)
def test_positions_of_rows_are_those_in_the_whole(rows: dict[str, Any], part: list[int]) -> None:
    """Rotary angles, rows of learned positions and dropout masks of a slice, or of a rank's two chunks of four."""
    q, x, table = random(8, B, N, D), random(8, B, H), random(8, H, seed=1)
    assert_close(run("rotary", q[part], base=100.0, **rows), [run("rotary", q, base=100.0)[0][part]])
    (whole,) = run("add_positions", x, table, sequence_axes=())
    assert_close(run("add_positions", x[part], table, sequence_axes=(), **rows), [whole[part]])
    (dropped, mask) = run("dropout", x, **dropout_attributes())
    told = {"starts": (rows.get("start", 0), 0, 0), "dealt_over": (rows.get("dealt_over", ""), "", "")}
    (y, kept) = run("dropout", x[part], **dropout_attributes(**told))
    assert_close([y, kept], [dropped[part], mask[part]])


def test_split_qkv_orders_heads_by_group_and_merge_undoes_it() -> None:
    """Group j holds query heads j*r to j*r+r-1, then its key, then its value."""
    qkv = random(S, B, G, N // G + 2, D)
    q, k, v = run("split_qkv", qkv)
    assert_close([q[:, :, 3], k[:, :, 1], v[:, :, 1]], [qkv[:, :, 1, 1], qkv[:, :, 1, 2], qkv[:, :, 1, 3]])
    assert_close(run("merge_qkv", q, k, v), [qkv])


def test_rotary_turns_pairs_by_position_and_backward_turns_back() -> None:
    """Element i and i + d/2 of position p turn by p base^(-2i/d); backward is the transpose."""
    x = random(S, B, N, D)
    (y,) = run("rotary", x, base=100.0)
    angle = torch.tensor(5 * 100.0 ** (-2 / D), dtype=torch.float64)
    first, second = x[5, :, :, 1], x[5, :, :, 1 + D // 2]
    assert_close([y[5, :, :, 1]], [first * angle.cos() - second * angle.sin()])
    assert_close(run("rotary_backward", y, base=100.0), [x])


def test_rotary_of_some_channels_leaves_the_others() -> None:
    """The last ones are turned as a head of their own would be, and turned back."""
    x = random(S, B, N, 7)
    (y,) = run("rotary", x, base=100.0, width=4)
    assert_close([y[..., :3], y[..., 3:]], [x[..., :3], *run("rotary", x[..., 3:].contiguous(), base=100.0)])
    assert_close(run("rotary_backward", y, base=100.0, width=4), [x])


def test_latent_is_split_and_merged_again() -> None:
    """The channels of positions become one head, and come back behind the latent's."""
    x = random(S, B, 9)
    latent, position = run("split_latent", x, kv_rank=5)
    assert_close([latent, position[:, :, 0]], [x[..., :5], x[..., 5:]])
    assert_close(run("merge_latent", latent, position), [x])


def test_latent_heads_share_the_channels_of_positions() -> None:
    """Keys are a head's own channels and the shared ones; backward is autograd's, the shared ones' a sum over heads."""

    def keys_and_values(kv: Tensor, position: Tensor) -> Tensor:
        k = torch.cat((kv[..., :4], position.expand(S, B, N, 2)), -1)
        return torch.cat((k, kv[..., 4:]), -1)

    kv, position = random(S, B, N, 7), random(S, B, 1, 2, seed=1)
    dk, dv = random(S, B, N, 6, seed=2), random(S, B, N, 3, seed=3)
    k, v = run("latent_heads", kv, position, head_size=4)
    assert_close([torch.cat((k, v), -1)], [keys_and_values(kv, position)])
    expected = gradients(keys_and_values, (kv, position), torch.cat((dk, dv), -1))
    assert_close(run("latent_heads_backward", dk, dv, head_size=4), expected)


# --- element-wise ------------------------------------------------------------------------------------------


def test_layer_norm_matches_torch() -> None:
    """Forward, input gradient and accumulated parameter gradients."""
    x, weight, bias, dy = random(S, B, H), random(H, seed=1), random(H, seed=2), random(S, B, H, seed=3)
    y, mean, rstd = run("layer_norm", x, weight, bias, epsilon=1e-5)
    assert_close([y], [nn.layer_norm(x, (H,), weight, bias, 1e-5)])
    expected = gradients(lambda a, w, b: nn.layer_norm(a, (H,), w, b, 1e-5), (x, weight, bias), dy)
    sums = [torch.ones(H, dtype=torch.float64) for _ in range(2)]
    dx, *updated = run("layer_norm_backward", dy, x, weight, mean, rstd, *sums)
    assert updated[0] is sums[0]
    assert_close([dx, *sums], [expected[0], 1 + expected[1], 1 + expected[2]])
    assert_close(run("layer_norm_backward", dy, x, weight, mean, rstd), expected)


def test_rms_norm_matches_torch() -> None:
    """Forward, input gradient and accumulated weight gradient."""
    x, weight, dy = random(S, B, H), random(H, seed=1), random(S, B, H, seed=3)
    y, rstd = run("rms_norm", x, weight, epsilon=1e-5)
    assert_close([y], [nn.rms_norm(x, (H,), weight, 1e-5)])
    expected = gradients(lambda a, w: nn.rms_norm(a, (H,), w, 1e-5), (x, weight), dy)
    total = torch.ones(H, dtype=torch.float64)
    dx, _ = run("rms_norm_backward", dy, x, weight, rstd, total)
    assert_close([dx, total], [expected[0], 1 + expected[1]])
    assert_close(run("rms_norm_backward", dy, x, weight, rstd), expected)


def dropout_attributes(**changes: Any) -> dict[str, Any]:
    """Return the attributes of a dropout over [S, B, H], sharded over nothing."""
    return {
        "probability": 0.3, "salt": "x", "shape": (S, B, H), "axes": ((), (), ()), "batch_dim": 1, **changes,
    }  # fmt: skip


def test_dropout_keeps_and_scales_and_backward_drops_the_same() -> None:
    """Kept elements are divided by 1 - p; about p of all are dropped; backward uses the same mask."""
    x = torch.ones(100, 3, 100, dtype=torch.float64)
    y, mask = run("dropout", x, **dropout_attributes(shape=(100, 3, 100)))
    assert_close([y], [mask.double() / 0.7])
    assert float(mask.double().mean()) == pytest.approx(0.7, abs=0.01)
    assert_close(run("dropout_backward", x, mask, probability=0.3), [y])


def test_dropout_of_a_shard_is_the_shard_of_the_dropout() -> None:
    """Rank 1 of tp, with half the rows, drops what the whole drops there."""
    x = random(S, B, H)
    whole, _ = run("dropout", x, rank=0, **dropout_attributes())
    half, _ = run("dropout", x[S // 2 :].contiguous(), rank=1, **dropout_attributes(axes=(("tp",), (), ())))
    assert_close([half], [whole[S // 2 :]])


def test_dropout_masks_differ_by_salt_and_by_sample() -> None:
    """Another salt, micro-batch or data-parallel rank draws another mask."""
    x = torch.ones(S, B, H, dtype=torch.float64)
    first, _ = run("dropout", x, **dropout_attributes())
    others = [
        run("dropout", x, **dropout_attributes(salt="y"))[0],
        run("dropout", x, microbatch=1, **dropout_attributes())[0],
        run("dropout", x, rank=2, **dropout_attributes())[0],
    ]
    assert all(not torch.equal(first, other) for other in others)


def test_bias_dropout_add_adds_the_residual_to_what_dropout_leaves() -> None:
    """residual + dropout(x + bias); without dropout there is no mask."""
    x, bias, residual = random(S, B, H), random(H, seed=1), random(S, B, H, seed=2)
    y, mask = run("bias_dropout_add", x, bias, residual, **dropout_attributes())
    assert_close([y], [residual + (x + bias) * mask / 0.7])
    assert_close(
        run("bias_dropout_add", x, bias, residual, **dropout_attributes(probability=0.0)), [residual + x + bias]
    )


def test_add_slice_and_zero() -> None:
    """A sum; rank 1's half along the last dimension; cleared buffers."""
    a, b = random(S, B, H), random(S, B, H, seed=1)
    assert_close(run("add", a, b), [a + b])
    assert_close(run("slice", a, rank=1, dim=2, axes=("tp",), parts=2), [a[:, :, H // 2 :]])
    run("zero", a, b)
    assert not a.any()
    assert not b.any()


def test_scale_works_in_place_and_squared_norm_adds_up_all_squares() -> None:
    """Two buffers, halved; the sum of the squares of both in one number."""
    a, b = random(S, B, H), random(S, H, seed=1)
    before = [a.clone(), b.clone()]
    run("scale", a, b, factor=0.5)
    assert_close([a, b], [0.5 * x for x in before])
    assert_close(run("squared_norm", a, b), [(a.square().sum() + b.square().sum()).reshape(1)])


def test_zeros_are_new_buffers() -> None:
    """Two buffers of the stated shapes, cleared."""
    a, b = run("zeros", shapes=((S,), (B, H)), dtype="float64")
    assert not a.any()
    assert not b.any()


def test_copy_writes_over_its_second_input() -> None:
    """The target holds what the source holds, in memory of its own; the source stays."""
    source, target = random(2, 3), random(2, 3, seed=1)
    before = source.clone()
    run("copy", source, target)
    source_after = source.clone()
    source.zero_()
    assert_close([target, source_after], [before, before])


# --- both ends of the model --------------------------------------------------------------------------------

TOKENS = {"sequence_length": S, "microbatch_size": B, "vocab_size": V}


def test_tokens_give_labels_one_place_on_and_other_samples_to_other_ranks() -> None:
    """Labels are the ids shifted by one; dp rank and micro-batch choose the samples."""
    (ids,), (labels,) = run("tokens", shift=0, **TOKENS), run("tokens", shift=1, **TOKENS)
    assert torch.equal(labels[:-1], ids[1:])
    assert int(ids.min()) >= 0
    assert int(ids.max()) < V
    assert torch.equal(run("tokens", rank=1, shift=0, **TOKENS)[0], ids)
    assert not torch.equal(run("tokens", rank=2, shift=0, **TOKENS)[0], ids)
    assert not torch.equal(run("tokens", microbatch=1, shift=0, **TOKENS)[0], ids)


def test_embedding_over_ranks_sums_to_the_whole() -> None:
    """Each rank looks up its half of the vocabulary; the gradients of both halves are the whole's."""
    ids, table, dy = *run("tokens", shift=0, **TOKENS), random(V, H), random(S, B, H, seed=1)
    halves = table.chunk(2)
    parts = [run("embedding", ids, half.clone(), rank=rank, vocab_axes=("tp",))[0] for rank, half in enumerate(halves)]
    assert_close([parts[0] + parts[1]], [table[ids]])
    sums = [torch.ones_like(half) for half in halves]
    for rank, total in enumerate(sums):
        run("embedding_backward", ids, dy, total, rank=rank, vocab_axes=("tp",))
    (expected,) = gradients(lambda t: t[ids], (table,), dy)
    assert_close([torch.cat(sums)], [1 + expected])


def test_add_positions_uses_the_rows_of_my_part_of_the_sequence() -> None:
    """Rank 1 of a sequence split in two adds, and accumulates into, the table's second half."""
    x, table = random(S // 2, B, H), random(S, H, seed=1)
    (y,) = run("add_positions", x, table, rank=1, sequence_axes=("tp",))
    assert_close([y], [x + table[S // 2 :, None]])
    total = torch.zeros(S, H, dtype=torch.float64)
    run("add_positions_backward", x, total, rank=1, sequence_axes=("tp",))
    assert_close([total[S // 2 :]], [x.sum(1)])
    assert not total[: S // 2].any()


def test_vocabulary_parallel_loss_matches_cross_entropy() -> None:
    """Two ranks' kernels, with the sums that collectives make between them, give torch's loss and gradient."""
    logits, (labels,) = 3 * random(S, B, V), run("tokens", shift=1, **TOKENS)
    halves = [half.contiguous() for half in logits.chunk(2, -1)]
    maximum = torch.maximum(*(run("logits_max", half)[0] for half in halves))
    parts = [
        run("exp_logits", half, maximum, labels, rank=rank, vocab_axes=("tp",)) for rank, half in enumerate(halves)
    ]
    total, target = (parts[0][i] + parts[1][i] for i in (1, 2))
    loss = torch.full((1,), 2.0, dtype=torch.float64)
    run("cross_entropy", total, target, loss, scale=1 / (S * B))

    def mean_loss(x: Tensor) -> Tensor:
        return nn.cross_entropy(x.flatten(0, 1), labels.flatten())

    assert_close([loss], [2.0 + mean_loss(logits).reshape(1)])
    attributes = {"scale": 1 / (S * B), "dtype": "float64", "vocab_axes": ("tp",)}
    dlogits = [
        run("cross_entropy_backward", part[0], total, labels, rank=rank, **attributes)[0]
        for rank, part in enumerate(parts)
    ]
    assert_close([torch.cat(dlogits, -1)], gradients(mean_loss, (logits,), torch.tensor(1.0, dtype=torch.float64)))


def test_adam_matches_torch_over_several_steps() -> None:
    """Three steps of torch.optim.Adam; the low-precision copy is the rounded parameter."""
    start = random(F)
    leaf = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([leaf], lr=0.01, betas=(0.8, 0.9), eps=1e-6)
    state = [start.clone(), torch.zeros(F, dtype=torch.float64), torch.zeros(F, dtype=torch.float64)]
    copy = torch.zeros(F, dtype=torch.bfloat16)
    attributes = {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "step": 1}
    for step in range(3):
        leaf.grad = random(F, seed=step + 1)
        optimizer.step()
        inputs = (state[0], leaf.grad, *state[1:], copy)
        KERNELS["adam"](KernelContext(rank_context(step=step)), inputs, attributes)
    assert_close([state[0]], [leaf.detach()])
    assert torch.equal(copy, state[0].bfloat16())


def test_sgd_matches_torch() -> None:
    """A step of torch.optim.SGD; the low-precision copy is the rounded parameter."""
    leaf, parameter, copy = random(F).requires_grad_(), random(F), torch.zeros(F, dtype=torch.bfloat16)
    leaf.grad = random(F, seed=1)
    torch.optim.SGD([leaf], lr=0.03).step()
    KERNELS["sgd"](KernelContext(rank_context()), (parameter, leaf.grad, copy), {"learning_rate": 0.03})
    assert_close([parameter], [leaf.detach()])
    assert torch.equal(copy, parameter.bfloat16())


@pytest.mark.parametrize("kernel", ["adam", "sgd"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("own_gradients", [False, True])
def test_pieces_of_both_ranks_are_the_whole_update(kernel: str, *, mixed: bool, own_gradients: bool) -> None:
    """Ranks that update four and three of seven parameters do what one update does, and leave the others alone."""
    values, gradients = [random(3), random(2, 2, seed=1)], [random(3, seed=2), random(2, 2, seed=3)]
    before, slope = (torch.cat([x.reshape(-1) for x in tensors]) for tensors in (values, gradients))
    numbers = {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-6, "step": 1}
    moments = [torch.zeros(7, dtype=torch.float64) for _ in range(2 if kernel == "adam" else 0)]
    after = before.clone()
    KERNELS[kernel](KernelContext(rank_context()), (after, slope, *moments), numbers)
    for rank, mine in ((0, slice(0, 4)), (1, slice(4, 7))):
        state = [torch.zeros(4, dtype=torch.float64) for _ in moments]
        state = [flat_piece([before], rank, 4), *state] if mixed else state
        slopes = [flat_piece([slope], rank, 4)] if own_gradients else gradients
        updated = [x.clone() for x in values]
        counts = {"size": 4, "axes": ("tp",), "num_gradients": len(slopes), "num_parameters": 2}
        run(f"{kernel}_piece", *state, *slopes, *updated, rank=rank, **numbers, **counts)
        expected = before.clone()
        expected[mine] = after[mine]
        assert_close([torch.cat([x.reshape(-1) for x in updated])], [expected])


def test_delay_sleeps_and_gives_what_the_plan_declares() -> None:
    """The stated seconds go to the device's sleep; outputs are zeros of the declared shape and type."""
    slept: list[float] = []
    context = KernelContext(rank_context(slept=slept), 0, (Buffer("y", (2, 3), "int32", Kind.WORKSPACE),))
    (y,) = KERNELS["delay"](context, (), {"duration_s": 0.25})
    assert slept == [0.25]
    assert (y.shape, y.dtype) == ((2, 3), DTYPES["int32"])


# --- half precision ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kernels_keep_activation_types_and_accumulate_in_float32(dtype: torch.dtype) -> None:
    """Outputs have the cost model's types in every precision, and are close to float64's."""
    x, w = random(S, B, H, dtype=dtype), random(H, F, seed=1, dtype=dtype)
    (y,) = run("matmul", x, w)
    total = torch.zeros(H, F)
    run("matmul_weight_gradient", x, y, total)
    q, k = random(S, 1, N, D, dtype=dtype), random(S, 1, G, D, seed=1, dtype=dtype)
    out, lse = run("flash_attention", q, k, k)
    run("flash_attention_backward", out, q, k, k, out, lse)
    run("causal_softmax_backward", *run("causal_softmax", *run("attention_scores", q, k)) * 2)
    normed, mean, rstd = run("layer_norm", x, w[:, 0].contiguous(), w[:, 1].contiguous(), epsilon=1e-5)
    run("layer_norm_backward", normed, x, w[:, 0].contiguous(), mean, rstd, torch.zeros(H), torch.zeros(H))
    run("bias_gradient", x, torch.zeros(H))
    run("gelu_backward", *run("gelu", x), x)
    expected = attention(q.double(), k.double(), k.double())
    torch.testing.assert_close(out.double(), expected, rtol=0.03, atol=0.03)
