"""Real runs whose layers' products take operands of eight bits."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest
from sim.moe.sources import Shares
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Plan, Program
from sim.training.spec.job import DenseTraining, ShardingSpec
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.steps.builder import build_dense_training
from tests.backends.expert_runs import exact
from tests.backends.jobs import AIAO, GPT, LLAMA, SGD, training


def float8(model: Mapping[str, Any] = GPT, **keys: Any) -> DenseTraining:
    """Return a training in fp8."""
    return training(model=model, precision="fp8", **keys)


FLOAT8 = {
    "fp8, pp2 v2 interleaved x tp2 sp": float8(
        tensor_degree=2, sequence_parallel=True,
        pipeline={"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    ),
    "fp8, dp2 zero1 x tp2, recompute, bf16 gradients, unfused": float8(
        data_degree=2, zero_stage=1, tensor_degree=2, recompute="full",
        numbers={"low_precision_gradients": True, "fused_gradient_accumulation": False},
    ),
    "fp8, llama, pp2 zb_h1 x dp2": float8(LLAMA, data_degree=2, pipeline={"degree": 2, "schedule": "zb_h1"}),
    "fp8, aiao zero1 pp2 x dp2, sgd": float8(data_degree=2, zero_stage=1, pipeline=AIAO, batch=(8, 1), numbers=SGD),
    "fp8, zero3 dp2 x tp2 sp, recompute": float8(
        {**GPT, "num_layers": 2}, data_degree=2, zero_stage=3, tensor_degree=2, sequence_parallel=True, recompute="full"
    ),
    "fp8, llama, zero3 dp2 x pp2, kept": float8(
        LLAMA, data_degree=2, zero_stage=3, pipeline={"degree": 2}, sharding=ShardingSpec(reshard_after_forward=False)
    ),
    "fp8, llama, zero2 cp2 x dp2": float8(
        {**LLAMA, "num_layers": 2}, data_degree=2, context_degree=2, zero_stage=2, batch=(4, 1)
    ),
    "fp8, collective matmul, tp4": float8(
        {**GPT, "num_layers": 2}, tensor_degree=4, sequence_parallel=True, collective_matmul=True, batch=(2, 1)
    ),
    "fp8, llama, two layers on pp4": float8({**LLAMA, "num_layers": 2}, pipeline={"degree": 4}, batch=(2, 1)),
    "fp8, pp2 chimera x dp2": float8(
        {**GPT, "num_layers": 2}, data_degree=2, pipeline={"degree": 2, "schedule": "chimera"}, batch=(4, 1)
    ),
    "fp8 dispatch of experts, ep2 x pp2 dualpipe in turns": float8(
        exact(top_k=2, routing=Shares((0.4, 0.3, 0.3, 0.0)), dispatch_precision="fp8") | {"num_layers": 4},
        data_degree=2, expert_degree=2, batch=(8, 1),
        pipeline={"degree": 2, "schedule": "dualpipe", "overlap_exchanges": True},
    ),
    "fp8 dispatch of experts, one node gets none, ep4 on 2 nodes": float8(
        exact(routing=Shares((0.6, 0.4, 0.0, 0.0)), dispatch_precision="fp8"), data_degree=4, expert_degree=4,
        expert_nodes=2, batch=(8, 1),
    ),
    "fp8, experts, exact, ep2 x pp2 dualpipe": float8(
        exact(top_k=2, routing=Shares((0.4, 0.3, 0.3, 0.0))) | {"num_layers": 4}, data_degree=2, expert_degree=2,
        batch=(8, 1), pipeline={"degree": 2, "schedule": "dualpipe"},
    ),
}  # fmt: skip
"""Compared, as other low precisions are, with float64 that casts nothing."""

PLAIN: Mapping[str, Any] = {**GPT, "num_layers": 2, "dropout": 0.0}
EXPERTS = ExpertsSpec(
    num_experts=4, top_k=1, ffn_hidden_size=12, dispatch="exact", routing=Shares((0.5, 0.25, 0.25, 0.0))
)
WIDE = {
    "fp8 of float64, experts of unequal rows": float8({**PLAIN, "experts": EXPERTS}, batch=(2, 1)),
    "fp8 of float64, one rank": float8(PLAIN, batch=(2, 1)),
    "fp8 of float64, pp2 x dp2, recompute": float8(
        PLAIN, pipeline={"degree": 2}, data_degree=2, batch=(4, 1), recompute="full"
    ),
    "fp8 of float64, zb_h1": float8(PLAIN, pipeline={"degree": 2, "schedule": "zb_h1"}, batch=(4, 1)),
    "fp8 of float64, zero3 dp2": float8(PLAIN, data_degree=2, zero_stage=3, batch=(4, 1)),
    "fp8 of float64, zero3 dp4, recompute, kept": float8(
        PLAIN,
        data_degree=4,
        zero_stage=3,
        batch=(8, 1),
        recompute="full",
        sharding=ShardingSpec(reshard_after_forward=False),
    ),
    "fp8 of float64, tp2 sp": float8(PLAIN, tensor_degree=2, sequence_parallel=True, batch=(2, 1)),
    "fp8 of float64, tp2 sp, collective matmul": float8(
        PLAIN, tensor_degree=2, sequence_parallel=True, collective_matmul=True, batch=(2, 1)
    ),
}
"""Casts between float64 tensors: what is left is what the casts do."""


def widened(plan: Plan) -> Plan:
    """Return a plan whose 16 and 32-bit tensors have 64 bits, but for scales."""
    return replace(plan, programs=tuple(_widened(program) for program in plan.programs))


def _widened(program: Program) -> Program:
    buffers = {
        name: replace(b, dtype="float64")
        if b.dtype in {"bfloat16", "float32"} and "scale" not in name.split(".")
        else b
        for name, b in program.buffers.items()
    }
    tasks = {name: replace(t, ops=tuple(_widened_op(op) for op in t.ops)) for name, t in program.tasks.items()}
    return replace(program, buffers=buffers, tasks=tasks)


def _widened_op(op: Op) -> Op:
    if isinstance(op, Compute) and op.attributes.get("dtype") in {"bfloat16", "float32"}:
        return replace(op, attributes={**op.attributes, "dtype": "float64"})
    return op


def float8_requests() -> dict[str, ExecutionRequest]:
    """Return the runs of ``WIDE``, gradients and loss kept."""
    requests = {}
    for name, job in WIDE.items():
        plan = widened(build_dense_training(job, name))
        names = {
            name for p in plan.programs for name, b in p.buffers.items()
            if name == "loss" or (b.kind is Kind.GRADIENT and b.scope is Scope.PERSISTENT)
        }  # fmt: skip
        requests[name] = ExecutionRequest(plan=plan, keep=frozenset(names))
    return requests
