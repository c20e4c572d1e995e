"""Replicate or shard, operator by operator: the exact search against all plans, the paper's and an integer program."""

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from costmodels.collectives.catalogue import collective_steps
from costmodels.collectives.cost import lower_bound_bytes
from sim.training.data.knapsack import Item, Knapsack
from sim.training.data.osdp import (
    REPLICATED,
    SHARDED,
    Choice,
    MemoryLimitError,
    Operator,
    OperatorError,
    Ranks,
    ShardingPlan,
    best_plan,
    cheapest_plan,
    choices_of,
    communication_s,
    depth_first_plan,
    evaluate,
    gathered_bytes,
    state_bytes,
    time_s,
)
from tests.examples import examples

TOY = [Operator(name=f"op {i}", parameter_bytes=s, state_bytes=4 * s) for i, s in enumerate((4, 8, 8, 2, 16))]


def toy_ranks(memory_bytes: int) -> Ranks:
    """Return eight ranks without latency, one byte per second."""
    return Ranks(num_ranks=8, latency_s=0.0, bytes_per_s=1.0, memory_bytes=memory_bytes)


def all_plans(operators: Sequence[Operator], ranks: Ranks, num_samples: int) -> list[ShardingPlan]:
    """Return every plan, whether it fits or not."""
    every = product(*(choices_of(operator) for operator in operators))
    return [evaluate(operators, choices, ranks, num_samples) for choices in every]


@st.composite
def operators_of(draw: st.DrawFn, least: int, most: int) -> list[Operator]:
    """Return operators whose times are exact sums; states need not follow the parameters."""
    size = st.integers(0, 40)
    return [
        Operator(
            name=f"op {i}",
            parameter_bytes=8 * draw(size),
            state_bytes=draw(st.integers(0, 600)),
            activation_bytes=draw(st.integers(0, 20)),
            compute_s=draw(size) / 16,
            slices=draw(st.sampled_from([(1,), (1, 2), (2,), (1, 4)])),
            slice_s=draw(st.integers(0, 4)) / 16,
        )
        for i in range(draw(st.integers(least, most)))
    ]


@st.composite
def ranks_of(draw: st.DrawFn) -> Ranks:
    """Return ranks with exact times and too much, some or too little memory for small operators."""
    return Ranks(
        num_ranks=draw(st.sampled_from([1, 2, 4, 8])),
        latency_s=draw(st.sampled_from([0.0, 1 / 16, 4.0])),
        bytes_per_s=draw(st.sampled_from([1.0, 8.0])),
        memory_bytes=draw(st.integers(0, 1500)),
        gathered_copies=draw(st.sampled_from([1, 2])),
    )


# --- cost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_communication_is_that_of_ring_collectives(num_ranks: int) -> None:
    """Bytes and latencies are those of one all_reduce, or of two all_gathers and a reduce_scatter, on a ring."""
    operator = Operator(name="linear", parameter_bytes=7 * num_ranks, state_bytes=0)
    bytes_only = Ranks(num_ranks=num_ranks, latency_s=0.0, bytes_per_s=1.0, memory_bytes=0)
    latency_only = Ranks(num_ranks=num_ranks, latency_s=1.0, bytes_per_s=math.inf, memory_bytes=0)
    kinds = {REPLICATED: ["all_reduce"], SHARDED: ["all_gather", "all_gather", "reduce_scatter"]}
    for choice, collectives in kinds.items():
        least = [lower_bound_bytes(kind, operator.parameter_bytes, num_ranks) for kind in collectives]
        assert communication_s(operator, choice, bytes_only) == pytest.approx(sum(least), rel=1e-15)
        if num_ranks > 1:
            rounds = [collective_steps(kind, "ring", (num_ranks,)).num_rounds for kind in collectives]
            assert communication_s(operator, choice, latency_only) == sum(rounds)


