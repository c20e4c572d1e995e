"""Kernel and collective costs together: one published transformer layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from costmodels.collectives.cost import collective_cost, exclusive_seconds
from costmodels.hardware import load_node
from costmodels.kernels import KERNELS, TensorSpec
from costmodels.profile import load_profile, network_parameters
from costmodels.roofline import kernel_time

S, B, H, N, T = 2048, 4, 6144, 64, 8
D, R = H // N, N // T

Op = tuple[str, Sequence[TensorSpec], Mapping[str, Any]]


def half(*shape: int) -> TensorSpec:
    """Return an fp16 tensor."""
    return TensorSpec(shape, "float16")


def forward_s(*, sequence_parallel: bool) -> float:
    """Return the forward time of one 22B layer on 8 A100: Megatron's kernels and collectives one after the other."""
    node, profile = load_node("dgx-a100-80g"), load_profile("a100")
    network = network_parameters(node, profile)
    x, full, q = half(S // T if sequence_parallel else S, B, H), half(S, B, H), half(S, B, R, D)
    scores, wide = half(B, R, S, S), half(S, B, 4 * H // T)
    dropout_add: Op = ("bias_dropout_add", [x, half(H), x], {"probability": 0.1})
    ops: list[Op] = [
        ("layer_norm", [x, half(H), half(H)], {}),
        ("matmul", [full, half(H, R, 3, D), half(R, 3, D)], {}),
        ("split_qkv", [half(S, B, R, 3, D)], {}),
        ("attention_scores", [q, q], {}),
        ("causal_softmax", [scores], {}),
        ("dropout", [scores], {}),
        ("attention_context", [scores, q], {}),
        ("matmul", [q, half(R, D, H)], {"contract": 2}),
        dropout_add,
        ("layer_norm", [x, half(H), half(H)], {}),
        ("matmul", [full, half(H, 4 * H // T), half(4 * H // T)], {}),
        ("gelu", [wide], {}),
        ("matmul", [wide, half(4 * H // T, H)], {}),
        dropout_add,
    ]
    total_s = 0.0
    for name, inputs, attributes in ops:
        kernel = KERNELS[name]
        work = kernel.work(inputs, kernel.outputs(inputs, attributes), attributes)
        total_s += kernel_time(work, kernel.family, "float16", node.device, profile).alone_s
    for kind in ["reduce_scatter", "all_gather"] if sequence_parallel else ["all_reduce"]:
        cost = collective_cost(kind, full.num_bytes, (T,), network)
        total_s += 2 * exclusive_seconds(cost, (T,), network)
    return total_s


@pytest.mark.parametrize(("sequence_parallel", "published_s"), [(False, 7.7e-3), (True, 7.2e-3)])
def test_forward_of_a_22b_layer_takes_the_published_time(sequence_parallel: bool, published_s: float) -> None:
    """The forward pass comes out within 5 % of Korthikanti et al. 2022, table 4 (A100, tensor degree 8)."""
    assert forward_s(sequence_parallel=sequence_parallel) == pytest.approx(published_s, rel=0.05)
