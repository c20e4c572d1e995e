"""The kernels of a layer of experts, against autograd and the laws of dispatch."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backends.torch.values.randomness import expert_draws
from tests.backends.kernels.test_kernels import assert_close, gradients, random, run

S, B, H, E, K, F = 6, 3, 8, 5, 2, 7


def routed(logits: Tensor, *, capacity: int, top_k: int = K, balanced: bool = False) -> tuple[Tensor, ...]:
    """Return weights, experts and slots."""
    return run("route", logits, top_k=top_k, capacity=capacity, balanced=balanced)


routings = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 12), "samples": st.integers(1, 3), "num_experts": st.integers(2, 6),
        "top_k": st.integers(1, 2), "capacity": st.integers(1, 14), "seed": st.integers(0, 99),
        "balanced": st.booleans(),
    }
)  # fmt: skip


def choices_of(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, experts and slots of a case's random scores."""
    logits = random(case["tokens"], case["samples"], case["num_experts"], seed=case["seed"])
    options = {key: case[key] for key in ("capacity", "top_k", "balanced")}
    weights, experts, slots = routed(logits, **options)
    return weights, experts.long(), slots.long()


@given(routings)
def test_every_slot_has_one_choice_at_most_and_lies_with_its_expert(case: dict[str, Any]) -> None:
    """No two choices share a slot, a kept one's slot is its expert's, and a dropped one's expert has none left."""
    _, experts, slots = choices_of(case)
    capacity, none = case["capacity"], case["num_experts"] * case["capacity"]
    kept = slots < none
    assert slots[kept].unique().numel() == slots[kept].numel()
    assert torch.equal(slots[kept] // capacity, experts[kept])
    filled = torch.bincount(experts[kept], minlength=case["num_experts"])
    asked = torch.bincount(experts.flatten(), minlength=case["num_experts"])
    assert torch.equal(filled, asked.clamp(max=capacity))


@given(routings)
def test_choices_are_served_in_turn(case: dict[str, Any]) -> None:
    """All first choices come before all second ones, each in token order: fill[e] counts up, as in a plain loop."""
    _, experts, slots = choices_of(case)
    fill = [0] * case["num_experts"]
    flat, found = experts.flatten(0, 1).tolist(), slots.flatten(0, 1).tolist()
    for choice in range(case["top_k"]):
        for token, chosen in enumerate(flat):
            expert = chosen[choice]
            is_kept = fill[expert] < case["capacity"]
            wanted = expert * case["capacity"] + fill[expert] if is_kept else case["num_experts"] * case["capacity"]
            assert found[token][choice] == wanted
            fill[expert] += is_kept


@given(routings)
def test_combination_undoes_dispatch(case: dict[str, Any]) -> None:
    """Each token comes back once per kept choice, weighted: where nothing is dropped and weights add up, as it was."""
    weights, _, slots = choices_of(case)
    x = random(case["tokens"], case["samples"], 4, seed=1)
    sizes = {"num_experts": case["num_experts"], "capacity": case["capacity"]}
    (dispatched,) = run("dispatch", x, slots.to(torch.int32), **sizes)
    kept = slots < case["num_experts"] * case["capacity"]
    assert_close([dispatched.sum((0, 1))], [(x * kept.sum(-1, keepdim=True)).sum((0, 1))])
    (back,) = run("combine", dispatched, weights, slots.to(torch.int32))
    assert_close([back], [x * (weights * kept).sum(-1, keepdim=True)])
    if case["top_k"] > 1 and bool(kept.all()):
        assert_close([back], [x])


@pytest.mark.parametrize("balance_loss", [0.0, 0.7])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_weights_are_the_softmax_renormalised(top_k: int, balance_loss: float) -> None:
    """Those of the chosen add up to one, in the ratios of the whole softmax; a single one keeps its share of it.

    The balance loss of T tokens is T c E sum_e f_e p_e, c from each.
    """
    logits = random(S, B, E)
    shares = logits.softmax(-1)
    best, experts = shares.topk(top_k, -1)
    weights, chosen, _ = routed(logits, capacity=99, top_k=top_k)
    assert torch.equal(chosen.long(), experts)
    assert_close([weights], [best / best.sum(-1, keepdim=True) if top_k > 1 else best])
    dw = random(S, B, top_k, seed=2)

    def reference(scores: Tensor) -> Tensor:
        found = scores.softmax(-1).gather(-1, experts)
        return found / found.sum(-1, keepdim=True) if top_k > 1 else found

    def balance(scores: Tensor) -> Tensor:
        parts = torch.stack([(experts == e).to(scores.dtype).mean() for e in range(E)])
        return balance_loss * S * B * E * (parts * scores.softmax(-1).mean((0, 1))).sum()

    [of_weights] = gradients(reference, (logits,), dw)
    [of_balance] = gradients(balance, (logits,), torch.ones((), dtype=torch.float64))
    found = run("route_backward", dw, logits, chosen, balance_loss=balance_loss)
    assert_close(found, [of_weights + of_balance])


def test_balanced_routing_gives_every_expert_as_many() -> None:
    """Choices are dealt out in turn, and the weights are still the router's."""
    logits = random(5, 4, 4)
    _, experts, slots = routed(logits, capacity=10, balanced=True)
    assert experts.flatten().bincount().tolist() == [10] * 4
    assert int(slots.max()) < 40


@pytest.mark.parametrize("capacity", [2, S * B])
def test_dispatch_and_combination_have_autograds_gradients(capacity: int) -> None:
    """With choices dropped, and with none."""
    weights, _, slots = routed(random(S, B, E, seed=4), capacity=capacity)
    kept = slots.long() < E * capacity
    places = torch.nn.functional.one_hot(slots.long(), E * capacity + 1)[..., :-1].to(torch.float64)
    assert bool(kept.all()) == (capacity == S * B)

    def dispatched(x: Tensor) -> Tensor:
        return torch.einsum("sbkc,sbh->ch", places, x).view(E, capacity, H)

    def combined(y: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("sbkc,ch,sbk->sbh", places, y.flatten(0, 1), w)

    x, y = random(S, B, H), random(E, capacity, H, seed=1)
    assert_close(run("dispatch", x, slots, num_experts=E, capacity=capacity), [dispatched(x)])
    assert_close(run("dispatch_backward", y, slots), gradients(dispatched, (x,), y))
    assert_close(run("combine", y, weights, slots), [combined(y, weights)])
    assert_close(run("combine_backward", x, y, weights, slots), gradients(combined, (y, weights), x))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_regrouping_sorts_by_expert_and_back(ranks: int, num_experts: int, capacity: int) -> None:
    """Row c of expert e from rank r is row r C + c of expert e; the other way undoes it."""
    received = random(ranks * num_experts, capacity, 2)
    (sorted_,) = run("regroup", received, parts=ranks, by_expert=True)
    for rank in range(ranks):
        for expert in range(num_experts):
            rows = sorted_[expert, rank * capacity : (rank + 1) * capacity]
            assert torch.equal(rows, received[rank * num_experts + expert])
    assert_close(run("regroup", sorted_, parts=ranks, by_expert=False), [received])


@pytest.mark.parametrize("inner", [(F,), (2, F)])
def test_grouped_products_match_einsum(inner: tuple[int, ...]) -> None:
    """Forward, input gradient and weight gradient, accumulated or not."""
    x, w = random(E, S, H), random(E, H, *inner, seed=1)
    equation = "gmk,gkn->gmn" if len(inner) == 1 else "gmk,gkcn->gmcn"
    (y,) = run("grouped_matmul", x, w)
    assert_close([y], [torch.einsum(equation, x, w)])
    dy, before = random(*y.shape, seed=2), random(*w.shape, seed=3)
    dx, dw = gradients(lambda a, b: torch.einsum(equation, a, b), (x, w), dy)
    accumulated = before.clone()
    (returned,) = run("grouped_matmul_weight_gradient", x, dy, accumulated)
    assert returned is accumulated
    assert_close(run("grouped_matmul_weight_gradient", x, dy), [dw])
    assert_close([*run("grouped_matmul_input_gradient", dy, w), accumulated], [dx, before + dw])


def test_router_multiplies_in_32_bits() -> None:
    """Scores of operands of 16 bits have 32, and are those of the same operands in 32."""
    x, w = random(S, B, H).bfloat16(), random(H, E, seed=1).bfloat16()
    (logits,) = run("router_matmul", x, w)
    assert logits.dtype is torch.float32
    assert torch.equal(logits, x.float() @ w.float())


def test_router_has_autograds_gradients() -> None:
    """Input gradient and weight gradient, accumulated or not."""
    x, w, dy = random(S, B, H), random(H, E, seed=1), random(S, B, E, seed=2)
    dx, dw = gradients(torch.matmul, (x, w), dy)
    before = random(H, E, seed=3)
    accumulated = run("router_matmul_weight_gradient", x, dy, before.clone())
    assert_close([*run("router_matmul_input_gradient", dy, w), *accumulated], [dx, before + dw])
    assert_close(run("router_matmul_weight_gradient", x, dy), [dw])


def test_prototypes_choose_the_best_of_each_group() -> None:
    """Each choice is the largest score of its group, weighed by its softmax there; the gradient is autograd's."""
    logits = random(S, B, 6)
    weights, experts, _ = run("route_k_top_1", logits, top_k=2, capacity=S * B)
    leaf = logits.clone().requires_grad_()
    halves = [leaf[..., :3].softmax(-1), leaf[..., 3:].softmax(-1)]
    best = torch.stack([half.max(-1).values for half in halves], -1)
    assert torch.equal(experts, torch.stack([logits[..., :3].argmax(-1), 3 + logits[..., 3:].argmax(-1)], -1).int())
    assert_close(weights, best.detach())
    dy = random(S, B, 2, seed=1)
    (expected,) = torch.autograd.grad(best, leaf, dy)
    assert_close(run("route_k_top_1_backward", dy, logits, experts)[0], expected)


@settings(max_examples=8)
@given(st.integers(0, 99), st.integers(2, 6))
def test_an_assignment_gives_every_token_a_slot_and_scores_most(seed: int, capacity: int) -> None:
    """No token is lost, no expert has more than its slots, and no other way to fill these has larger scores."""
    logits = random(3, 2, 3, seed=seed)
    weights, experts, slots = run("route_base", logits, top_k=1, capacity=capacity)
    chosen, scores = experts.flatten().long(), logits.flatten(0, 1)
    assert len(set(slots.flatten().tolist())) == 6
    assert torch.equal(slots.flatten() // capacity, experts.flatten())
    ways = [way for way in product(range(3), repeat=6) if max(map(way.count, range(3))) <= capacity]
    table = scores.tolist()
    best = max(sum(table[token][expert] for token, expert in enumerate(way)) for way in ways)
    assert float(scores.gather(1, chosen[:, None]).sum()) == pytest.approx(best)
    assert_close(weights, logits.softmax(-1).gather(-1, experts.long()))


@given(st.integers(0, 99), st.integers(1, 3), st.sampled_from([1, 2, 3]))
def test_a_limited_gate_chooses_from_the_best_groups(seed: int, top_k: int, top_groups: int) -> None:
    """All choices lie in so many groups; with as many as there are it is the plain gate."""
    logits = random(S, B, 9, seed=seed)
    options = {"top_k": top_k, "capacity": S * B}
    _, experts, _ = run("route_group_limited", logits, num_groups=3, top_groups=top_groups, **options)
    counted = max(1, top_k // top_groups)
    sums = logits.unflatten(-1, (3, 3)).sort(-1, descending=True).values[..., :counted].sum(-1)
    ranks = sums.argsort(-1, descending=True).argsort(-1)
    assert bool((ranks.gather(-1, experts.long() // 3) < top_groups).all())
    if top_groups == 3:
        plain = run("route", logits, balanced=False, **options)
        assert torch.equal(experts, plain[1])


@settings(max_examples=10)
@given(st.integers(0, 99), st.integers(1, 3))
def test_biases_choose_and_do_not_weigh(seed: int, top_k: int) -> None:
    """Choices are the best sums of sigmoid and bias, weights the sigmoids' shares; the gradient is autograd's."""
    logits, bias = random(S, B, E, seed=seed), random(E, seed=seed + 1)
    options = {"top_k": top_k, "capacity": S * B, "num_groups": 1, "top_groups": 1}
    weights, experts, _ = run("route_biased", logits, bias, **options)
    chosen = experts.long()
    assert torch.equal(chosen, (logits.sigmoid() + bias).topk(top_k, -1).indices)
    leaf = logits.clone().requires_grad_()
    scores = leaf.sigmoid().gather(-1, chosen)
    expected = scores / scores.sum(-1, keepdim=True) if top_k > 1 else scores
    assert_close(weights, expected.detach())
    dy = random(S, B, top_k, seed=seed + 2)
    (of_logits,) = torch.autograd.grad(expected, leaf, dy)
    assert_close(run("route_biased_backward", dy, logits, experts)[0], of_logits)


def test_biases_even_out_the_loads_of_experts() -> None:
    """One expert scores best for nearly all tokens; after some hundred updates no expert has 1.3 times its share."""
    logits = random(64, 4, E) + torch.linspace(0.0, 3.0, E)
    bias, counts = torch.zeros(E, dtype=torch.float64), torch.zeros(E, dtype=torch.float64)
    options = {"top_k": 1, "capacity": 256, "num_groups": 1, "top_groups": 1}
    loads = []
    for _ in range(300):
        _, experts, _ = run("route_biased", logits, bias, **options)
        run("count_choices", experts, counts)
        loads.append(float(counts.max() / counts.mean()))
        run("update_bias", bias, counts, rate=0.01)
        assert not counts.any()
    assert loads[0] > 1.8
    assert max(loads[-10:]) < 1.3


@given(st.integers(0, 99), st.integers(1, S * B))
def test_experts_take_the_tokens_that_score_them_highest(seed: int, capacity: int) -> None:
    """Every expert's slots are filled, each by a token of its own, and no token that it leaves weighs more."""
    logits = random(S, B, E, seed=seed)
    weights, slots = run("route_expert_choice", logits, capacity=capacity)
    assert_close([weights], [logits.softmax(-1)])
    flat, shares = slots.view(-1, E).long(), weights.view(-1, E)
    for expert in range(E):
        taken = flat[:, expert] < E * capacity
        assert sorted(flat[taken, expert].tolist()) == [*range(expert * capacity, (expert + 1) * capacity)]
        left = [0.0, *shares[~taken, expert].tolist()]
        assert float(shares[taken, expert].min()) >= max(left)


@given(st.integers(0, 99), st.integers(1, 40))
def test_second_choices_of_gshard_are_drawn(seed: int, capacity: int) -> None:
    """First choices are all served while there are slots; of the second ones those above their draw are never sent."""
    logits = random(S, B, E, seed=seed)
    weights, experts, slots = run("route_gshard", logits, top_k=2, capacity=capacity, salt="layer0.route")
    plain = run("route", logits, top_k=2, capacity=capacity, balanced=False)
    assert torch.equal(experts, plain[1])
    assert_close([weights], [plain[0]])
    assert torch.equal(slots[..., 0], plain[2][..., 0])
    draws = expert_draws(5, 0, "layer0.route", first_sample=0, num_samples=B, positions=torch.arange(S))
    assert bool((slots[..., 1][draws >= 2.0 * weights[..., 1]] == E * capacity).all())
    if capacity >= S * B:
        assert bool((slots[..., 1][draws < 2.0 * weights[..., 1]] < E * capacity).all())


def test_words_have_a_fixed_expert() -> None:
    """Equal ids go to one expert, whatever their place; many ids spread over all experts about evenly."""
    ids = torch.arange(4000).repeat(2).view(-1, 2)
    options = {"num_experts": E, "capacity": 8000, "salt": "layer1.route", "dtype": "float64"}
    weights, experts, _ = run("route_hash", ids, **options)
    flat = experts.flatten()
    assert torch.equal(flat[:4000], flat[4000:])
    assert bool((weights == 1.0).all())
    counts = flat[:4000].bincount(minlength=E)
    assert float(counts.max()) < 1.15 * 4000 / E


@given(routings)
def test_one_hot_products_are_the_lookups(case: dict[str, Any]) -> None:
    """Dispatch and combination by masks, forward and backward, give what looking up rows gives."""
    weights, _, slots = choices_of(case)
    sizes, chosen = {"num_experts": case["num_experts"], "capacity": case["capacity"]}, slots.to(torch.int32)
    x = random(case["tokens"], case["samples"], 4, seed=1)
    ones, combining = run("slot_masks", weights, chosen, **sizes, dtype="float64")
    (rows,) = run("dispatch", x, chosen, **sizes)
    assert_close(run("einsum_dispatch", x, ones), [rows])
    assert_close(run("einsum_dispatch_backward", rows, ones), run("dispatch_backward", rows, chosen))
    assert_close(run("einsum_combine", rows, combining), run("combine", rows, weights, chosen))
    dy, dmask = run("einsum_combine_backward", x, rows, combining)
    assert_close([dy, *run("slot_masks_backward", dmask, chosen)], run("combine_backward", x, rows, weights, chosen))
