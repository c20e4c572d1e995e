"""The kernels that act on elements, against autograd."""

import torch
from torch import Tensor
from torch.nn import functional as nn

from tests.backends.kernels.test_kernels import B, F, H, S, assert_close, gradients, random, run


def test_gate_tokens_weighs_every_token() -> None:
    """Forward and both gradients are those of x times the sigmoid of its gate."""
    x, gate, dy = random(S, B, H), random(S, B, 1, seed=1), random(S, B, H, seed=2)

    def gated(a: Tensor, g: Tensor) -> Tensor:
        return a * torch.sigmoid(g)

    assert_close(run("gate_tokens", x, gate), [gated(x, gate)])
    assert_close(run("gate_tokens_backward", dy, x, gate), gradients(gated, (x, gate), dy))


def test_soft_cap_and_scaled_match_torch() -> None:
    """A cap is a tanh as wide; scaling makes a new tensor."""
    x, dy = 5 * random(S, B, F), random(S, B, F, seed=1)

    def capped(a: Tensor) -> Tensor:
        return 3 * torch.tanh(a / 3)

    assert_close(
        [*run("soft_cap", x, cap=3.0), *run("soft_cap_backward", dy, x, cap=3.0)],
        [capped(x), *gradients(capped, (x,), dy)],
    )
    assert_close(run("scaled", x, factor=0.5), [x / 2])


def test_activations_match_torch() -> None:
    """Forward and backward of all activations."""
    x, dy = 2 * random(S, B, F), random(S, B, F, seed=1)

    def gelu(a: Tensor) -> Tensor:
        return nn.gelu(a, approximate="tanh")

    assert_close([*run("gelu", x), *run("gelu_backward", dy, x)], [gelu(x), *gradients(gelu, (x,), dy)])
    pair = random(S, B, 2, F)

    def swiglu(a: Tensor) -> Tensor:
        return nn.silu(a[:, :, 0]) * a[:, :, 1]

    assert_close(
        [*run("swiglu", pair), *run("swiglu_backward", dy, pair)], [swiglu(pair), *gradients(swiglu, (pair,), dy)]
    )

    def geglu(a: Tensor) -> Tensor:
        return gelu(a[:, :, 0]) * a[:, :, 1]

    assert_close([*run("geglu", pair), *run("geglu_backward", dy, pair)], [geglu(pair), *gradients(geglu, (pair,), dy)])