@settings(max_examples=examples(24))
@given(operators=operators_of(1, 1), ranks=ranks_of(), parts=st.integers(1, 4), data=st.data())
def test_a_slice_is_an_operator(operators: list[Operator], ranks: Ranks, parts: int, data: st.DataObject) -> None:
    """A split operator communicates as its slices would on their own, and gathers one of them at a time."""
    sharded = data.draw(st.integers(0, parts))
    whole = Operator(
        name="whole",
        parameter_bytes=operators[0].parameter_bytes * parts,
        state_bytes=operators[0].state_bytes * parts * ranks.num_ranks,
    )
    piece = Operator(
        name="piece",
        parameter_bytes=operators[0].parameter_bytes,
        state_bytes=operators[0].state_bytes * ranks.num_ranks,
    )
    choice = Choice(parts, sharded)
    alone = [SHARDED] * sharded + [REPLICATED] * (parts - sharded)
    assert communication_s(whole, choice, ranks) == sum(communication_s(piece, one, ranks) for one in alone)
    assert state_bytes(whole, choice, ranks) == sum(state_bytes(piece, one, ranks) for one in alone)
    assert gathered_bytes(whole, choice, ranks) == max(gathered_bytes(piece, one, ranks) for one in alone)


def test_costs_of_a_split_operator() -> None:
    """By hand: 3 of 4 slices sharded over 2 ranks, 5 samples; sizes are rounded up to whole bytes."""
    operator = Operator(
        name="op", parameter_bytes=10, state_bytes=13, activation_bytes=7, compute_s=2.0, slices=(4,), slice_s=0.5
    )
    ranks = Ranks(num_ranks=2, latency_s=0.25, bytes_per_s=5.0, memory_bytes=0, gathered_copies=2)
    choice = Choice(4, 3)
    assert communication_s(operator, choice, ranks) == 11 * (0.25 + 0.25)
    assert time_s(operator, choice, ranks, 5) == 5.5 + 5 * 2.0 + 3 * 0.5
    assert state_bytes(operator, choice, ranks) == 9  # 13 (1 + 3/2) / 4 = 8.125
    assert gathered_bytes(operator, choice, ranks) == 6  # two copies of 3, from 10/4 = 2.5
    plan = evaluate([operator], [choice], ranks, 5)
    assert (plan.step_s, plan.peak_bytes) == (17.0, 9 + 5 * 7 + 6)
    assert plan.samples_per_s == 10 / 17


def test_zero_three_takes_half_as_long_again() -> None:
    """Sharding everything costs 3/2 of the communication of replicating everything, and 1/N of the states."""
    ranks = toy_ranks(0)
    replicated, sharded = (evaluate(TOY, [choice] * len(TOY), ranks, 1) for choice in (REPLICATED, SHARDED))
    assert sharded.step_s == 1.5 * replicated.step_s == 99.75
    assert replicated.peak_bytes == 152
    assert sharded.peak_bytes == 152 / 8 + 16


# --- the plan of least time --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "step_s"), [(35, 99.75), (40, 99.75), (60, 94.5), (80, 89.25), (120, 77), (151, 68.25), (152, 66.5)]
)
def test_toy_case(limit: int, step_s: float) -> None:
    """The toy case: N = 8, no latency, states four times the parameters."""
    plan = cheapest_plan(TOY, toy_ranks(limit), 1)
    assert plan.step_s == step_s
    assert plan.peak_bytes <= limit


def test_toy_case_without_room() -> None:
    """At 19 bytes nothing fits: all sharded is 19 bytes of states, and the largest operator must be gathered."""
    with pytest.raises(MemoryLimitError, match="the smallest needs 35 B, so 16 B are missing") as caught:
        cheapest_plan(TOY, toy_ranks(19), 1)
    assert (caught.value.least_bytes, caught.value.missing_bytes) == (35, 16)


@settings(max_examples=examples(80))
@given(operators=operators_of(0, 4), ranks=ranks_of(), num_samples=st.integers(1, 3))
def test_no_plan_that_fits_is_faster(operators: list[Operator], ranks: Ranks, num_samples: int) -> None:
    """Exact search, the paper's search and all plans agree on the least time, or on the memory that is missing."""
    plans = all_plans(operators, ranks, num_samples)
    fitting = [plan.step_s for plan in plans if plan.peak_bytes <= ranks.memory_bytes]
    if fitting:
        plan = cheapest_plan(operators, ranks, num_samples)
        assert plan.step_s == min(fitting) == depth_first_plan(operators, ranks, num_samples).plan.step_s
        assert plan.peak_bytes <= ranks.memory_bytes
        assert plan == evaluate(operators, plan.choices, ranks, num_samples)
        return
    for search in (cheapest_plan, depth_first_plan):
        with pytest.raises(MemoryLimitError) as caught:
            search(operators, ranks, num_samples)
        assert caught.value.least_bytes == min(plan.peak_bytes for plan in plans)
        assert caught.value.missing_bytes == caught.value.least_bytes - ranks.memory_bytes


