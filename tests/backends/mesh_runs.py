"""Real runs of tensor parallelism on meshes of several axes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest, ExplicitCollectives
from sim.plan.words.op import Collective, Op
from sim.plan.words.program import Plan
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training
from sim.training.tensor.method import TensorMethod
from sim.training.tensor.registry import TensorMethodName, tensor_method
from tests.backends.jobs import GPT, LLAMA, training

SHORT: Mapping[str, Any] = {**GPT, "num_layers": 2}
SHORT_LLAMA: Mapping[str, Any] = {**LLAMA, "num_layers": 2}
ONE: Mapping[str, Any] = {**GPT, "num_layers": 1}
THREES: Mapping[str, Any] = {
    **SHORT, "hidden_size": 24, "num_heads": 3, "num_kv_heads": 3, "ffn_hidden_size": 30, "vocab_size": 33,
}  # fmt: skip


def mesh(name: TensorMethodName, *sides: int, **options: Any) -> TensorMethod:
    """Return a method on a mesh."""
    degree = 1
    for side in sides:
        degree *= side
    return tensor_method(name, degree, {"mesh": sides, **options})


SQUARE = mesh("2d", 2, 2)
SQUARE_AHEAD = mesh("2d", 2, 2, overlap="prefetch")
DEEP = mesh("2.5d", 2, 2, 2)
DEEP_BY_STEP = mesh("2.5d", 2, 2, 2, depth_sync="per_step", overlap="prefetch")
CUBE = mesh("3d", 2, 2, 2)
CUBE_AGAIN = mesh("3d", 2, 2, 2, save_gathered=False)
CUBE_LLAMA: Mapping[str, Any] = {**SHORT_LLAMA, "qkv_bias": True, "query_key_norm": True}

MESH_JOBS: Mapping[str, DenseTraining] = {
    "2d": training(model=SHORT, tensor=SQUARE, batch=(4, 2)),
    "2d, flash, prefetch, recompute full": training(
        model={**SHORT, "attention": "flash"}, tensor=SQUARE_AHEAD, batch=(4, 2), recompute="full",
        numbers={"set_gradients_to_none": True},
    ),
    "2d, llama, core, recompute selective, gradients assigned": training(
        model={**SHORT_LLAMA, "attention": "core", "query_key_norm": True, "qkv_bias": True}, tensor=SQUARE,
        batch=(4, 2), recompute="selective", numbers={"set_gradients_to_none": True},
    ),
    "2d, llama, tied, prefetch, sgd": training(
        model={**SHORT_LLAMA, "tied_embeddings": True}, tensor=SQUARE_AHEAD, batch=(4, 2),
        numbers={"optimizer": "sgd", "learning_rate": 0.1},
    ),
}  # fmt: skip
"""On four processes, with all others."""

WIDE_JOBS: Mapping[str, DenseTraining] = {
    "2d x dp2": training(model=SHORT, tensor=SQUARE_AHEAD, data_degree=2, batch=(8, 2)),
    "2d x pp2 1f1b, tied": training(model=SHORT, tensor=SQUARE, pipeline={"degree": 2}, batch=(6, 2)),
    "2.5d": training(model=SHORT, tensor=DEEP, batch=(8, 4)),
    "3d": training(model=SHORT, tensor=CUBE, batch=(8, 4)),
}
"""On eight ranks."""
ON_EIGHT = ("2d x dp2", "3d")
"""Those that run on eight processes: of two and of three axes; the others run in one."""

MANY_JOBS: Mapping[str, DenseTraining] = {
    "2d 3x3": training(model=THREES, tensor=mesh("2d", 3, 3), batch=(3, 3)),
    "2d 3x3, prefetch, recompute full": training(
        model=THREES, tensor=mesh("2d", 3, 3, overlap="prefetch"), batch=(3, 3), recompute="full"
    ),
    "2d 4x4": training(model=ONE, tensor=mesh("2d", 4, 4), batch=(4, 4)),
    "2d 4x4, recompute full": training(model=ONE, tensor=mesh("2d", 4, 4), batch=(4, 4), recompute="full"),
    "2d x dp2 zero1, llama, recompute full": training(
        model=SHORT_LLAMA, tensor=SQUARE, data_degree=2, zero_stage=1, batch=(8, 2), bucket_bytes=4000,
        recompute="full",
    ),
    "2d x pp2 1f1b, recompute full": training(
        model=SHORT, tensor=SQUARE, pipeline={"degree": 2}, batch=(4, 2), recompute="full"
    ),
    "2d x pp2 zb_h1, recompute full": training(
        model=SHORT, tensor=SQUARE_AHEAD, pipeline={"degree": 2, "schedule": "zb_h1"}, batch=(6, 2), recompute="full"
    ),
    "2d x pp2 interleaved x dp2, tied": training(
        model=GPT, tensor=SQUARE, data_degree=2, batch=(8, 2),
        pipeline={"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    ),
    "2d x pp2 chimera, llama": training(
        model=SHORT_LLAMA, tensor=SQUARE, pipeline={"degree": 2, "schedule": "chimera"}, batch=(8, 2)
    ),
    "2d x pp2 seq_1f1b, llama": training(
        model=SHORT_LLAMA, tensor=SQUARE, batch=(4, 2),
        pipeline={"degree": 2, "schedule": "seq_1f1b", "token_slices": (4, 4)},
    ),
    "2d x cp2, llama, tp outermost": training(
        model=SHORT_LLAMA, tensor=SQUARE, context_degree=2, batch=(4, 2), axis_order=("tp", "pp", "dp", "cp"),
    ),
    "2d x cp2, gathered, recompute selective": training(
        model={**SHORT, "attention": "flash"}, tensor=SQUARE, context_degree=2, context_method="all_gather",
        batch=(4, 2), recompute="selective",
    ),
    "2.5d, prefetch, per step": training(model=SHORT, tensor=DEEP_BY_STEP, batch=(8, 4)),
    "2.5d, llama, recompute full": training(model=SHORT_LLAMA, tensor=DEEP, batch=(8, 4), recompute="full"),
    "2.5d, llama, per step, recompute full, gradients assigned": training(
        model=CUBE_LLAMA, tensor=DEEP_BY_STEP, batch=(8, 4), recompute="full", numbers={"set_gradients_to_none": True}
    ),
    "2.5d x pp2, tied": training(model=SHORT, tensor=DEEP, pipeline={"degree": 2}, batch=(8, 4)),
    "2.5d x pp2, tied, per step, recompute full": training(
        model=SHORT, tensor=DEEP_BY_STEP, pipeline={"degree": 2}, batch=(8, 4), recompute="full"
    ),
    "2.5d x dp2 zero1": training(model=SHORT, tensor=DEEP, data_degree=2, zero_stage=1, batch=(8, 4)),
    "2.5d x dp2 zero1, per step, llama, recompute full": training(
        model=SHORT_LLAMA, tensor=DEEP_BY_STEP, data_degree=2, zero_stage=1, batch=(16, 4), bucket_bytes=4000,
        recompute="full",
    ),
    "2.5d, depth 3": training(model=SHORT, tensor=mesh("2.5d", 2, 2, 3), batch=(6, 6)),
    "3d, gathered again": training(model=SHORT, tensor=CUBE_AGAIN, batch=(8, 4)),
    "3d, llama, recompute full": training(model=CUBE_LLAMA, tensor=CUBE, batch=(8, 4), recompute="full"),
    "3d, llama, gathered again, recompute selective, gradients assigned": training(
        model=SHORT_LLAMA, tensor=CUBE_AGAIN, batch=(8, 4), recompute="selective",
        numbers={"set_gradients_to_none": True},
    ),
    "3d x dp2": training(model=SHORT, tensor=CUBE, data_degree=2, batch=(8, 4)),
    "3d x dp2 zero1, gathered again, recompute full": training(
        model=SHORT, tensor=CUBE_AGAIN, data_degree=2, zero_stage=1, batch=(8, 4), bucket_bytes=4000, recompute="full"
    ),
    "3d x pp2 zb_h1, tied": training(
        model=SHORT, tensor=CUBE, pipeline={"degree": 2, "schedule": "zb_h1"}, batch=(8, 4)
    ),
    "3d x cp2, llama": training(model=SHORT_LLAMA, tensor=CUBE, context_degree=2, batch=(4, 4)),
}  # fmt: skip
"""On as many ranks as they need, all in one process."""

_MUTED: Mapping[str, Any] = {**ONE, "dropout": 0.0}
MUTED_JOBS: Mapping[str, DenseTraining] = {
    "2.5d": training(model=_MUTED, tensor=DEEP, batch=(4, 4)),
    "2.5d, per step": training(model=_MUTED, tensor=DEEP_BY_STEP, batch=(4, 4)),
    "3d": training(model=_MUTED, tensor=CUBE_AGAIN, batch=(4, 4)),
}
"""Each kind of communication of theirs is silenced alone, in one process."""

AS_RINGS = ("2d x dp2",)
"""Runs whose collectives are also sent message by message."""

WRONG_ROOTS: Mapping[str, tuple[str, str]] = {
    "broadcast": ("2d", "layer1.fc1.broadcast_tp_row.1"),
    "reduce of an input's gradient": ("2d", "layer1.qkv.input_gradient.reduce_tp_column.1"),
    "reduce of a weight's gradient": ("2d", "layer0.fc2.weight_gradient.reduce_tp_row.1"),
    "reduce of logits": ("2d", "head.reduce_tp_column.1"),
}
"""Collectives that go from, or to, a wrong rank: job and op."""


def with_wrong_root(plan: Plan, name: str) -> Plan:
    """Return a plan in which one collective has the root of another step."""
    found = [op.name for program in plan.programs for task in program.tasks.values() for op in task.ops]
    assert name in found, sorted(n for n in found if "reduce" in n)
    programs = []
    for program in plan.programs:
        tasks = {
            key: replace(task, ops=tuple(_rooted_wrongly(op, name) for op in task.ops))
            for key, task in program.tasks.items()
        }
        programs.append(replace(program, tasks=tasks))
    return replace(plan, programs=tuple(programs))


def _rooted_wrongly(op: Op, name: str) -> Op:
    return replace(op, root=1 - op.root) if isinstance(op, Collective) and op.name == name else op


def request_of(name: str, job: DenseTraining) -> ExecutionRequest:
    """Return a run that is compared with the reference: one step, or three where one leaves work to the next."""
    plan = build_dense_training(job, name)
    several = any(call.lag for program in plan.programs for call in program.calls)
    return ExecutionRequest(plan=plan, check_against=job, iterations=3 if several else 1)


def wrong_roots() -> dict[str, ExecutionRequest]:
    """Return the runs with a wrong root."""
    return {
        f"wrong root: {what}": ExecutionRequest(
            plan=with_wrong_root(build_dense_training(MESH_JOBS[name], name), op), check_against=MESH_JOBS[name]
        )
        for what, (name, op) in WRONG_ROOTS.items()
    }


def wide_requests() -> dict[str, ExecutionRequest]:
    """Return the runs on more than four processes."""
    requests = {name: request_of(name, WIDE_JOBS[name]) for name in ON_EIGHT}
    for name in AS_RINGS:
        requests[f"{name} as rings"] = replace(requests[name], explicit=ExplicitCollectives())
    return requests


def wide_requests_in_one_process() -> dict[str, Callable[[], ExecutionRequest]]:
    """Return the other runs of ``WIDE_JOBS`` by name: functions that build their plans."""
    return {name: partial(request_of, name, job) for name, job in WIDE_JOBS.items() if name not in ON_EIGHT}
