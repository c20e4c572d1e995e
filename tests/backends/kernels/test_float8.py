"""Products of operands of eight bits: against casts done by arithmetic, and a model of such products under autograd."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional as nn

from backends.execution.result import Execution
from backends.torch.kernels import KERNELS, KernelContext
from backends.torch.reference.dense import DenseModel, Objective, Reference, parameter_shapes, run_reference
from backends.torch.values.randomness import token_ids
from backends.torch.values.slicing import cut, flat_piece
from sim.moe.choices import forced_choices
from sim.moe.routing import dealt
from sim.moe.sources import Shares
from sim.plan.facts.slices import buffer_slice
from sim.training.spec.job import DenseTraining
from sim.training.spec.models.experts import ExpertsSpec
from tests.backends.float8_runs import WIDE
from tests.backends.kernels.test_kernels import rank_context

CPU = torch.device("cpu")
FORMATS = {"float8_e4m3fn": (3, -6, 448.0), "float8_e5m2": (2, -14, 57344.0)}
"""Bits of the mantissa, smallest exponent, largest number (Micikevicius et al. 2022, table 1)."""


def rounded(x: Tensor, dtype: str, dims: tuple[int, ...]) -> Tensor:
    """Return x with the digits that an eight-bit type has, under one scale per whatever lies outside ``dims``."""
    bits, least, largest = FORMATS[dtype]
    scale = torch.exp2(torch.floor(torch.log2(largest / x.abs().amax(dims, keepdim=True))))
    exponent = torch.frexp(x * scale).exponent.sub(1).clamp(min=least)
    step = torch.exp2((exponent - bits).to(x.dtype))
    return torch.round(x * scale / step) * step / scale


# --- the cast ----------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 1000), size=st.integers(1, 40), exponent=st.integers(-60, 60), dtype=st.sampled_from([*FORMATS])
)
def test_cast_rounds_as_the_format_is_defined(seed: int, size: int, exponent: int, dtype: str) -> None:
    """Whatever the magnitude: half to even, subnormal where small; both copies alike; the scale a power of two."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float32) ** 5
    x = (values * 2.0**exponent).clamp(min=-1e30, max=1e30)
    context = KernelContext(rank_context())
    cast, copy, scale = KERNELS["cast_float8"](context, [x], {"dtype": dtype, "copies": 2})
    assert torch.equal(cast.double(), copy.double())
    assert float(torch.frexp(scale).mantissa) == 0.5
    torch.testing.assert_close(cast.double() * scale, rounded(x.double(), dtype, (0,)), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("by_row", [False, True])
def test_values_come_back_from_eight_bits(by_row: bool) -> None:
    """A tensor times its scale, or each row times its own, is what the cast kept; only rows keep small numbers."""
    x = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x *= 10.0 ** torch.arange(-6, 4, 2).view(1, 5, 1)
    context, attributes = KernelContext(rank_context()), {"dtype": "float8_e4m3fn", "copies": 1, "by_row": by_row}
    cast, scale = KERNELS["cast_float8"](context, [x], attributes)
    (back,) = KERNELS["uncast_float8"](context, [cast, scale], {"dtype": "float64"})
    assert torch.equal(back, cast.double() * scale)
    relative = ((back - x).norm(dim=2) / x.norm(dim=2)).max()
    assert bool(relative < 0.04) is by_row


def test_cast_of_zeros_is_zeros() -> None:
    """Nothing divides by the largest magnitude where that is 0."""
    attributes = {"dtype": "float8_e5m2", "copies": 1}
    cast, scale = KERNELS["cast_float8"](KernelContext(rank_context()), [torch.zeros(3)], attributes)
    assert not cast.double().any()
    assert float(scale) == 1.0


# --- the training ------------------------------------------------------------------------------------------


class Float8Product(torch.autograd.Function):
    """x[s, b, k] w[k, n] of rounded operands; one scale per sample of x and of the output's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        """Return the product of what is left of x and w."""
        rounded_x, rounded_w = rounded(x, "float8_e4m3fn", (0, 2)), rounded(w, "float8_e4m3fn", (0, 1))
        ctx.save_for_backward(rounded_x, rounded_w)
        return rounded_x @ rounded_w

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Return both gradients, of what is left of the output's."""
        x, w = ctx.saved_tensors
        dy = rounded(gradients[0], "float8_e5m2", (0, 2))
        return dy @ w.T, torch.einsum("sbk,sbn->kn", x, dy)


def product(x: Tensor, w: Tensor, contract: int = 1) -> Tensor:
    """Return x[s, b, *k] w[*k, *n] of rounded operands."""
    rows = int(np.prod(w.shape[:contract]))
    y: Tensor = Float8Product.apply(x.flatten(2), w.reshape(rows, -1))
    return y.reshape(*x.shape[:2], *w.shape[contract:])


class Float8ProductOfRows(torch.autograd.Function):
    """x[t, k] w[e, k, n] of rounded operands, the weight of each row by its expert, [t]; one scale for each of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, experts: Tensor) -> Tensor:
        """Return the product of what is left of x and w."""
        rounded_x, rounded_w = rounded(x, "float8_e4m3fn", (0, 1)), rounded(w, "float8_e4m3fn", (0, 1, 2))
        ctx.save_for_backward(rounded_x, rounded_w, experts)
        return torch.einsum("tk,tkn->tn", rounded_x, rounded_w[experts])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return both gradients, of what is left of the output's."""
        x, w, experts = ctx.saved_tensors
        dy = rounded(gradients[0], "float8_e5m2", (0, 1))
        of_rows = torch.einsum("tk,tn->tkn", x, dy)
        return torch.einsum("tn,tkn->tk", dy, w[experts]), torch.zeros_like(w).index_add(0, experts, of_rows), None


def through_float8_experts(spec: ExpertsSpec, layer: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs of the experts to which a stated routing sends the tokens x[s, b, h], sample by sample."""
    assert isinstance(spec.routing, Shares)
    chosen = torch.from_numpy(forced_choices(dealt(x.shape[0], spec.routing.shares), x.shape[0]))[:, 0]
    outputs = []
    for tokens in x.unbind(1):
        weights = (tokens @ layer["router.weight"]).softmax(-1).gather(1, chosen[:, None])
        y = Float8ProductOfRows.apply(tokens, layer["experts.fc1.weight"], chosen)
        y = nn.gelu(y, approximate="tanh")
        y = Float8ProductOfRows.apply(y, layer["experts.fc2.weight"], chosen)
        outputs.append(weights * y)
    return torch.stack(outputs, 1)


def float8_loss(dense: DenseModel) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Return the loss of a GPT without dropout whose layers' products round their operands."""
    m, p = dense.job.model, dense.parameters
    width = (m.hidden_size,)
    ids = [
        token_ids(
            dense.job.seed, dense.step, first_sample=0, num_samples=dense.job.training.global_batch_size,
            positions=torch.arange(m.sequence_length) + shift, vocab_size=m.vocab_size,
        )
        for shift in (0, 1)
    ]  # fmt: skip
    x = p["embedding.word"][ids[0]] + p["embedding.position"][:, None, :]
    for i in range(m.num_layers):
        layer = {name.removeprefix(f"layer{i}."): value for name, value in p.items() if name.startswith(f"layer{i}.")}
        y = nn.layer_norm(x, width, layer["norm1.weight"], layer["norm1.bias"])
        q, k, v = (product(y, layer["qkv.weight"]) + layer["qkv.bias"]).permute(3, 1, 2, 0, 4)
        y = nn.scaled_dot_product_attention(q, k, v, is_causal=True).permute(2, 0, 1, 3)
        x = x + product(y, layer["projection.weight"], 2) + layer["projection.bias"]
        y = nn.layer_norm(x, width, layer["norm2.weight"], layer["norm2.bias"])
        if m.experts is not None:
            x = x + through_float8_experts(m.experts, layer, y)
            continue
        y = nn.gelu(product(y, layer["fc1.weight"]) + layer["fc1.bias"], approximate="tanh")
        x = x + product(y, layer["fc2.weight"]) + layer["fc2.bias"]
    logits = nn.layer_norm(x, width, p["final_norm.weight"], p["final_norm.bias"]) @ p["embedding.word"].T
    loss = nn.cross_entropy(logits.flatten(0, 1), ids[1].flatten())
    return loss, {"loss": loss.detach()}


def oracle(job: DenseTraining) -> Reference:
    """Return one step of the model above."""
    wide = replace(job, training=replace(job.training, precision="fp64"))
    return run_reference(wide, 1, CPU, Objective(parameter_shapes(job.model), float8_loss))


def worst_error(execution: Execution, reference: Reference) -> float:
    """Return the largest error of loss and gradients, over the largest element of each."""
    plan, worst = execution.plan, 0.0
    for result in execution.ranks:
        program = plan.program_of(result.rank)
        for (name, _), value in result.values.items():
            buffer = program.buffers[name]
            assert buffer.initial is not None
            if name == "loss":
                expected = reference.loss.reshape(1)
            elif buffer.initial.of:  # a shard of a unit's gradients
                known = (program.buffers[of].initial for of in buffer.initial.of)
                whole = [reference.gradients[initial.source] for initial in known if initial is not None]
                expected = flat_piece(whole, plan.mesh.index(result.rank, buffer.initial.axes), buffer.num_elements)
            else:
                place = buffer_slice(buffer, plan.mesh, result.rank)
                expected = cut(reference.gradients[buffer.initial.source], place)
            error = (torch.from_numpy(value).reshape(expected.shape) - expected).abs().max() / expected.abs().max()
            worst = max(worst, float(error))
    return worst


@pytest.mark.parametrize("name", [name for name in WIDE if "tp2" not in name])
def test_plan_in_eight_bits_computes_what_rounded_products_do(results: Mapping[str, Execution], name: str) -> None:
    """With all else in float64, loss and gradients are the model's of rounded products, to float64's rounding."""
    assert worst_error(results[name], oracle(WIDE[name])) < 1e-9


@pytest.mark.parametrize("name", [name for name in WIDE if "tp2" in name])
def test_tensor_parallel_ranks_scale_their_own_pieces(results: Mapping[str, Execution], name: str) -> None:
    """Scales are powers of two, so pieces keep the digits that the whole would have; only the smallest differ."""
    assert worst_error(results[name], oracle(WIDE[name])) < 1e-2


def test_the_oracle_tells_rounded_products_from_exact_ones() -> None:
    """Without rounding the gradients are others by per cents: the comparison above is not vacuous."""
    job = WIDE["fp8 of float64, one rank"]
    exact = run_reference(replace(job, training=replace(job.training, precision="fp64")), 1, CPU)
    name = "layer0.fc1.weight"
    difference = (oracle(job).gradients[name] - exact.gradients[name]).abs().max() / exact.gradients[name].abs().max()
    assert 1e-3 < float(difference) < 0.5