def integer_program_s(operators: Sequence[Operator], ranks: Ranks, num_samples: int) -> float:
    """Return the least time by HiGHS: x chooses, one variable is the largest gathered slice, all memory in one row."""
    columns = [(i, operator, choice) for i, operator in enumerate(operators) for choice in choices_of(operator)]
    times = [evaluate([operator], [choice], ranks, num_samples).step_s for _, operator, choice in columns]
    gathered = [gathered_bytes(operator, choice, ranks) for _, operator, choice in columns]
    held = [
        state_bytes(operator, choice, ranks) + num_samples * operator.activation_bytes
        for _, operator, choice in columns
    ]
    one_each = np.array([[float(i == j) for j, _, _ in columns] + [0.0] for i in range(len(operators))])
    largest = np.array(
        [
            [-float(g) if i == j else 0.0 for (j, _, _), g in zip(columns, gathered, strict=True)] + [1.0]
            for i in range(len(operators))
        ]
    )
    found = milp(
        [*times, 0.0],
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(largest, 0, np.inf),
            LinearConstraint(np.array([[*held, 1.0]]), -np.inf, ranks.memory_bytes),
        ],
        integrality=[1] * len(columns) + [0],
        bounds=Bounds(0, [1.0] * len(columns) + [np.inf]),
        options={"mip_rel_gap": 0.0},
    )
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("seed", range(6))
def test_an_integer_program_finds_the_same(seed: int) -> None:
    """Twenty operators of four kinds and odd sizes: the time is that of a mixed-integer program solved by HiGHS."""
    random = np.random.default_rng(seed)
    kinds = [(int(random.integers(100, 900)), int(random.integers(6, 10))) for _ in range(4)]
    operators = [
        Operator(
            name=f"{i}", parameter_bytes=size, state_bytes=size * states, activation_bytes=size // 7,
            slices=(1, 4) if i % 2 else (1,), slice_s=0.01,
        )
        for i, (size, states) in enumerate(kinds * 5)
    ]  # fmt: skip
    total = sum(operator.state_bytes for operator in operators)
    memory = int(total * random.uniform(0.35, 0.9))
    ranks = Ranks(num_ranks=6, latency_s=0.3, bytes_per_s=37.0, memory_bytes=memory)
    plan = cheapest_plan(operators, ranks, 2)
    assert plan.peak_bytes <= memory
    assert plan.step_s == pytest.approx(integer_program_s(operators, ranks, 2), rel=1e-9)


def test_splitting_lets_a_large_operator_fit() -> None:
    """Gathered whole, an operator does not fit; in four slices it does, for the latency of the slices."""
    large = {"name": "large", "parameter_bytes": 80, "state_bytes": 160}
    ranks = Ranks(num_ranks=8, latency_s=1.0, bytes_per_s=1.0, memory_bytes=40)
    with pytest.raises(MemoryLimitError, match="so 60 B"):
        cheapest_plan([Operator(**large)], ranks, 1)
    plan = cheapest_plan([Operator(**large, slices=(1, 2, 4))], ranks, 1)
    assert plan.choices == (Choice(4, 4),)
    assert plan.peak_bytes == 20 + 20
    assert plan.step_s == 7 * 12 * (1.0 + 80 / 32)


def test_replicating_the_largest_may_need_least() -> None:
    """Where sharding saves less than must be gathered, the smallest plan shards only part."""
    operators = [
        Operator(name="wide", parameter_bytes=100, state_bytes=100),
        Operator(name="deep", parameter_bytes=10, state_bytes=100),
    ]
    ranks = Ranks(num_ranks=2, latency_s=0.0, bytes_per_s=1.0, memory_bytes=160)
    assert cheapest_plan(operators, ranks, 1).choices == (REPLICATED, SHARDED)
    assert depth_first_plan(operators, ranks, 1).plan.choices == (REPLICATED, SHARDED)


