"""OSDP on plans: what operators are, what their choices cost, and that the fastest that fits is chosen."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from costmodels.memory import ALLOCATION_GRANULE_BYTES
from scenarios.choices.operators import RankOptions, RankSearch, choices_of_ranks, chosen_within, options_of_ranks
from sim.engine.running.memory import memory_use
from sim.plan.checking.check import check
from sim.plan.facts.description import collective_bytes
from sim.plan.words.buffer import Scope
from sim.plan.words.op import Collective, CollectiveKind, Op
from sim.plan.words.program import Program
from sim.training.data.operator_costs import (
    UniformPlan,
    options_of,
    parameters_of,
    slice_costs,
    uniform_choices,
)
from sim.training.data.operators import linear_layers, operator_slices
from sim.training.data.osdp import (
    Operator,
    Option,
    Ranks,
    cheapest,
    communication_s,
    depth_first,
    gathered_bytes,
    least_bytes,
    state_bytes,
)
from sim.training.errors import SpecError
from sim.training.spec.job import DenseTraining, OpenTraining, OsdpSpec, stated_training
from sim.training.spec.openings import Opening
from sim.training.spec.parallelism.sharding import Choice, ShardingSpec
from sim.training.steps.builder import build_dense_training
from tests.sim.jobs import GPT, LLAMA, dense_job, job_parts, open_job, pricing_on

SMALL = GPT | {"num_layers": 1}
GIB = 2**30


def osdp_job(*, splits: Sequence[int] = (1,), limit: int | None = None, **keys: Any) -> OpenTraining:
    """Return a job on four replicas in which nothing is chosen yet."""
    osdp = OsdpSpec(memory_limit_bytes=limit, splits=tuple(splits))
    return open_job(**{"dp": 4, "precision": "fp32", "osdp": osdp, **keys})


def choosing(job: OpenTraining, choices: dict[str, Choice]) -> DenseTraining:
    """Return the job with given choices."""
    assert job.parallel.osdp is not None
    osdp = replace(job.parallel.osdp, choices=tuple(choices.items()))
    return job.decided(replace(job.parallel, osdp=osdp))


def programs_of(job: DenseTraining) -> tuple[Program, ...]:
    """Return the programs of a job's plan, which is sound."""
    plan = build_dense_training(job, "test")
    check(plan)
    return plan.programs


def program_of(job: DenseTraining) -> Program:
    """Return the only program of a job's plan."""
    (program,) = programs_of(job)
    return program


def options_by_operator(job: DenseTraining, splits: Sequence[int], ring: Ranks) -> dict[str, list[Option]]:
    """Return the options of every operator where a collective takes a ring's time and nothing else any."""

    def seconds(program: Program, op: Op) -> float:
        if not isinstance(op, Collective):
            return 0.0
        turns = 2 if op.kind is CollectiveKind.ALL_REDUCE else 1
        piece_bytes = collective_bytes(program, op) / ring.num_ranks
        return turns * (ring.num_ranks - 1) * (ring.latency_s + piece_bytes / ring.bytes_per_s)

    parameters = parameters_of(program_of(choosing(job, {})))
    costs: dict[bool, dict[int, Any]] = {False: {}, True: {}}
    for count in splits:
        for sharded in (False, True):
            choices = uniform_choices(job, parameters, count, sharded=sharded)
            plan = UniformPlan(choices, program_of(choosing(job, dict(choices))))
            costs[sharded][count] = slice_costs(job, plan, seconds)
    return options_of(costs[False], costs[True])


