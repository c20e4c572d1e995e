"""Replicas of stages and groups: where they lie, how a batch is dealt out, and the time of a cycle."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.profile import load_profile, network_parameters
from sim.serving.memory import cached_bytes, num_blocks, weight_bytes
from sim.serving.prices.cost import KernelCost, cycle_s
from sim.serving.prices.layout import ReplicaLayout
from sim.serving.prices.messages import ReplicaMessages
from sim.serving.prices.microbatches import Chunk, microbatches
from sim.serving.prices.model import ServedExperts, ServedLatent, ServedModel
from sim.serving.prices.software import ServingSoftware
from sim.serving.service import ServiceSpec, serve
from tests.examples import examples
from tests.sim.serving.test_cost import NODE, layout
from tests.sim.serving.test_service import TextbookCost, requests_of

NETWORK = network_parameters(NODE, load_profile(NODE.device.profile))
EXPERTS = ServedModel(
    num_layers=7, hidden_size=1024, num_heads=16, num_kv_heads=16, head_size=64, ffn_hidden_size=4096, vocab_size=32000,
    experts=ServedExperts(
        num_experts=32, top_k=4, ffn_hidden_size=512, shared_ffn_hidden_size=512, first_dense_layers=1
    ),
    latent=ServedLatent(kv_rank=256, head_size=64, rotary_head_size=32, value_head_size=64, q_rank=512),
)  # fmt: skip


def priced(**degrees: int) -> KernelCost:
    """Return prices of the small model of latents and experts on H100."""
    return KernelCost(model=EXPERTS, node=NODE, profile=load_profile(NODE.device.profile), layout=layout(**degrees))


def test_stages_have_equally_many_layers_and_the_ends_no_more() -> None:
    """61 layers on 4 stages are 15, 15, 16, 15; layers without experts come first."""
    stages = ReplicaLayout(pipeline_degree=4).stages(3, 58)
    assert [stage.num_layers for stage in stages] == [15, 15, 16, 15]
    assert [stage.num_dense for stage in stages] == [3, 0, 0, 0]
    assert [(stage.is_first, stage.is_last) for stage in stages] == [
        (True, False),
        *[(False, False)] * 2,
        (False, True),
    ]


@pytest.mark.parametrize(
    ("degrees", "tensor", "experts", "crossings"),
    [
        ((2, 2, 2), (2,), (2,), 0),
        ((2, 1, 8), (2,), (4, 4), 0),
        ((8, 2, 2), (8,), (1, 1), 2),
        ((16, 1, 2), (8, 8), (1, 1), 0),
        ((4, 4, 1), (4,), (1,), 2),
    ],
)
def test_groups_lie_on_nodes_of_eight(
    degrees: tuple[int, int, int], tensor: tuple[int, ...], experts: tuple[int, ...], crossings: int
) -> None:
    """Ranks of a group lie side by side, those that exchange tokens one group apart, stages one after the other."""
    found = layout(tensor_degree=degrees[0], pipeline_degree=degrees[1], expert_degree=degrees[2])
    assert (found.tensor_ranks, found.expert_ranks, found.crossings) == (tensor, experts, crossings)
    assert found.num_devices == degrees[0] * degrees[1] * degrees[2]
    assert not found.problem()


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 40), st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_every_row_and_every_chunk_is_dealt_once(stages: int, groups: int, rows: int, tokens: list[int]) -> None:
    """Micro-batches hold all rows, in parts that differ by one at most, and all chunks; none is empty."""
    chunks = [Chunk(count, 0) for count in tokens]
    parts = microbatches(ReplicaLayout(pipeline_degree=stages, expert_degree=groups), rows, 2, chunks)
    assert 1 <= len(parts) <= stages
    assert sum(part.all_rows for part in parts) == rows
    counts = [part.all_rows for part in parts if part.all_rows]
    assert not counts or max(counts) - min(counts) <= 1
    dealt = [chunk for part in parts for group in part.chunks for chunk in group]
    assert sorted(dealt, key=lambda chunk: chunk.tokens) == sorted(chunks, key=lambda chunk: chunk.tokens)
    assert all(part.num_sequences and part.tokens * groups >= part.all_tokens for part in parts)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_a_cycle_takes_as_long_as_its_simulation(stages: int, parts: list[int]) -> None:
    """With equal stages the closed form is the period that a pipeline settles into, micro-batch after micro-batch."""
    free, ready, ends = [0.0] * stages, [0.0] * len(parts), []
    for _ in range(60):
        for part, time_s in enumerate(parts):
            for stage in range(stages):
                ready[part] = free[stage] = max(free[stage], ready[part]) + time_s
        ends.append(ready[0])
    found = cycle_s([[np.array([float(time_s)])] * stages for time_s in parts], [0.0] * len(parts), [0.0] * len(parts))
    assert found[0] == pytest.approx((ends[-1] - ends[-31]) / 30)


def test_stages_and_groups_hold_all_weights_once_but_copies() -> None:
    """Over stages of two groups of two ranks, experts lie once, all else twice, projections to latents four times."""
    whole, parts = priced(), priced(tensor_degree=2, pipeline_degree=2, expert_degree=2)
    copied, _ = EXPERTS.attention_parameters
    _, of_experts = EXPERTS.expert_parameters
    held = sum(4 * weight_bytes(parts, stage) for stage in parts.stages)
    others = EXPERTS.num_parameters - EXPERTS.num_layers * copied - 6 * of_experts
    assert held == 2 * (6 * of_experts + 2 * others + 4 * EXPERTS.num_layers * copied)
    assert weight_bytes(whole, whole.stages[0]) == 2 * EXPERTS.num_parameters
    assert (
        cached_bytes(whole, whole.stages[0]) == 7 * (256 + 32) * 2 == sum(cached_bytes(parts, s) for s in parts.stages)
    )


def test_absorbed_weights_stay_in_16_bits() -> None:
    """With weights of eight bits all take half the bytes but those that steps absorb into queries and results."""
    whole = priced()
    narrow = dataclasses.replace(whole, weight_dtype="float8_e4m3fn")
    absorbed = 7 * 256 * 16 * (64 + 64)
    assert weight_bytes(narrow, narrow.stages[0]) == EXPERTS.num_parameters + absorbed


def test_a_request_needs_the_blocks_of_one_group() -> None:
    """Two groups have twice the blocks of one; a request that fits into both together, and in neither, is refused."""
    keys = {"device_bytes": 2_000_000_000, "memory_fraction": 0.9, "activation_bytes": 0, "block_tokens": 16}
    assert num_blocks(priced(expert_degree=2), **keys) > 2 * num_blocks(priced(), **keys)
    requests = requests_of((0.0, 100, 4), (0.0, 40, 4))
    spec = ServiceSpec(num_replicas=1, num_blocks=10, num_groups=2, block_tokens=16)
    assert serve(spec, requests, TextbookCost()).records.refused.tolist() == [True, False]


def test_a_token_that_crosses_once_saves_what_chance_says() -> None:
    """Of k copies on N nodes k (N - 1) / N cross, or one for each other node that has some; within a node none does."""
    k, copies, once = 8, ServingSoftware(), ServingSoftware(expert_messages="nodes")
    for nodes in (1, 2, 4):
        found = [
            ReplicaMessages(layout(expert_degree=8 * nodes), NETWORK, software).exchange_s(1 << 30, k)
            for software in (copies, once)
        ]
        crossing = (nodes - 1) * (1.0 - (1.0 - 1.0 / nodes) ** k)
        if nodes == 1:
            assert found[0] == found[1]
        else:
            assert found[1] / found[0] == pytest.approx(crossing / (k * (nodes - 1) / nodes), rel=0.05)


def test_latents_in_eight_bits_take_their_bytes() -> None:
    """256 numbers, 2 scales and 32 positions in 16 bits are 328 bytes of 576; steps are shorter, prompts as before."""
    whole, scaled = priced(), dataclasses.replace(priced(), cache_dtype="float8_e4m3fn")
    (stage,) = whole.stages
    assert [cached_bytes(each, stage) for each in (whole, scaled)] == [7 * 2 * (256 + 32), 7 * (256 + 8 + 64)]
    assert scaled.rows_s(64, 1)[-1] < 0.7 * whole.rows_s(64, 1)[-1]
    assert scaled.chunk_s(Chunk(512, 512)) == whole.chunk_s(Chunk(512, 512))


def test_more_groups_and_stages_take_more_load() -> None:
    """Full batches: groups and stages shorten an iteration; one sequence alone gains nothing from either."""
    context = 1000.0
    alone, stages, groups = priced(), priced(pipeline_degree=2), priced(expert_degree=2)
    full = [each.pass_s(512, 1, context, [Chunk(2048, 0)] * 4) for each in (alone, stages, groups)]
    assert max(full[1:]) < 0.75 * full[0]
    one = [each.pass_s(1, 1, context) for each in (alone, stages)]
    assert one[1] > one[0]
