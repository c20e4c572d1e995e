"""Kernels of context parallelism: a sequence's chunks dealt out, attention of them, merged over blocks of keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.torch.kernels import KERNELS, KernelContext, RankContext
from costmodels.kernels import KERNELS as COST_KERNELS
from sim.plan.words.mesh import Mesh
from tests.backends.kernels.test_kernels import D, G, N, assert_close, attention, gradients, random, run, spec_of

CHUNK, DEGREES = 3, (2, 3, 4)
E = 6
"""Size of a value's head, where it differs from a key's."""


@dataclass(frozen=True)
class Shared:
    """A sequence of random tensors, shared by so many ranks."""

    degree: int

    def context(self, rank: int) -> KernelContext:
        """Return what a rank's kernels may know."""
        return KernelContext(RankContext(Mesh((("cp", self.degree),)), rank, 5, 0, torch.device("cpu"), lambda _: None))

    def of(self, rank: int, x: Tensor, dim: int = 0) -> Tensor:
        """Return the two chunks of a tensor that a rank has."""
        chunks = x.chunk(2 * self.degree, dim)
        return torch.cat([chunks[rank], chunks[2 * self.degree - 1 - rank]], dim)

    def tensors(self) -> list[Tensor]:
        """Return queries, keys, values and the gradient of the result."""
        shapes = ((N, D), (G, D), (G, E), (N, E))
        return [random(2 * self.degree * CHUNK, 2, *shape, seed=i) for i, shape in enumerate(shapes)]

    def run(self, rank: int, kernel: str, *inputs: Tensor, **attributes: Any) -> Sequence[Tensor]:
        """Run a kernel on a rank; its outputs have the shapes of the cost model."""
        spec = COST_KERNELS[kernel].outputs([spec_of(x) for x in inputs], attributes)
        outputs = KERNELS[kernel](self.context(rank), inputs, attributes)
        assert [spec_of(y) for y in outputs] == list(spec)
        return outputs


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("tensor_degree", [1, 3])
def test_chunks_of_all_ranks_make_the_sequence(degree: int, tensor_degree: int) -> None:
    """Every token is on one rank, in order; a rank's two chunks lie as far from the begin as from the end."""
    mesh = Mesh((("cp", degree), ("tp", tensor_degree)))
    own = 2 * CHUNK
    found = torch.cat([
        KernelContext(RankContext(mesh, rank, 5, 0, torch.device("cpu"), lambda _: None)).positions(
            own // tensor_degree, ("tp",), dealt_over="cp"
        )
        for rank in range(mesh.size)
    ])  # fmt: skip
    for positions in found.split(own):
        assert positions.sum() == own * (2 * degree * CHUNK - 1) / 2
        assert sorted(positions.tolist()) == positions.tolist()
    assert sorted(found.tolist()) == list(range(2 * degree * CHUNK))


@pytest.mark.parametrize("degree", DEGREES)
def test_dealt_queries_attend_to_the_whole_sequence(degree: int) -> None:
    """The ranks' results are rows of attention of the whole; gradients of its keys and values sum up over ranks."""
    shared = Shared(degree)
    q, k, v, dy = shared.tensors()
    y, (dq, *sums) = attention(q, k, v), gradients(attention, (q, k, v), dy)
    totals = [torch.zeros_like(x) for x in (k, v)]
    for rank in range(degree):
        own_q, own_dy = (shared.of(rank, x) for x in (q, dy))
        own_y, lse = shared.run(rank, "flash_attention", own_q, k, v, dealt_over="cp")
        operands = (own_dy, own_q, k, v, own_y, lse, *totals)
        own_dq, *_ = shared.run(rank, "flash_attention_backward", *operands, dealt_over="cp")
        assert_close([own_y, own_dq], [shared.of(rank, x) for x in (y, dq)])
    assert_close(totals, sums)