# --- operators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["tied", "untied"])
def test_every_parameter_belongs_to_one_slice(model: dict[str, Any]) -> None:
    """Norms go with the layer behind them, biases with their layer; a tied table and its norm are two operators."""
    job = osdp_job(model=model)
    choices = {"layer0.fc1": Choice(4, 3), "layer1.qkv": Choice(2, 2)}
    parameters = parameters_of(program_of(choosing(job, choices)))
    pieces = operator_slices(parameters, choices, tied_embeddings=model["tied_embeddings"])
    assert sorted(name for piece in pieces for name in piece.parameters) == sorted(parameters)
    ends = {"embedding.word", "embedding.position", "final_norm"} if model is GPT else {"embedding.word", "head"}
    layers = {f"layer{i}.{name}" for i in range(4) for name in ("qkv", "projection", "fc1", "fc2")}
    assert {piece.operator for piece in pieces} == layers | ends
    assert set(linear_layers(job)) == layers | ({"head"} if model is LLAMA else set())
    assert [piece.is_sharded for piece in pieces if piece.operator == "layer0.fc1"] == [True, True, True, False]
    first, *_, last = (piece.parameters for piece in pieces if piece.operator == "layer0.fc1")
    assert "layer0.norm2.weight" in first
    assert ("layer0.fc1.bias" in last) is (model is GPT)


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "sync"), [(1, None), (3, "last_microbatch"), (3, "each_microbatch")])
def test_costs_of_a_plan_are_those_of_the_closed_form(m: int, sync: Any) -> None:
    """Communication (N-1)(2g+z)(alpha + S/gNB), state ((g-z) + z/N)/g, gathered S/g, of the plan's ops and buffers.

    In 32 bits a parameter, its gradient and two moments take 16 bytes. Every further micro-batch gathers twice more,
    and scatters once more where gradients are sharded each time; gradients that wait for the end of a step are whole.
    """
    job = osdp_job(m=m, model=LLAMA, sharding=ShardingSpec(gradient_sync=sync, prefetch=0))
    ring = Ranks(num_ranks=4, latency_s=3e-6, bytes_per_s=2e9, memory_bytes=0)
    options, model = options_by_operator(job, (1, 2, 4), ring), job.model
    h, ffn = model.hidden_size, model.ffn_hidden_size
    biggest = 0.0
    for name, size in {"layer0.projection": h * h, "layer2.fc2": ffn * h}.items():
        operator = Operator(name=name, parameter_bytes=4 * size, state_bytes=16 * size)
        whole_bytes = 4 * size  # of gradients, and of what they are scattered to
        assert [o.choice for o in options[name]] == [
            Choice(1, 0), Choice(1, 1), *(Choice(2, z) for z in (1, 2)), *(Choice(4, z) for z in (1, 2, 3, 4)),
        ]  # fmt: skip
        for option in options[name]:
            (g, z), piece_s = option.choice, communication_s(operator, Choice(option.choice[0], 0), ring)
            piece_s /= 2 * g
            passes = 2 * (g - z) + z * (2 * m + (m if sync == "each_microbatch" else 1))
            assert option.time_s == pytest.approx(passes * piece_s, rel=1e-12)
            if m == 1:
                assert option.time_s == pytest.approx(communication_s(operator, option.choice, ring), rel=1e-12)
            held = state_bytes(operator, option.choice, ring)
            gathered = gathered_bytes(operator, option.choice, ring)
            if sync == "last_microbatch":
                held += whole_bytes * z // g
            elif z:
                gathered += whole_bytes // g + whole_bytes // g // 4
            slack = 8 * g * ALLOCATION_GRANULE_BYTES
            assert held <= option.held_bytes <= held + slack
            assert gathered <= option.gathered_bytes <= gathered + slack
            biggest = max(biggest, option.gathered_bytes)
    assert biggest > 0


def test_what_the_options_hold_is_what_a_plan_holds() -> None:
    """Persistent bytes of a mixed plan are the sum of its choices', and the loss."""
    job = osdp_job(model=GPT, m=2)
    ring = Ranks(num_ranks=4, latency_s=0.0, bytes_per_s=1.0, memory_bytes=0)
    options = options_by_operator(job, (1, 2, 4), ring)
    chosen = {name: row[index % len(row)] for index, (name, row) in enumerate(options.items())}
    program = program_of(choosing(job, {name: option.choice for name, option in chosen.items()}))
    held = memory_use(program).before_bytes[0]
    assert any(0 < o.choice.num_sharded < o.choice.num_slices for o in chosen.values())
    assert held == sum(option.held_bytes for option in chosen.values()) + ALLOCATION_GRANULE_BYTES
    assert sum(b.scope is Scope.PERSISTENT for b in program.buffers.values()) > len(chosen)