def test_repeated_layers_are_fast() -> None:
    """A plan of 48 equal layers of four operators, split up to four ways, stays small, and beats sharding all."""
    sizes = {"qkv": 3, "projection": 1, "up": 4, "down": 4}
    operators = [
        Operator(name=f"{layer}.{name}", parameter_bytes=2 * n * 2**20, state_bytes=16 * n * 2**20, slices=(1, 2, 4))
        for layer in range(48)
        for name, n in sizes.items()
    ]
    ranks = Ranks(num_ranks=8, latency_s=2e-5, bytes_per_s=1e10, memory_bytes=5 * 2**30)
    plan = cheapest_plan(operators, ranks, 1)
    assert plan.peak_bytes <= ranks.memory_bytes
    assert plan.step_s < evaluate(operators, [SHARDED] * len(operators), ranks, 1).step_s
    assert plan.step_s >= evaluate(operators, [REPLICATED] * len(operators), ranks, 1).step_s


def test_depth_first_leaves_out_what_does_not_fit() -> None:
    """Without a limit the paper's search looks at all 2^6 - 1 partial plans of five operators; with one, at fewer."""
    assert depth_first_plan(TOY, toy_ranks(1000), 1).num_visited == 63
    assert depth_first_plan(TOY, toy_ranks(40), 1).num_visited < 63


# --- the batch ---------------------------------------------------------------------------------------------


@settings(max_examples=examples(24))
@given(operators=operators_of(1, 3), ranks=ranks_of(), most=st.integers(1, 6))
def test_no_batch_has_a_higher_throughput(operators: list[Operator], ranks: Ranks, most: int) -> None:
    """Over all batches and plans that fit, none has more samples per second."""
    plans = [plan for b in range(1, most + 1) for plan in all_plans(operators, ranks, b)]
    fitting = [plan.samples_per_s for plan in plans if plan.peak_bytes <= ranks.memory_bytes]
    if fitting:
        assert best_plan(operators, ranks, most_samples=most).samples_per_s == max(fitting)
    else:
        with pytest.raises(MemoryLimitError, match="with 1 samples per rank"):
            best_plan(operators, ranks, most_samples=most)


def test_larger_batches_may_pay_for_sharding() -> None:
    """With room for two replicated samples, sharding for a third or fourth raises the throughput all the same."""
    operators = [Operator(name="op", parameter_bytes=8, state_bytes=64, activation_bytes=18, compute_s=1 / 8)]
    ranks = toy_ranks(100)
    assert best_plan(operators, ranks, most_samples=2).choices == (REPLICATED,)
    best = best_plan(operators, ranks, most_samples=9)
    assert (best.choices, best.num_samples) == ((SHARDED,), 4)
    assert best.samples_per_s == 4 * 8 / (21.0 + 0.5)


# --- the knapsack, and what is refused ---------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(
    classes=st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4), min_size=0, max_size=4
    ),
    budget=st.integers(-1, 90),
)
def test_knapsack_finds_the_cheapest_choice(classes: list[list[tuple[int, int]]], budget: int) -> None:
    """Of all choices within the budget its cost is the least; its names say which; its bound is no more."""
    items = [[Item(weight, cost / 4, i) for i, (weight, cost) in enumerate(row)] for row in classes]
    fitting = [choice for choice in product(*items) if sum(item.weight for item in choice) <= budget]
    knapsack = Knapsack.make(items, budget)
    found = knapsack.solve()
    if not fitting:
        assert found is None
        assert knapsack.bound == math.inf
        return
    assert found is not None
    assert found.cost == min(sum(item.cost for item in choice) for choice in fitting)
    assert tuple(row[name] for row, name in zip(items, found.names, strict=True)) in fitting
    assert sum(row[name].cost for row, name in zip(items, found.names, strict=True)) == found.cost
    assert knapsack.bound <= found.cost * (1 + 1e-12)
    assert knapsack.solve(found.cost) == found
    assert knapsack.solve(found.cost - 0.25) is None