@pytest.mark.parametrize("degree", DEGREES)
def test_steps_of_a_ring_merge_into_attention(degree: int) -> None:
    """Own keys, then each other rank's: merged by log-sum-exp; gradients of all steps sum up to those of the whole."""
    shared = Shared(degree)
    q, k, v, dy = shared.tensors()
    y, grads = attention(q, k, v), gradients(attention, (q, k, v), dy)
    totals = [[torch.zeros_like(shared.of(0, x)) for x in (q, k, v)] for _ in range(degree)]
    for rank in range(degree):
        own, own_dy = [shared.of(rank, x) for x in (q, k, v)], shared.of(rank, dy)
        steps: list[dict[str, Any]] = [{}, *({"causal": False, "ring": "cp", "step": j} for j in range(1, degree))]
        held = [[own[0], *(shared.of((rank - step) % degree, x) for x in (k, v))] for step in range(degree)]
        whole, lse = shared.run(rank, "flash_attention", *own)
        for tensors, told in zip(held[1:], steps[1:], strict=True):
            part = shared.run(rank, "flash_attention", *tensors, **told)
            merged = shared.run(rank, "merge_attention", *part, whole, lse)
            assert merged[0] is whole
            assert merged[1] is lse
        assert_close([whole], [shared.of(rank, y)])
        for step, (tensors, told) in enumerate(zip(held, steps, strict=True)):
            operands = (own_dy, *tensors, whole, lse)
            parts = shared.run(rank, "flash_attention_backward", *operands, **told)
            for owner, place, part in zip((rank, *[(rank - step) % degree] * 2), range(3), parts, strict=True):
                totals[owner][place] += part
    for rank in range(degree):
        assert_close(totals[rank], [shared.of(rank, x) for x in grads])


@pytest.mark.parametrize("degree", DEGREES)
def test_blocks_of_keys_that_pass_by_make_the_products_with_all_keys(degree: int) -> None:
    """Scores, results and gradients of each rank's rows are those of products with all keys, whatever the order."""
    shared = Shared(degree)
    q, k, v, dy = shared.tensors()
    blocks = [[x.chunk(degree)[rank].contiguous() for x in (q, k, v, dy)] for rank in range(degree)]
    repeats = N // G
    scores = torch.einsum("sbnd,tbnd->bnst", q, k.repeat_interleave(repeats, 2))
    weights = scores.softmax(-1)
    y = torch.einsum("bnst,tbne->sbne", weights, v.repeat_interleave(repeats, 2))
    dv = torch.einsum("bnst,sbne->tbne", weights, dy).unflatten(2, (G, repeats)).sum(3)
    total = torch.zeros_like(v)
    for rank, (own_q, _, _, own_dy) in enumerate(blocks):
        made: dict[str, tuple[Tensor, ...]] = {"ring_scores": (), "ring_context": ()}
        rows = weights.chunk(degree, 2)[rank].contiguous()
        for step in range(degree):
            _, held_k, held_v, _ = blocks[(rank - step) % degree]
            told = {"ring": "cp", "step": step, "blocks": degree, "factor": 0.5}
            for kernel, inputs in (("ring_scores", (own_q, held_k)), ("ring_context", (rows, held_v))):
                given = made[kernel]
                made[kernel] = tuple(shared.run(rank, kernel, *inputs, *given, **told))
                assert not given or made[kernel][0] is given[0]
        assert_close(made["ring_scores"], [0.5 * scores.chunk(degree, 2)[rank]])
        assert_close(made["ring_context"], [0.5 * y.chunk(degree)[rank]])
        total += shared.run(rank, "transposed_context", rows, own_dy, groups=G, factor=1.0)[0]
    assert_close([total], [dv])


@pytest.mark.parametrize("degree", DEGREES)
def test_the_rows_of_all_ranks_make_the_causal_softmax(degree: int) -> None:
    """A rank's queries see the keys up to their own places in the sequence."""
    shared, scores = Shared(degree), random(2, N, 2 * degree * CHUNK, 2 * degree * CHUNK)
    whole = run("causal_softmax", scores)[0].chunk(degree, 2)
    for rank, rows in enumerate(scores.chunk(degree, 2)):
        assert_close(shared.run(rank, "causal_softmax", rows.contiguous(), cut_over=("cp",)), [whole[rank]])


def test_take_chunks_changes_the_order_of_rows() -> None:
    """Chunks of two rows each, the last one first."""
    x = random(6, 2, G, D)
    assert_close(run("take_chunks", x, order=(2, 0, 1)), [torch.cat([x[4:], x[:4]])])
