"""Kernels of experts with a row for every choice: no token is lost or doubled, and products are those of torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sim.moe.balancing.replicas import Replicas
from sim.moe.choices import GroupLimit
from sim.moe.routing import RoutingShape
from sim.moe.skew import Skew
from sim.training.layers.node_copies import Nodes, NodeTraffic
from tests.backends.kernels.test_kernels import assert_close, random, run
from tests.examples import examples

cases = st.fixed_dictionaries(
    {
        "ranks": st.integers(1, 4), "own": st.integers(1, 3), "tokens": st.integers(1, 12), "top_k": st.integers(1, 2),
        "zipf": st.floats(0.0, 6.0), "seed": st.integers(0, 999),
    }
)  # fmt: skip


def exchanged(sent: Sequence[Tensor], sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return what every rank gets of rows [1, R, h], as an uneven all_to_all delivers it."""
    cut = [torch.split_with_sizes(rows[0], line) for rows, line in zip(sent, sizes, strict=True)]
    return [torch.cat([pieces[place] for pieces in cut])[None] for place in range(len(sent))]


@given(cases)
@settings(max_examples=60, deadline=None)
def test_no_token_is_lost_or_doubled(case: dict[str, Any]) -> None:
    """Each expert gets exactly the tokens that chose it, once; brought back, a token finds all of its choices."""
    ranks, own = case["ranks"], case["own"]
    num_experts, top_k = ranks * own, min(case["top_k"], ranks * own)
    shape = RoutingShape(
        num_layers=1, num_sources=ranks, num_experts=num_experts, num_tokens=case["tokens"], top_k=top_k
    )
    counts = Skew(zipf=case["zipf"], seed=case["seed"]).routing(shape).counts[0]
    sizes = counts.reshape(ranks, ranks, own).sum(2).tolist()
    routes = [
        run("route_exact", random(case["tokens"], 1, num_experts, seed=place), top_k=top_k, forced=tuple(line))
        for place, line in enumerate(counts.tolist())
    ]
    number = torch.arange(ranks * case["tokens"], dtype=torch.float64).view(ranks, case["tokens"], 1, 1)
    sent = [
        run("dispatch", number[place], rows, num_experts=1, capacity=case["tokens"] * top_k)[0]
        for place, (_, _, rows, _) in enumerate(routes)
    ]
    told = torch.stack([route[3] for route in routes]).view(ranks, ranks, own)
    came = exchanged(sent, sizes)
    back = []
    for place in range(ranks):
        lies = told[:, place].flatten()
        (by_expert,) = run("sort_rows", came[place], lies, parts=ranks, by_expert=True)
        of_experts = torch.split_with_sizes(by_expert[0, :, 0], told[:, place].sum(0).tolist())
        for expert, tokens in enumerate(of_experts, place * own):
            chose = [number[p, :, 0, 0][(routes[p][1] == expert).any(-1)[:, 0]] for p in range(ranks)]
            assert torch.equal(tokens.sort().values, torch.cat(chose).sort().values)
        (by_rank,) = run("sort_rows", by_expert, lies, parts=ranks, by_expert=False)
        assert torch.equal(by_rank, came[place])
        back.append(by_rank)
    for place, rows in enumerate(exchanged(back, [list(line) for line in zip(*sizes, strict=True)])):
        (found,) = run("combine", rows, torch.ones_like(routes[place][0]), routes[place][2])
        assert torch.equal(found, top_k * number[place])