@settings(max_examples=examples(40))
@given(operators=operators_of(1, 4), ranks=ranks_of(), gap=st.sampled_from([0.01, 0.1, 0.5]))
def test_gap_bounds_the_loss(operators: list[Operator], ranks: Ranks, gap: float) -> None:
    """With a gap the plan fits, and takes at most that much longer than the fastest."""
    fitting = [plan.step_s for plan in all_plans(operators, ranks, 1) if plan.peak_bytes <= ranks.memory_bytes]
    if fitting:
        plan = cheapest_plan(operators, ranks, 1, gap=gap)
        assert plan.peak_bytes <= ranks.memory_bytes
        assert min(fitting) <= plan.step_s <= min(fitting) * (1 + gap)


def test_gap_keeps_odd_sizes_tractable() -> None:
    """Sixty operators of sixty sizes, whose sums all differ: near what sharding by fractions would take."""
    random = np.random.default_rng(0)
    operators = [
        Operator(name=f"{i}", parameter_bytes=size, state_bytes=8 * size)
        for i, size in enumerate(random.integers(10**6, 10**9, 60).tolist())
    ]
    memory = sum(operator.state_bytes for operator in operators) // 2
    ranks = Ranks(num_ranks=8, latency_s=1e-5, bytes_per_s=1e10, memory_bytes=memory)
    plan = cheapest_plan(operators, ranks, 1, gap=0.01)
    assert plan.peak_bytes <= memory
    replicated = evaluate(operators, [REPLICATED] * 60, ranks, 1)
    share = (replicated.peak_bytes - memory) / (replicated.peak_bytes * 7 / 8)
    assert replicated.step_s * (1 + share / 2) * 0.999 <= plan.step_s <= replicated.step_s * (1 + share / 2) * 1.03


def test_knapsack_beats_the_greedy_choice() -> None:
    """What saves most per weight keeps out two others that fill the budget to the brim; a gap keeps its promise."""
    classes = [
        [Item(0, 8.0, 0), Item(5, 0.0, 1)],
        [Item(0, 8.0, 0), Item(5, 0.0, 1)],
        [Item(0, 10.0, 0), Item(6, 0.0, 1)],
    ]
    knapsack = Knapsack.make(classes, 10)
    assert knapsack.solve() == (10.0, (1, 1, 0))
    assert knapsack.bound == pytest.approx(26.0 - 10.0 - 6.4)
    near = knapsack.solve(gap=0.5)
    assert near is not None
    assert near.cost <= 15.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Operator(name="bad", parameter_bytes=-1, state_bytes=0), "bad: a size or time is negative"),
        (lambda: Operator(name="bad", parameter_bytes=1, state_bytes=0, compute_s=math.nan), "not finite"),
        (lambda: Operator(name="bad", parameter_bytes=1, state_bytes=0, slices=()), "numbers of slices"),
        (lambda: Operator(name="bad", parameter_bytes=1, state_bytes=0, slices=(0, 2)), "each 1 or more"),
        (lambda: Ranks(num_ranks=0, latency_s=0.0, bytes_per_s=1.0, memory_bytes=1), "no ranks"),
        (lambda: Ranks(num_ranks=1, latency_s=0.0, bytes_per_s=0.0, memory_bytes=1), "bandwidth positive"),
        (lambda: cheapest_plan(TOY, toy_ranks(99), 0), "0 samples per rank"),
        (lambda: cheapest_plan(TOY, toy_ranks(99), 1, gap=-0.1), "the gap is -0.1"),
        (lambda: best_plan(TOY, toy_ranks(99), most_samples=0), "at most 0 samples"),
        (lambda: evaluate(TOY[:1], [Choice(2, 3)], toy_ranks(99), 1), "op 0: 3 of 2 slices are sharded"),
    ],
)
def test_impossible_numbers_are_refused(call: Callable[[], object], words: str) -> None:
    """Operators, ranks and choices that cannot be are named."""
    with pytest.raises(OperatorError, match=words):
        call()
