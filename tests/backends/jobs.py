"""Tiny trainings that run for real in a blink."""

from collections.abc import Mapping
from typing import Any

from sim.training.spec import DenseTraining, ParallelSpec, PipelineSpec, TrainingSpec, TransformerSpec

GPT: Mapping[str, Any] = {
    "family": "gpt", "num_layers": 4, "hidden_size": 16, "num_heads": 4, "num_kv_heads": 4, "sequence_length": 8,
    "vocab_size": 32, "ffn_hidden_size": 32, "tied_embeddings": True, "attention": "core", "dropout": 0.1,
}  # fmt: skip
LLAMA: Mapping[str, Any] = {
    **GPT, "family": "llama", "num_kv_heads": 2, "tied_embeddings": False, "attention": "flash", "dropout": 0.0,
}  # fmt: skip


def training(
    *,
    model: Mapping[str, Any] = GPT,
    pipeline: Mapping[str, Any] | None = None,
    precision: str = "fp64",
    recompute: str = "none",
    batch: tuple[int, int] = (4, 1),
    numbers: Mapping[str, Any] | None = None,
    **parallel: Any,
) -> DenseTraining:
    """Return a training.

    ``batch``: global and micro-batch size; ``numbers``: more of TrainingSpec; ``parallel``: of ParallelSpec.
    """
    return DenseTraining(
        model=TransformerSpec(**model),
        training=TrainingSpec(
            global_batch_size=batch[0],
            microbatch_size=batch[1],
            precision=precision,  # type: ignore[arg-type]
            recompute=recompute,  # type: ignore[arg-type]
            **(numbers or {}),
        ),
        parallel=ParallelSpec(pipeline=PipelineSpec(**(pipeline or {})), **parallel),
        seed=3,
    )


STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "tp4": {"tensor_degree": 4, "batch": (2, 1)},
    "tp2 sp x dp2": {"tensor_degree": 2, "sequence_parallel": True, "data_degree": 2},
    "pp4 1f1b": {"pipeline": {"degree": 4}, "batch": (6, 1)},
    "pp2 v2 interleaved x tp2": {
        "tensor_degree": 2,
        "pipeline": {"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    },
    "dp2 zero1 x pp2": {"data_degree": 2, "zero_stage": 1, "pipeline": {"degree": 2, "schedule": "gpipe"}},
}
RECOMPUTES = ("none", "selective", "full")

OTHERS: Mapping[str, Mapping[str, Any]] = {
    "one rank": {"batch": (4, 2)},
    "uneven layers, tied, pp2 x dp2": {
        "model": {**GPT, "num_layers": 5}, "pipeline": {"degree": 2}, "data_degree": 2,
    },
    "llama, pp4": {"model": LLAMA, "pipeline": {"degree": 4}},
    "llama, tp2 sp x dp2 zero1": {
        "model": LLAMA, "tensor_degree": 2, "sequence_parallel": True, "data_degree": 2, "zero_stage": 1,
        "bucket_bytes": 4000,
    },
    "scatter-gather pipeline x tp2": {
        "tensor_degree": 2, "pipeline": {"degree": 2, "scatter_gather": True}, "overlap_gradient_sync": False,
    },
    "unfused, weight gradients first, tp2 x dp2": {
        "tensor_degree": 2, "data_degree": 2, "overlap_tensor_backward": False,
        "numbers": {"fused_gradient_accumulation": False},
    },
    "other axis order": {
        "tensor_degree": 2, "data_degree": 2, "zero_stage": 1, "axis_order": ("pp", "tp", "dp"), "batch": (4, 2),
    },
}  # fmt: skip


def checked_trainings() -> dict[str, DenseTraining]:
    """Return every training that must reproduce the dense reference in float64."""
    jobs = {
        f"{name}, recompute {recompute}": training(recompute=recompute, **strategy)
        for name, strategy in STRATEGIES.items()
        for recompute in RECOMPUTES
    }
    return jobs | {name: training(**strategy) for name, strategy in OTHERS.items()}