# --- the choice ------------------------------------------------------------------------------------------------------


def chosen_of(job: OpenTraining, limit: int) -> DenseTraining:
    """Return the job with its choice made under a limit, on a node of A100."""
    return chosen_within(job, limit, options_on_a100(job))


@cache
def options_on_a100(job: OpenTraining) -> list[RankOptions]:
    """Return what every pipeline rank of a job may choose from, under whatever limit."""
    return options_of_ranks(job, pricing_on("dgx-a100-80g", job.parallel.world_size))


def peak_of(job: DenseTraining) -> int:
    """Return the peak memory of a job that has chosen, on its fullest rank, in bytes."""
    return max(memory_use(program).peak_bytes for program in programs_of(job))


def test_solvers_agree_on_options_of_a_plan() -> None:
    """Exact search and the paper's find the least time of all choices that fit, at every limit that changes it."""
    ring = Ranks(num_ranks=4, latency_s=1e-6, bytes_per_s=2e9, memory_bytes=0)
    options = list(options_by_operator(osdp_job(model=SMALL), (1, 2), ring).values())
    every = [
        (sum(o.held_bytes for o in row) + max(o.gathered_bytes for o in row), sum(o.time_s for o in row))
        for row in product(*options)
    ]
    assert least_bytes(options) == min(needed for needed, _ in every)
    for limit in sorted({needed for needed, _ in every})[::400]:
        least_s = min(time_s for needed, time_s in every if needed <= limit)
        for choices in (cheapest(options, limit), depth_first(options, limit).choices):
            assert choices is not None
            picked = [next(o for o in row if o.choice == c) for row, c in zip(options, choices, strict=True)]
            assert sum(o.time_s for o in picked) == pytest.approx(least_s, rel=1e-12)
            assert sum(o.held_bytes for o in picked) + max(o.gathered_bytes for o in picked) <= limit
    assert cheapest(options, least_bytes(options) - 1) is None


@pytest.mark.parametrize("keys", [
    {},
    {"model": LLAMA, "recompute": "full", "m": 2},
    {"m": 3, "sharding": ShardingSpec(gradient_sync="last_microbatch", prefetch=0)},
    {"tp": 2, "sequence_parallel": True, "precision": "bf16", "sharding": ShardingSpec(prefetch=2)},
    {"pp": 2, "m": 2, "dp": 2},
    {"pp": 2, "m": 2, "dp": 2, "model": LLAMA, "schedule": "interleaved_1f1b", "virtual_stages": 2},
])  # fmt: skip
def test_the_plan_keeps_to_the_limit(keys: dict[str, Any]) -> None:
    """Under every limit the peak of the chosen plan is within it; where none fits, the error says what is needed."""
    job = osdp_job(splits=(1, 4), **keys)
    replicated = peak_of(choosing(job, {}))
    limits = [int(replicated * fraction) for fraction in (1.0, 0.9, 0.8, 0.6, 0.4, 0.1)]
    chosen = {limit: fitting(job, limit) for limit in limits}
    fitted = [limit for limit in limits if chosen[limit] is not None]
    assert all(peak_of(chosen[limit]) <= limit for limit in fitted)
    assert len(fitted) > 2
    with pytest.raises(SpecError, match="the smallest needs") as caught:
        chosen_of(job, limits[-1])
    assert caught.value.key == "parallel.data.osdp"
    assert fitted == [limit for limit in limits if limit >= min(fitted)]