@given(
    st.fixed_dictionaries(
        {
            "nodes": st.integers(2, 3), "places": st.integers(2, 3), "own": st.integers(1, 2),
            "tokens": st.integers(1, 9), "top_k": st.integers(1, 5), "zipf": st.floats(0.0, 6.0),
            "seed": st.integers(0, 999),
        }
    )
)  # fmt: skip
@settings(max_examples=examples(16), deadline=None)
def test_no_token_is_lost_or_doubled_by_way_of_relays(case: dict[str, Any]) -> None:
    """Each expert gets exactly the tokens that chose it, once, though a token crosses to a node once."""
    nodes, places, own, tokens = case["nodes"], case["places"], case["own"], case["tokens"]
    ranks, of_node = nodes * places, places * own
    num_experts, top_k = ranks * own, min(case["top_k"], ranks * own)
    shape = RoutingShape(num_layers=1, num_sources=ranks, num_experts=num_experts, num_tokens=tokens, top_k=top_k)
    counts = Skew(zipf=case["zipf"], seed=case["seed"]).routing(shape).counts[0]
    traffic = NodeTraffic(counts, Nodes(nodes, GroupLimit(num_experts, top_k, 1)))
    logits = [random(tokens, 1, num_experts, seed=place) for place in range(ranks)]
    chosen = [
        run("choose_exact", scores, top_k=top_k, forced=tuple(line))[1]
        for scores, line in zip(logits, counts.tolist(), strict=True)
    ]
    rows_across = [sum(line) for line in traffic.across]
    assigned = [
        run("assign_nodes", experts, parts=nodes, num_experts=num_experts, rows=rows)
        for experts, rows in zip(chosen, rows_across, strict=True)
    ]
    number = torch.arange(ranks * tokens, dtype=torch.float64).view(ranks, tokens, 1, 1)
    sent = [
        run("dispatch", number[rank], assigned[rank][0], num_experts=1, capacity=rows_across[rank])[0]
        for rank in range(ranks)
    ]
    came, local = exchanged(sent, traffic.across), exchanged([found[1] for found in assigned], traffic.across)
    told = exchanged([found[2][None] for found in assigned], traffic.counts_across)
    through = [sum(line) for line in traffic.within]
    handed = [
        run("hand_on", local[rank], told[rank][0], num_experts=of_node, rows=through[rank]) for rank in range(ranks)
    ]
    passed = [
        run("dispatch", came[rank], handed[rank][0], num_experts=1, capacity=through[rank])[0] for rank in range(ranks)
    ]
    found = exchanged(passed, traffic.within)
    lies = exchanged([numbers[None] for _, numbers in handed], traffic.counts_within)
    for rank in range(ranks):
        (by_expert,) = run("sort_rows", found[rank], lies[rank][0], parts=places, by_expert=True)
        sizes = lies[rank].view(places, own).sum(0).tolist()
        for expert, of_expert in enumerate(torch.split_with_sizes(by_expert[0, :, 0], sizes), rank * own):
            chose = [number[p, :, 0, 0][(chosen[p] == expert).any(-1)[:, 0]] for p in range(ranks)]
            assert torch.equal(of_expert.sort().values, torch.cat(chose).sort().values)


@given(cases)
@settings(max_examples=40, deadline=None)
def test_ranks_agree_on_the_copies_of_experts(case: dict[str, Any]) -> None:
    """From the gathered counts each rank derives what it gets; the others send that, to copies of the expert."""
    ranks, num_experts, tokens = case["ranks"], case["ranks"] * case["own"], case["tokens"]
    shape = RoutingShape(num_layers=1, num_sources=ranks, num_experts=num_experts, num_tokens=tokens, top_k=1)
    counts = Skew(zipf=case["zipf"], seed=case["seed"]).routing(shape).counts[0]
    generator = np.random.default_rng(case["seed"])
    placed = generator.integers(0, 3, (ranks, num_experts))
    placed[generator.integers(0, ranks, num_experts), np.arange(num_experts)] += 1
    copies = Replicas.of([placed]).of_layer(0)
    width, gathered = copies.most_held, torch.from_numpy(counts).flatten()
    sent = torch.zeros(ranks, ranks * width, dtype=torch.int64)
    received = []
    for place, line in enumerate(counts.tolist()):
        scores = random(tokens, 1, num_experts, seed=place)
        _, experts, own = run("choose_exact", scores, top_k=1, forced=tuple(line))
        assert own.tolist() == line
        rows, came = run("assign_copies", experts, gathered, copies=copies, place=place, parts=ranks, width=width)
        received.append(came.view(ranks, width))
        in_rows = experts.flatten()[rows.flatten().long().argsort()].tolist()
        numbers = copies.assigned(counts)[place]
        for rank, held in enumerate(copies.held):
            for index, expert in enumerate(held):
                own_rows = [in_rows.pop(0) for _ in range(numbers[expert, rank])]
                assert own_rows == [expert] * len(own_rows)
                sent[place, rank * width + index] = len(own_rows)
        assert not in_rows
    assert torch.equal(torch.stack(received), sent.view(ranks, ranks, width).transpose(0, 1))


def test_products_of_unequal_groups_are_those_of_their_rows() -> None:
    """Rows of three experts, one without any, from two ranks: outputs and gradients are those of separate products."""
    counts = torch.tensor([2, 0, 1, 3, 0, 2])
    attributes = {"rows": (5, 0, 3)}
    x, weight, dy = random(1, 8, 4), random(3, 4, 2, 5, seed=1), random(1, 8, 2, 5, seed=2)
    group = torch.tensor([0] * 5 + [2] * 3)
    (y,) = run("ragged_matmul", x, weight, counts, **attributes)
    assert_close(y, torch.einsum("mk,mkcn->mcn", x[0], weight[group])[None])
    (dx,) = run("ragged_matmul_input_gradient", dy, weight, counts, **attributes)
    assert_close(dx, torch.einsum("mcn,mkcn->mk", dy[0], weight[group])[None])
    (dw,) = run("ragged_matmul_weight_gradient", x, dy, counts, **attributes)
    expected = torch.stack([torch.einsum("mk,mcn->kcn", x[0, group == g], dy[0, group == g]) for g in range(3)])
    assert_close(dw, expected)
    total = random(3, 4, 2, 5, seed=3)
    before = total.clone()
    (added,) = run("ragged_matmul_weight_gradient", x, dy, counts, total, **attributes)
    assert added is total
    assert_close(added, before + expected)
