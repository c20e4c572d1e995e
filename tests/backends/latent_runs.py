"""Real runs with multi-head latent attention."""

from collections.abc import Mapping
from typing import Any

from backends.execution.request import ExecutionRequest
from sim.plan.words.op import Collective
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.latent import LatentAttention
from sim.training.steps.builder import build_dense_training
from tests.backends.jobs import LLAMA, training

LATENT = LatentAttention(q_rank=6, kv_rank=5, head_size=4, rotary_head_size=2, value_head_size=3)
"""Of sizes that are all different, so that none can stand for another."""
MODEL: Mapping[str, Any] = {**LLAMA, "num_layers": 2, "num_kv_heads": 4, "latent_attention": LATENT}
FULL_QUERIES: Mapping[str, Any] = {
    **MODEL, "latent_attention": LatentAttention(kv_rank=5, head_size=4, rotary_head_size=2, value_head_size=6),
}  # fmt: skip

DEEPSEEK: Mapping[str, Any] = {
    **MODEL,
    "experts": ExpertsSpec(
        num_experts=4, top_k=2, ffn_hidden_size=6, shared_ffn_hidden_size=12, first_dense_layers=1, capacity_factor=2.0
    ),
}
"""Latent attention, a dense layer, and one with shared and routed experts, of which none is ever full."""

LATENT_JOBS = {
    "latent, experts, tp2 sp x ep2 zero1": training(
        model=DEEPSEEK, tensor_degree=2, sequence_parallel=True, data_degree=2, expert_degree=2, zero_stage=1
    ),
    "latent, tp4": training(model=MODEL, tensor_degree=4, batch=(2, 1)),
    "latent, tp2 sp x dp2 zero1": training(
        model=MODEL, tensor_degree=2, sequence_parallel=True, data_degree=2, zero_stage=1
    ),
    "latent, full queries, tp2 sp x pp2, recompute full": training(
        model=FULL_QUERIES, tensor_degree=2, sequence_parallel=True, pipeline={"degree": 2}, recompute="full"
    ),
    "latent, core, tp2 sp x pp2, recompute selective, unfused": training(
        model={**MODEL, "attention": "core"}, tensor_degree=2, sequence_parallel=True, pipeline={"degree": 2},
        recompute="selective", numbers={"fused_gradient_accumulation": False}, overlap_tensor_backward=False,
    ),
    "latent, zero3 dp2 x tp2 sp, no recomputation": training(
        model=MODEL, data_degree=2, zero_stage=3, tensor_degree=2, sequence_parallel=True
    ),
    "latent, seq_1f1b in uneven slices, pp2 x tp2 sp": training(
        model=MODEL, tensor_degree=2, sequence_parallel=True,
        pipeline={"degree": 2, "schedule": "seq_1f1b", "token_slices": (4, 2, 2)},
    ),
    "latent, full queries, core, terapipe, pp2 x dp2": training(
        model={**FULL_QUERIES, "attention": "core"}, data_degree=2,
        pipeline={"degree": 2, "schedule": "terapipe", "token_slices": (3, 5)},
    ),
    "latent, cp2 ring x tp2 sp": training(
        model=MODEL, context_degree=2, tensor_degree=2, sequence_parallel=True, batch=(2, 1)
    ),
    "latent, full queries, cp2 gathered x tp2 sp, recompute selective": training(
        model=FULL_QUERIES, context_degree=2, context_method="all_gather", tensor_degree=2, sequence_parallel=True,
        recompute="selective", batch=(2, 1),
    ),
    "latent, collective matmul, tp4": training(
        model=MODEL, tensor_degree=4, sequence_parallel=True, collective_matmul=True, batch=(2, 1)
    ),
    "latent, zb_h1, pp2 x dp2 zero1": training(
        model=MODEL, data_degree=2, zero_stage=1, batch=(8, 1), pipeline={"degree": 2, "schedule": "zb_h1"},
    ),
}  # fmt: skip


def _wrong_runs() -> dict[str, ExecutionRequest]:
    """Return runs without one of the collectives that only latent attention has, of either layout of activations."""
    requests = {}
    for layout, sequence_parallel in (("tp", False), ("tp sp", True)):
        job = training(model=MODEL, tensor_degree=4, sequence_parallel=sequence_parallel, batch=(1, 1))
        plan = build_dense_training(job, layout)
        tasks = (task for program in plan.programs for task in program.tasks.values())
        names = {op.name for task in tasks for op in task.ops if isinstance(op, Collective)}
        for name in sorted(names):
            if name.startswith(("layer0.q_", "layer0.kv_", "layer0.rotary_k")) and "regather" not in name:
                requests[f"latent, wrong: without {name} ({layout})"] = ExecutionRequest(
                    plan=plan, check_against=job, mute=frozenset({name})
                )
    return requests


def latent_requests() -> dict[str, ExecutionRequest]:
    """Return the runs that must fail their check; those that must pass are ``LATENT_JOBS``."""
    return _wrong_runs()


WRONG = tuple(_wrong_runs())
