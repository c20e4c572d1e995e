"""The small mixtures of experts whose learning is recorded."""

import pytest
import torch

from backends.torch.decoding.decoder import DecoderSpec
from backends.torch.quality.mixture import Experts, Gate, Mixture, MixtureSpec
from sim.moe.dense_to_sparse import THRESHOLD, DenseToSparse

WIDTH = 6


def spec(gate: Gate, hard_after: int | None = None) -> MixtureSpec:
    """Return four experts."""
    schedule = DenseToSparse(start=1.0, end=0.5, decay_steps=10, hard_after=hard_after)
    return MixtureSpec(num_experts=4, ffn_hidden_size=5, gate=gate, balance_loss=0.1, schedule=schedule)


@pytest.mark.parametrize("gate", ["switch", "dense_to_sparse"])
def test_outputs_are_those_of_the_chosen_experts_one_by_one(gate: Gate) -> None:
    """A token's output is the sum of its experts' outputs, each by its weight, and no other's."""
    torch.manual_seed(3)
    layer = Experts(WIDTH, spec(gate)).eval()
    x = torch.randn(2, 3, WIDTH)
    y = layer(x).detach()
    shares = layer.router(x).softmax(-1).detach()
    for place in ((0, 0), (1, 2)):
        expected = torch.zeros(WIDTH)
        for expert in range(4):
            best = int(shares[place].argmax()) == expert
            if best if gate == "switch" else float(shares[place][expert]) > THRESHOLD:
                left, right = (x[place] @ layer.gate_up[expert].detach()).chunk(2)
                hidden = torch.nn.functional.silu(left) * right
                expected += shares[place][expert] * (hidden @ layer.down[expert].detach())
        torch.testing.assert_close(y[place], expected)


def test_a_hard_gate_has_one_expert_and_a_soft_one_many() -> None:
    """The schedule's step decides; the balance loss of evenly busy experts is 1."""
    x = torch.randn(4, 16, WIDTH)
    soft, hard = Experts(WIDTH, spec("dense_to_sparse")), Experts(WIDTH, spec("dense_to_sparse", hard_after=0))
    for layer in (soft, hard):
        layer.router.weight.data.zero_()
        layer(x)
    assert soft.active_experts > 3.5
    assert hard.active_experts == 1.0
    assert soft.balance.item() == pytest.approx(1.0)


def test_a_mixture_learns_what_follows_what() -> None:
    """A loop of three tokens is learned in a few steps, and gradients reach router and experts."""
    torch.manual_seed(0)
    model = Mixture(DecoderSpec(vocab_size=5, hidden_size=16, num_layers=1, num_heads=2), spec("switch"))
    optimizer, tokens = torch.optim.Adam(model.parameters(), lr=0.03), torch.tensor([[0, 1, 2] * 4])
    first = model.loss(tokens).item()
    for _ in range(20):
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(tokens))
        optimizer.step()
    assert model.loss(tokens).item() < 0.2 * first
    assert all(parameter.grad is not None for parameter in model.experts[0].parameters())
