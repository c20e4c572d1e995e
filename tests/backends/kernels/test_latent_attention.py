"""Multi-head latent attention: the dense reference against the paper's equations, and what a run must notice."""

from collections.abc import Mapping
from math import sqrt

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from backends.execution.result import Execution
from backends.torch.reference.dense import DenseModel, parameter_shapes
from sim.training.spec.models.latent import LatentAttention
from sim.training.spec.models.model import TransformerSpec
from tests.backends.jobs import training
from tests.backends.latent_runs import FULL_QUERIES, LATENT, MODEL, WRONG

CPU, F64 = torch.device("cpu"), torch.float64


class PaperAttention(nn.Module):
    """Section 2.1 of DeepSeek-V2, token by token and head by head, with the matrices that its equations name.

    Keys and values are never made: W_UK and W_UV are absorbed into queries and output, as the paper's inference does.
    """

    def __init__(self, model: TransformerSpec, latent: LatentAttention, weights: dict[str, Tensor]) -> None:
        """Cut the program's weights into the paper's matrices."""
        super().__init__()
        self.latent, self.heads, self.base = latent, model.num_heads, model.rotary_base
        d, rank = latent.head_size, latent.kv_rank
        named = {
            "w_dkv": weights["kv_down.weight"][:, :rank], "w_kr": weights["kv_down.weight"][:, rank:],
            "g_kv": weights["kv_norm.weight"], "w_uk": weights["kv_up.weight"][..., :d],
            "w_uv": weights["kv_up.weight"][..., d:], "w_o": weights["projection.weight"],
        }  # fmt: skip
        up = "q.weight" if latent.q_rank is None else "q_up.weight"
        named |= {"w_uq": weights[up][..., :d], "w_qr": weights[up][..., d:]}
        if latent.q_rank is not None:
            named |= {"w_dq": weights["q_down.weight"], "g_q": weights["q_norm.weight"]}
        for name, value in named.items():
            self.register_parameter(name, nn.Parameter(value.clone()))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the output u_t of every token of hidden[s, h]."""
        c = self._normed(hidden @ self.w_dkv, self.g_kv)
        keys = torch.stack([self._at(t, token @ self.w_kr) for t, token in enumerate(hidden)])
        queries = hidden if self.latent.q_rank is None else self._normed(hidden @ self.w_dq, self.g_q)
        return torch.stack([self._token(t, queries[t], c[: t + 1], keys[: t + 1]) for t in range(len(hidden))])

    def _token(self, t: int, query: Tensor, c: Tensor, keys: Tensor) -> Tensor:
        total = torch.zeros(self.w_o.shape[2], dtype=F64)
        width = self.latent.head_size + self.latent.rotary_head_size
        for i in range(self.heads):
            absorbed = self.w_uk[:, i] @ (query @ self.w_uq[:, i])
            scores = (c @ absorbed + keys @ self._at(t, query @ self.w_qr[:, i])) / sqrt(width)
            total = total + (torch.softmax(scores, 0) @ c) @ self.w_uv[:, i] @ self.w_o[i]
        return total

    def _at(self, position: int, x: Tensor) -> Tensor:
        """Return a vector turned by a rotation matrix, whose pairs are (i, i + d/2)."""
        half = len(x) // 2
        matrix = torch.zeros(2 * half, 2 * half, dtype=F64)
        for i in range(half):
            angle = torch.tensor(position * self.base ** (-i / half), dtype=F64)
            matrix[i, i] = matrix[i + half, i + half] = angle.cos()
            matrix[i, i + half], matrix[i + half, i] = -angle.sin(), angle.sin()
        return matrix @ x

    @staticmethod
    def _normed(x: Tensor, weight: Tensor) -> Tensor:
        return weight * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("model", [MODEL, FULL_QUERIES], ids=["compressed queries", "full queries"])
def test_reference_attends_as_the_papers_equations_say(model: dict[str, object]) -> None:
    """Output and input gradient of a layer's attention equal the absorbed form's, head by head, for every sample."""
    job = training(model=model)
    latent = job.model.latent_attention
    assert latent is not None
    shapes = {name: shape for name, shape in parameter_shapes(job.model).items() if name.startswith("layer0.")}
    generator = torch.Generator().manual_seed(5)
    weights = {name: torch.randn(shape, generator=generator, dtype=F64) / 3 for name, shape in shapes.items()}
    x = torch.randn(job.model.sequence_length, 2, job.model.hidden_size, generator=generator, dtype=F64)
    x.requires_grad_()
    y = DenseModel(job, weights, 0, CPU)._attention(0, x)
    paper = PaperAttention(job.model, latent, {k.removeprefix("layer0."): v for k, v in weights.items()})
    expected = torch.stack([paper(x[:, sample]) for sample in range(2)], 1)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    slope = torch.randn(y.shape, generator=generator, dtype=F64)
    torch.testing.assert_close(*(torch.autograd.grad(out, x, slope)[0] for out in (y, expected)))


def test_reference_has_as_many_parameters_as_a_model_with_latent_attention() -> None:
    """Its shapes add up to the specification's count, with and without compressed queries."""
    for latent in (LATENT, replace(LATENT, q_rank=None)):
        model = training(model={**MODEL, "latent_attention": latent}).model
        assert sum(torch.Size(shape).numel() for shape in parameter_shapes(model).values()) == model.num_parameters


@pytest.mark.parametrize("what", WRONG)
def test_check_notices_what_latent_attention_communicates(results: Mapping[str, Execution], what: str) -> None:
    """A latent or the shared channels not gathered, the gradient of either not summed: far from the reference."""
    report = results[what].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-3
