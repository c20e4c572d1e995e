"""Tiny trainings with experts that run for real, of which each must reproduce the dense reference."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest
from sim.moe.balancing.replicas import Replicas, shared_out
from sim.moe.dense_to_sparse import DenseToSparse
from sim.moe.recorded import Recorded, RecordedRouting
from sim.moe.routing import RoutingShape
from sim.moe.skew import Skew
from sim.moe.sources import Shares
from sim.plan.words.op import Collective, CollectiveKind
from sim.plan.words.program import Plan
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.parallelism.sharding import ShardingSpec
from sim.training.steps.builder import build_dense_training
from tests.backends.jobs import GPT, LLAMA, OFFLOAD, PASSES, training
from tests.backends.latent_runs import MODEL as LATENT_MODEL


def experts(**keys: Any) -> ExpertsSpec:
    """Return four experts of which a token goes to two, if these have slots."""
    return ExpertsSpec(**{"num_experts": 4, "top_k": 2, "ffn_hidden_size": 12, **keys})


def recorded(skew: Skew, num_layers: int, num_sources: int) -> Recorded:
    """Return a routing as a file would hold it, of micro-batches of one sequence."""
    shape = RoutingShape(num_layers=num_layers, num_sources=num_sources, num_experts=4, num_tokens=8, top_k=2)
    return RecordedRouting.of("recorded", [skew.routing(shape)]).at(0)


MIXTURE: Mapping[str, Any] = {**LLAMA, "num_layers": 2, "experts": experts()}
SHARED: Mapping[str, Any] = {
    **LLAMA,
    "experts": experts(num_experts=8, top_k=3, shared_ffn_hidden_size=8, first_dense_layers=1, balance_loss=0.3),
}  # fmt: skip

EXPERTS = {
    "experts, one rank": training(model=MIXTURE, batch=(4, 2)),
    "experts, dp4": training(model=MIXTURE, data_degree=4, batch=(8, 1)),
    "experts, ep4": training(model=MIXTURE, data_degree=4, expert_degree=4, batch=(8, 1)),
    "experts, ep2 x dp2": training(model=MIXTURE, data_degree=4, expert_degree=2, batch=(8, 2), bucket_bytes=4000),
    "experts, ep2 x dp2 zero1": training(
        model=SHARED, data_degree=4, expert_degree=2, zero_stage=1, batch=(8, 1), bucket_bytes=4000,
        overlap_gradient_sync=False, numbers=PASSES,
    ),
    "experts, ep4 zero1, recompute full": training(
        model=SHARED, data_degree=4, expert_degree=4, zero_stage=1, batch=(8, 1), recompute="full"
    ),
    "experts, ep2 x pp2": training(
        model=SHARED, data_degree=2, expert_degree=2, pipeline={"degree": 2}, recompute="selective"
    ),
    "experts, ep2 x pp2 interleaved, zero1, gathers overlapped": training(
        model=SHARED, data_degree=2, expert_degree=2, zero_stage=1, overlap_parameter_gather=True,
        pipeline={"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    ),
    "experts, ep2 x pp2 zb_h1, unfused": training(
        model=SHARED, data_degree=2, expert_degree=2, pipeline={"degree": 2, "schedule": "zb_h1"},
        numbers={"fused_gradient_accumulation": False},
    ),
    "experts, ep2 x pp2 dualpipe": training(
        model=SHARED, data_degree=2, expert_degree=2, batch=(8, 1), pipeline={"degree": 2, "schedule": "dualpipe"}
    ),
    "experts, ep2 x pp2 dualpipe in turns, zero1": training(
        model=SHARED, data_degree=2, expert_degree=2, batch=(12, 1), zero_stage=1, overlap_gradient_sync=False,
        pipeline={"degree": 2, "schedule": "dualpipe", "overlap_exchanges": True},
    ),
    "experts, exact, ep2 x pp2 dualpipe_v in turns": training(
        model={**SHARED, "experts": replace(SHARED["experts"], dispatch="exact", routing=Skew(zipf=1.0))},
        data_degree=2, expert_degree=2, batch=(12, 1), recompute="full",
        pipeline={"degree": 2, "schedule": "dualpipe_v", "virtual_stages": 2, "overlap_exchanges": True},
    ),
    "experts, ep2 x tp2, weight gradients first": training(
        model=SHARED, data_degree=2, expert_degree=2, tensor_degree=2, overlap_tensor_backward=False
    ),
    "experts, ep2 x tp2 sp zero1": training(
        model=SHARED, data_degree=2, expert_degree=2, tensor_degree=2, sequence_parallel=True, zero_stage=1
    ),
    "experts, gpt, ep2 x tp2 sp": training(
        model={**GPT, "num_layers": 2, "experts": experts(shared_ffn_hidden_size=8)}, data_degree=2, expert_degree=2,
        tensor_degree=2, sequence_parallel=True,
    ),
    "experts, one each, ep2 x dp2": training(
        model={**MIXTURE, "experts": experts(top_k=1)}, data_degree=4, expert_degree=2, batch=(8, 1),
        overlap_gradient_sync=False,
    ),
    "experts, none dropped, other axis order, ep2": training(
        model={**MIXTURE, "experts": experts(capacity_factor=2.0)}, data_degree=2, expert_degree=2, tensor_degree=2,
        axis_order=("pp", "tp", "dp"),
    ),
    "experts, balanced, ep2, gradients assigned": training(
        model={**MIXTURE, "experts": experts(routing="balanced")}, data_degree=2, expert_degree=2,
        numbers={"set_gradients_to_none": True},
    ),
    "experts, latent attention, ep2 x tp2 sp": training(
        model={**LATENT_MODEL, "experts": experts(shared_ffn_hidden_size=8)}, data_degree=2, expert_degree=2,
        tensor_degree=2, sequence_parallel=True,
    ),
    "experts, cp2 x ep2 zero1, recompute full": training(
        model={**SHARED, "experts": experts(capacity_factor=0.7, balance_loss=0.3)}, data_degree=2, expert_degree=2,
        context_degree=2, zero_stage=1, batch=(4, 2), recompute="full",
    ),
    "experts, cp2 x tp2 sp, gathered, one rank's experts": training(
        model=MIXTURE, context_degree=2, context_method="all_gather", tensor_degree=2, sequence_parallel=True
    ),
    "experts, zero3 dp2": training(model=MIXTURE, data_degree=2, zero_stage=3),
    "experts, ep2 x dp2 zero3": training(model=MIXTURE, data_degree=4, expert_degree=2, zero_stage=3, batch=(8, 1)),
    "experts, ep4 zero3, recompute full": training(
        model={**SHARED, "num_layers": 2}, data_degree=4, expert_degree=4, zero_stage=3, batch=(8, 1), recompute="full"
    ),
    "experts, ep2 zero3 in groups of 2": training(
        model=MIXTURE, data_degree=4, expert_degree=2, zero_stage=3, batch=(8, 1),
        sharding=ShardingSpec(shard_degree=2, prefetch=2),
    ),
    "experts, ep2 x pp2 zero3, kept, no_sync": training(
        model=SHARED, data_degree=2, expert_degree=2, zero_stage=3, pipeline={"degree": 2},
        sharding=ShardingSpec(reshard_after_forward=False, gradient_sync="last_microbatch"),
    ),
    "experts, ep2 x tp2 sp zero3": training(
        model=SHARED, data_degree=2, expert_degree=2, tensor_degree=2, sequence_parallel=True, zero_stage=3
    ),
    "experts, cp2 x ep2 zero3": training(
        model=MIXTURE, data_degree=2, expert_degree=2, context_degree=2, zero_stage=3, batch=(4, 2)
    ),
    "experts, ep2 x dp2 zero2, buckets": training(
        model=MIXTURE, data_degree=4, expert_degree=2, zero_stage=2, batch=(8, 1), bucket_bytes=4000
    ),
    "experts, ep4 zero2": training(model=MIXTURE, data_degree=4, expert_degree=4, zero_stage=2, batch=(8, 1)),
    "experts, ep4, offload": training(
        model=MIXTURE, data_degree=4, expert_degree=4, zero_stage=2, batch=(8, 1), sharding=OFFLOAD
    ),
}  # fmt: skip

HOT = Shares((0.6, 0.25, 0.15, 0.0))
"""One expert gets six tenths of the choices, and one none."""


def exact(**keys: Any) -> Mapping[str, Any]:
    """Return a model of experts that have a row for every choice, one of them most."""
    spec = {"top_k": 1, "dispatch": "exact", "routing": HOT, "balance_loss": 0.3, "shared_ffn_hidden_size": 8} | keys
    return {**MIXTURE, "experts": experts(**spec)}


EXACT = {
    "experts, exact, ep4": training(model=exact(), data_degree=4, expert_degree=4, batch=(8, 1)),
    "experts, exact, ep2 x dp2, drawn": training(
        model=exact(top_k=2, routing=Skew(zipf=2.0)), data_degree=4, expert_degree=2, batch=(8, 2), bucket_bytes=4000
    ),
    "experts, exact, ep2 x pp2, recompute full": training(
        model=exact(), data_degree=2, expert_degree=2, pipeline={"degree": 2}, recompute="full"
    ),
}  # fmt: skip
"""Ranks get unequal numbers of rows; run by real processes."""

EXACT_ALONE = {
    "balanced, ep2 x dp2": training(
        model=exact(top_k=3, routing="balanced"), data_degree=4, expert_degree=2, batch=(8, 2)
    ),
    "one rank": training(model=exact(), batch=(4, 2)),
    "dp2, every rank routed alike": training(model=exact(), data_degree=2),
    "ep2 x tp2 sp": training(
        model=exact(), data_degree=2, expert_degree=2, tensor_degree=2, sequence_parallel=True, zero_stage=1,
        overlap_tensor_backward=False,
    ),
    "ep2 x cp2": training(model=exact(), data_degree=2, expert_degree=2, context_degree=2, batch=(4, 2)),
    "ep2 x dp2 zero3": training(model=exact(), data_degree=4, expert_degree=2, zero_stage=3, batch=(8, 1)),
    "gpt, ep4 zb_h1": training(
        model={**GPT, "num_layers": 2, "dropout": 0.0, "experts": experts(dispatch="exact", routing=Skew(zipf=1.0))},
        data_degree=2, expert_degree=2, pipeline={"degree": 2, "schedule": "zb_h1"},
        numbers={"fused_gradient_accumulation": False},
    ),
    "recorded, every rank for itself": training(
        model=exact(top_k=2, routing=recorded(Skew(zipf=1.5), num_layers=2, num_sources=4)), data_degree=4,
        expert_degree=2, batch=(8, 1),
    ),
    "slots, forced, ep4": training(
        model={**MIXTURE, "experts": experts(routing=Skew(zipf=1.5))}, data_degree=4, expert_degree=4, batch=(8, 1)
    ),
}  # fmt: skip
"""The same and more, all ranks in one process."""

RELAYED = {
    "a copy per node, four experts each of two nodes": training(
        model=exact(num_experts=8, top_k=4, gate="group_limited", num_groups=4, top_groups=2, routing=Skew(zipf=1.5)),
        data_degree=4, expert_degree=4, expert_nodes=2, batch=(8, 1),
    ),
    "a copy per node, more choices than a node has experts": training(
        model=exact(num_experts=8, top_k=6, routing=Skew(zipf=0.5)), data_degree=8, expert_degree=8, expert_nodes=4,
        batch=(8, 1),
    ),
    "a copy per node, one node gets none, tp2 sp zero1": training(
        model=exact(routing=Shares((0.6, 0.4, 0.0, 0.0))), data_degree=4, expert_degree=4, expert_nodes=2,
        tensor_degree=2, sequence_parallel=True,
        zero_stage=1, batch=(4, 1),
    ),
    "a copy per node, even, pp2, recompute full": training(
        model=exact(num_experts=8, top_k=4, gate="group_limited", num_groups=2, top_groups=1, routing="balanced"),
        data_degree=4, expert_degree=4, expert_nodes=2, pipeline={"degree": 2}, recompute="full", batch=(8, 1),
    ),
}  # fmt: skip
"""A token is sent to each node once, and handed on there."""

ON_FOUR = Replicas(
    (((1, 1, 0, 0), (1, 0, 1, 0), (0, 1, 0, 0), (2, 0, 0, 1)), ((0, 1, 0, 0), (0, 0, 0, 1), (1, 0, 1, 0), (1, 0, 0, 0)))
)
ON_TWO = Replicas((((1, 1, 0, 0), (1, 0, 1, 1)), ((0, 1, 1, 1), (1, 1, 1, 0))))
"""Experts of two layers with replicas, on four and on two ranks."""

SHADOWED_ON_FOUR = replace(shared_out(2, 4, 4), shadows=((0,), (1, 2)))
SHADOWED_ON_TWO = replace(shared_out(2, 2, 4), shadows=((0, 3), ()))
"""Experts of two layers, of which all ranks get some for a step."""

REPLICATED = {
    "replicas, ep4, one expert gets most, one none": training(
        model=exact(replicas=ON_FOUR), data_degree=4, expert_degree=4, batch=(8, 1)
    ),
    "replicas, ep2 x dp2, drawn, recompute full": training(
        model=exact(top_k=2, routing=Skew(zipf=1.0), replicas=ON_TWO),
        data_degree=4,
        expert_degree=2,
        batch=(8, 2),
        recompute="full",
        bucket_bytes=4000,
    ),
    "shadows, ep4, one expert gets most, one none": training(
        model=exact(replicas=SHADOWED_ON_FOUR), data_degree=4, expert_degree=4, batch=(8, 1)
    ),
    "shadows, ep2 x dp2, drawn, recompute full": training(
        model=exact(top_k=2, routing=Skew(zipf=1.0), replicas=SHADOWED_ON_TWO),
        data_degree=4,
        expert_degree=2,
        batch=(8, 2),
        recompute="full",
        bucket_bytes=4000,
    ),
    "shadows, ep2 x tp2 sp, unfused": training(
        model=exact(replicas=SHADOWED_ON_TWO, top_k=2, routing=Skew(zipf=1.0)),
        data_degree=2,
        expert_degree=2,
        tensor_degree=2,
        sequence_parallel=True,
        numbers={"fused_gradient_accumulation": False},
    ),
    "replicas, ep2 x pp2": training(
        model=exact(replicas=ON_TWO), data_degree=2, expert_degree=2, pipeline={"degree": 2}
    ),
    "replicas, ep2 x tp2 sp": training(
        model=exact(replicas=ON_TWO, top_k=2, routing=Skew(zipf=1.0)),
        data_degree=2,
        expert_degree=2,
        tensor_degree=2,
        sequence_parallel=True,
    ),
}
"""Some experts have copies on several ranks."""
COOLED = DenseToSparse(start=2.0, end=0.2, decay_steps=1000, step=1000)
"""A token of random scores has about two active experts of four."""

RATE = {"bias_update_rate": 0.01}
"""So much that biases change choices within a few steps."""

GATES = {
    "k_top_1, ep2 x dp2": training(
        model={**MIXTURE, "experts": experts(gate="k_top_1")}, data_degree=4, expert_degree=2, batch=(8, 2)
    ),
    "group_limited, ep4": training(
        model={
            **MIXTURE,
            "experts": experts(
                num_experts=8, top_k=3, gate="group_limited", num_groups=4, top_groups=2, balance_loss=0.3
            ),
        },
        data_degree=4, expert_degree=4, batch=(8, 1),
    ),
    "group_limited, forced, slots, ep4": training(
        model={
            **MIXTURE,
            "experts": experts(
                num_experts=8, gate="group_limited", num_groups=4, top_groups=2, routing=Skew(zipf=1.0),
                capacity_factor=1.5,
            ),
        },
        data_degree=4, expert_degree=4, batch=(8, 1),
    ),
    "group_limited, forced, exact, ep2 x dp2": training(
        model=exact(num_experts=8, top_k=4, gate="group_limited", num_groups=4, top_groups=2, routing="balanced"),
        data_degree=4, expert_degree=2, batch=(8, 1),
    ),
    "group_limited to one, deepspeed's capacity, ep2 x tp2 sp": training(
        model={
            **MIXTURE,
            "experts": experts(
                num_experts=8, gate="group_limited", num_groups=2, capacity_factor=0.1, capacity_rule="deepspeed"
            ),
        },
        data_degree=2, expert_degree=2, tensor_degree=2, sequence_parallel=True,
    ),
    "bias, groups, ep2 x dp2, recompute full": training(
        model={**MIXTURE, "experts": experts(num_experts=8, gate="bias", num_groups=4, top_groups=2, **RATE)},
        data_degree=4, expert_degree=2, batch=(8, 1), recompute="full",
    ),
    "bias, ep2 x pp2 zb_h1": training(
        model={**MIXTURE, "experts": experts(gate="bias", shared_ffn_hidden_size=8, **RATE)}, data_degree=2,
        expert_degree=2, pipeline={"degree": 2, "schedule": "zb_h1"}, numbers={"fused_gradient_accumulation": False},
    ),
    "bias, two copies of the model": training(
        model={**MIXTURE, "experts": experts(gate="bias", **RATE)}, pipeline={"degree": 2, "schedule": "chimera"},
        batch=(8, 1),
    ),
    "bias, one choice, ep2 x tp2 sp zero3": training(
        model={**MIXTURE, "experts": experts(gate="bias", top_k=1, **RATE)}, data_degree=2, expert_degree=2,
        tensor_degree=2, sequence_parallel=True, zero_stage=3,
    ),
    "switch, ep4": training(
        model={**MIXTURE, "experts": experts(gate="switch", top_k=1, balance_loss=0.3)},
        data_degree=4, expert_degree=4, batch=(8, 1),
    ),
    "gshard, ep2 x dp2": training(
        model={**MIXTURE, "experts": experts(gate="gshard", balance_loss=0.3)}, data_degree=4, expert_degree=2,
        batch=(8, 2), recompute="full",
    ),
    "gshard, ep2 x cp2": training(
        model={**MIXTURE, "experts": experts(gate="gshard")}, data_degree=2, expert_degree=2, context_degree=2,
        batch=(4, 2),
    ),
    "base, ep2 x dp2": training(
        model={**MIXTURE, "experts": experts(gate="base", top_k=1)}, data_degree=4, expert_degree=2, batch=(8, 2)
    ),
    "expert_choice, ep2 x tp2 sp": training(
        model={**MIXTURE, "experts": experts(gate="expert_choice")}, data_degree=2, expert_degree=2,
        tensor_degree=2, sequence_parallel=True,
    ),
    "dense_to_sparse, cooled, ep2 x dp2": training(
        model={**MIXTURE, "experts": experts(gate="dense_to_sparse", top_k=1, dense_to_sparse=COOLED)},
        data_degree=4, expert_degree=2, batch=(8, 2),
    ),
    "dense_to_sparse, hard, ep2 x cp2": training(
        model={
            **MIXTURE,
            "experts": experts(
                gate="dense_to_sparse", top_k=1, dense_to_sparse=replace(COOLED, hard_after=900), capacity_factor=1.5
            ),
        },
        data_degree=2, expert_degree=2, context_degree=2, batch=(4, 2), recompute="full",
    ),
    "einsum, ep2 x tp2 sp": training(
        model={**MIXTURE, "experts": experts(permutation="einsum", capacity_factor=0.7, balance_loss=0.3)},
        data_degree=2, expert_degree=2, tensor_degree=2, sequence_parallel=True,
    ),
    "einsum, gshard, one rank": training(
        model={**MIXTURE, "experts": experts(permutation="einsum", gate="gshard")}, batch=(4, 2), recompute="full"
    ),
    "topology_aware, ep4 in two nodes": training(
        model={
            **MIXTURE,
            "experts": experts(
                num_experts=8, gate="topology_aware", num_groups=2, remote_share=0.3, balance_loss=0.3,
                capacity_factor=1.5,
            ),
        },
        data_degree=4, expert_degree=4, batch=(8, 2),
    ),
    "topology_aware, forced, exact, ep2 x dp2": training(
        model=exact(gate="topology_aware", num_groups=2, routing=HOT), data_degree=4, expert_degree=2, batch=(8, 1)
    ),
    "sam, ep2 x tp2 sp, two groups a rank": training(
        model={
            **MIXTURE,
            "experts": experts(num_experts=8, gate="sam", num_groups=4, balance_loss=0.3, shared_ffn_hidden_size=8),
        },
        data_degree=2, expert_degree=2, tensor_degree=2, sequence_parallel=True,
    ),
    "sam, ep2 x cp2, recompute full": training(
        model={**MIXTURE, "experts": experts(gate="sam", num_groups=2, capacity_factor=0.8)}, data_degree=2,
        expert_degree=2, context_degree=2, batch=(4, 2), recompute="full",
    ),
    "sam, one rank": training(
        model={**MIXTURE, "experts": experts(num_experts=6, gate="sam", num_groups=2)}, batch=(4, 2)
    ),
    "hash, ep2 x pp2": training(
        model={**MIXTURE, "experts": experts(gate="hash", top_k=1, shared_ffn_hidden_size=8)}, data_degree=2,
        expert_degree=2, pipeline={"degree": 2},
    ),
}  # fmt: skip
"""Other gates than that of the k best of all experts, and dispatch by one-hot masks."""

EXCHANGING = EXPERTS["experts, ep2 x dp2"]


def exchanges(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the task and the name of every all_to_all."""
    for task in plan.programs[0].tasks.values():
        for op in task.ops:
            if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL:
                yield task.name, op.name


def silent_expert_requests() -> dict[str, ExecutionRequest]:
    """Return runs whose exchanges, or sums of experts, are left out."""
    plan = build_dense_training(EXCHANGING, "exchanging")
    sums = {op.name for task in plan.programs[0].tasks.values() for op in task.ops if isinstance(op, Collective)
            and op.kind is CollectiveKind.ALL_REDUCE and op.axes == ("dp",)}  # fmt: skip
    muted = {f"all_to_all {name}": {name} for _, name in exchanges(plan)} | {"all_reduce of experts": sums}
    return {
        f"without {what} (experts)": ExecutionRequest(plan=plan, check_against=EXCHANGING, mute=frozenset(names))
        for what, names in muted.items()
    }


def expert_requests() -> dict[str, ExecutionRequest]:
    """Return a run that shows who found a slot."""
    plan = build_dense_training(EXCHANGING, "exchanging")
    slots = frozenset(name for name in plan.programs[0].buffers if name.endswith(".slots"))
    return {"slots": ExecutionRequest(plan=plan, keep=slots)}