@pytest.mark.parametrize("table", [Choice(1, 0), Choice(1, 1)])
def test_ranks_of_a_pipeline_agree_on_a_tied_table(table: Choice) -> None:
    """Each rank chooses for itself, but the first and the last make one choice of the table that both hold.

    Where the last one could keep it whole and the first could not, both shard it.
    """
    job = osdp_job(pp=2, m=2, dp=8, model=GPT | {"vocab_size": 2048})
    limit = peak_of(choosing(job, {})) * (85 if table.num_sharded else 100) // 100
    chosen = dict(chosen_of(job, limit).parallel.osdp.choices)
    assert chosen.get("embedding.word", Choice(1, 0)) == table
    for program in programs_of(choosing(job, chosen)):
        assert ("shard.embedding.word" in program.buffers) is bool(table.num_sharded)
        ties = [op for t in program.tasks.values() for op in t.ops if op.name == "tie"]
        assert len(ties) == 1


def test_a_choice_that_two_ranks_share_binds_both_searches() -> None:
    """What one rank must shard, the other counts as sharded when it chooses the rest, though alone it would not."""
    whole, cut = Choice(1, 0), Choice(1, 1)
    table = [Option(100, 1.0, 0, whole), Option(50, 1.5, 0, cut)]
    layer = [Option(100, 1.0, 0, whole), Option(50, 1.2, 0, cut)]
    first = RankSearch({"table": table}, 60)
    last = RankSearch({"table": table, "layer": layer}, 150)
    alone = last.cheapest({}, 0.0)
    assert alone is not None
    assert alone == (pytest.approx(2.2), {"table": whole, "layer": cut})
    assert choices_of_ranks([first, last], 200, 0.0) == {"table": cut}
    with pytest.raises(SpecError, match="the smallest needs 190 B per rank, and the limit is 180 B"):
        choices_of_ranks([RankSearch({"table": table}, 40), last], 180, 0.0)


def test_nothing_is_sharded_without_need_and_all_where_memory_is_least() -> None:
    """In 32 bits sharding costs half as much again, so with room nothing is; without, all that saves memory is."""
    job = osdp_job(model=GPT | {"hidden_size": 256, "ffn_hidden_size": 1024}, splits=(1, 2))
    assert chosen_of(job, 80 * GIB).parallel.osdp.choices == ()
    limit = peak_of(choosing(job, {}))
    least = next(
        chosen for percent in range(20, 100)
        if (chosen := fitting(job, limit * percent // 100)) is not None
    )  # fmt: skip
    choices = dict(least.parallel.osdp.choices)
    assert all(choices[name].num_slices == choices[name].num_sharded for name in linear_layers(job))
    assert any(choice.num_slices == 2 for choice in choices.values())


def fitting(job: OpenTraining, limit: int) -> DenseTraining | None:
    """Return the job with its choice made, None where nothing fits."""
    try:
        return chosen_of(job, limit)
    except SpecError:
        return None


def test_one_replica_leaves_nothing_open() -> None:
    """There is nobody to share with, whatever the limit."""
    job = dense_job(dp=1, precision="fp32", osdp=OsdpSpec(memory_limit_bytes=1))
    assert job.operator_choices == {}
    program_of(job)


def test_a_job_without_choice_is_decided_as_it_stands() -> None:
    """ZeRO's stages leave nothing open; operators without a choice do."""
    assert isinstance(stated_training(**job_parts(dp=4, zero_stage=3)), DenseTraining)
    assert osdp_job().opening is Opening.OPERATORS
    assert choosing(osdp_job(), {"layer0.qkv": Choice(2, 1)}).operator_choices == {"layer0.qkv": Choice(2, 1)}


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"zero_stage": 2}, "zero_stage"),
        ({"sharding": ShardingSpec(shard_degree=2)}, "shard_degree"),
        ({"sharding": ShardingSpec(reshard_after_forward=False)}, "reshard_after_forward"),
        ({"bucket_bytes": 1000}, "bucket"),
        ({"overlap_gradient_sync": False}, "overlap_gradient_sync"),
        ({"pp": 2, "m": 4, "schedule": "zb_h1"}, "osdp"),
        ({"sharding": ShardingSpec(local_degree=2)}, "local_degree"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(keys: dict[str, Any], key: str) -> None:
    """The error names the key to change."""
    with pytest.raises(SpecError) as caught:
        osdp_job(**keys)
    assert caught.value.key == f"parallel.data.{key}"
