"""Differentiable functions of multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1)."""

from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import PARTIAL, Layout, Shard


def split_latent(t: TaskTracer, name: str, x: Tensor, kv_rank: int) -> tuple[Tensor, Tensor]:
    """Return the latent, the first ``kv_rank`` channels of x[s, b, r+p], and the other channels as [s, b, 1, p]."""
    latent, position = t.compute(
        name, "split_latent", (x,), (x.layout, x.layout), labels=("latent", "position"), kv_rank=kv_rank
    )

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(f"{name}.merge", "merge_latent", _present(gradients), (x.layout,), kind=Kind.WORKSPACE)

    t.record((x,), (latent, position), backward)
    return latent, position


def latent_heads(t: TaskTracer, name: str, kv: Tensor, position: Tensor, head_size: int) -> tuple[Tensor, Tensor]:
    """Return k[s, b, n, d+p] and v[s, b, n, e] from kv[s, b, n, d+e] and the keys' position part [s, b, 1, p].

    The gradient of the position part is a sum over heads, so it is partial over the axes that shard heads.
    """
    k, v = t.compute(
        name, "latent_heads", (kv, position), (kv.layout, kv.layout), labels=("k", "v"), head_size=head_size
    )
    summed = Layout(tuple((axis, PARTIAL if place == Shard(2) else place) for axis, place in kv.layout.placements))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "latent_heads_backward", _present(gradients), (kv.layout, summed),
            labels=("kv", "position"), kind=Kind.WORKSPACE, head_size=head_size,
        )  # fmt: skip

    t.record((kv, position), (k, v), backward)
    return k, v


def joined_latent(t: TaskTracer, name: str, latent: Tensor, position: Tensor) -> Tensor:
    """Return what a token leaves in a cache of latents, [s, b, r+p]; it is not differentiated."""
    (x,) = t.compute(name, "merge_latent", (latent, position), (latent.layout,))
    return x


def absorbed_query(t: TaskTracer, name: str, q: Tensor, weight: Parameter, head_size: int) -> Tensor:
    """Return q[s, b, n, d+p] as [s, b, n, r+p], to be compared with latents; it is not differentiated.

    ``weight``: of the projection up, [r, n, d+e].
    """
    (y,) = t.compute(name, "absorb_query", (q, weight.value), (q.layout,), head_size=head_size)
    return y


def expanded_values(t: TaskTracer, name: str, y: Tensor, weight: Parameter, head_size: int) -> Tensor:
    """Return weighed latents y[s, b, n, r] as values [s, b, n, e]; it is not differentiated."""
    (v,) = t.compute(name, "expand_values", (y, weight.value), (y.layout,), head_size=head_size)
    return v


def _present(gradients: Gradients) -> list[Tensor]:
    """Return the gradients of all outputs, which must exist."""
    present = [gradient for gradient in gradients if gradient is not None]
    assert len(present) == len(gradients)
    return present
