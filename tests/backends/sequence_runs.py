"""Real runs of methods that share sequences among ranks."""

from collections.abc import Mapping
from typing import Any

from sim.training.spec.job import DenseTraining
from sim.training.spec.models.window import SlidingWindow
from tests.backends.expert_runs import MIXTURE
from tests.backends.jobs import GPT, LLAMA, training

SHORT: Mapping[str, Any] = {**GPT, "num_layers": 2}
SHORT_LLAMA: Mapping[str, Any] = {**LLAMA, "num_layers": 2}
WIDE_LLAMA: Mapping[str, Any] = {**SHORT_LLAMA, "num_kv_heads": 4}

SEQUENCE_JOBS: Mapping[str, DenseTraining] = {
    "ulysses on 4": training(model=WIDE_LLAMA, context_degree=4, context_method="ulysses", batch=(2, 1)),
    "contiguous ring on 4": training(
        model=SHORT_LLAMA, context_degree=4, context_layout="contiguous", batch=(2, 1), recompute="selective"
    ),
    "ring self-attention on 4": training(
        model=SHORT, context_degree=4, context_method="ring_self_attention", batch=(2, 1)
    ),
    "two levels, 2 x 2": training(model=SHORT_LLAMA, context_degree=4, context_method="two_level", batch=(2, 1)),
    "tp2 sp x ulysses": training(
        model=WIDE_LLAMA, tensor_degree=2, sequence_parallel=True, context_degree=2, context_method="ulysses",
        batch=(2, 1), recompute="selective",
    ),
}  # fmt: skip
"""On four processes, with all others."""

MANY_SEQUENCE_JOBS: Mapping[str, DenseTraining] = {
    "contiguous ring on 4, recompute full": training(
        model={**SHORT, "attention": "flash"}, context_degree=4, context_layout="contiguous", batch=(2, 1),
        recompute="full", numbers={"checkpoint_early_stop": True},
    ),
    "contiguous ring x pp2 x dp2 zero1": training(
        model=SHORT_LLAMA, context_degree=2, context_layout="contiguous", data_degree=2, zero_stage=1, batch=(4, 1),
        pipeline={"degree": 2},
    ),
    "contiguous gathers on 4, recompute selective": training(
        model=SHORT_LLAMA, context_degree=4, context_method="all_gather", context_layout="contiguous", batch=(2, 1),
        recompute="selective",
    ),
    "contiguous gathers x tp2 sp x dp2 zero3": training(
        model=SHORT_LLAMA, context_degree=2, context_method="all_gather", context_layout="contiguous", data_degree=2,
        zero_stage=3, tensor_degree=2, sequence_parallel=True, batch=(4, 1),
    ),
    "ring self-attention on 4, llama, recompute full": training(
        model={**SHORT_LLAMA, "attention": "core", "score_cap": 3.0}, context_degree=4,
        context_method="ring_self_attention", batch=(2, 1), recompute="full",
    ),
    "ring self-attention x tp2 sp x dp2 zero1, recompute selective": training(
        model=SHORT, context_degree=2, context_method="ring_self_attention", tensor_degree=2, sequence_parallel=True,
        data_degree=2, zero_stage=1, batch=(4, 1), recompute="selective",
    ),
    "ring self-attention x pp2": training(
        model=SHORT, context_degree=2, context_method="ring_self_attention", pipeline={"degree": 2}, batch=(2, 1)
    ),
    "two levels, 2 x 2, contiguous, recompute full": training(
        model={**SHORT, "attention": "flash"}, context_degree=4, context_method="two_level",
        context_layout="contiguous", batch=(2, 1), recompute="full",
    ),
    "two levels, 3 x 2, recompute selective": training(
        model={**SHORT_LLAMA, "sequence_length": 12}, context_degree=6, context_method="two_level", batch=(1, 1),
        recompute="selective",
    ),
    "two levels, 2 x 2, x tp2 sp": training(
        model={**WIDE_LLAMA, "sequence_length": 16}, context_degree=4, context_method="two_level", tensor_degree=2,
        sequence_parallel=True, batch=(1, 1),
    ),
    "two levels, 2 x 2, x dp2 zero3": training(
        model=SHORT_LLAMA, context_degree=4, context_method="two_level", data_degree=2, zero_stage=3, batch=(2, 1)
    ),
    "experts, two levels, 2 x 2, ep2": training(
        model={**MIXTURE, "num_layers": 1}, context_degree=4, context_method="two_level", data_degree=2,
        expert_degree=2, batch=(2, 1),
    ),
    "experts, contiguous ring": training(
        model={**MIXTURE, "num_layers": 1}, context_degree=2, context_layout="contiguous", batch=(2, 1)
    ),
    "full mask, ring, zigzag": training(
        model={**SHORT_LLAMA, "causal": False}, context_degree=2, batch=(1, 1), recompute="selective"
    ),
    "full mask, contiguous ring on 4": training(
        model={**SHORT_LLAMA, "causal": False}, context_degree=4, context_layout="contiguous", batch=(1, 1)
    ),
    "full mask, gathers": training(
        model={**SHORT_LLAMA, "causal": False}, context_degree=2, context_method="all_gather", batch=(1, 1)
    ),
    "full mask, two levels, 2 x 2": training(
        model={**SHORT_LLAMA, "causal": False}, context_degree=4, context_method="two_level", batch=(1, 1)
    ),
    "full mask, ring self-attention": training(
        model={**SHORT, "causal": False}, context_degree=2, context_method="ring_self_attention", batch=(1, 1)
    ),
    "full mask, ulysses x tp2 sp": training(
        model={**WIDE_LLAMA, "causal": False}, context_degree=2, context_method="ulysses", tensor_degree=2,
        sequence_parallel=True, batch=(1, 1),
    ),
    "full mask, scores kept, tp2": training(model={**SHORT, "causal": False}, tensor_degree=2, batch=(1, 1)),
    "ulysses on 4, recompute full": training(
        model=WIDE_LLAMA, context_degree=4, context_method="ulysses", batch=(2, 1), recompute="full"
    ),
    "ulysses on 4, scores kept, dropout": training(
        model=SHORT, context_degree=4, context_method="ulysses", batch=(2, 1)
    ),
    "ulysses, windows, cap": training(
        model={**SHORT_LLAMA, "attention": "core", "score_cap": 3.0, "sliding_window": SlidingWindow(size=3)},
        context_degree=2, context_method="ulysses", batch=(2, 1), recompute="selective",
        numbers={"set_gradients_to_none": True},
    ),
    "ulysses x pp2 zb_h1 x dp2 zero1": training(
        model=SHORT, context_degree=2, context_method="ulysses", data_degree=2, zero_stage=1, batch=(8, 1),
        pipeline={"degree": 2, "schedule": "zb_h1"}, axis_order=("pp", "cp", "dp", "tp"),
    ),
    "ulysses x tp2 x dp2 zero3": training(
        model=WIDE_LLAMA, context_degree=2, context_method="ulysses", data_degree=2, zero_stage=3, batch=(4, 1),
        tensor_degree=2,
    ),
}  # fmt: skip
"""On as many ranks as they need, all in one process."""

MUTED_SEQUENCE_JOBS: Mapping[str, DenseTraining] = {
    "two levels": training(
        model={**LLAMA, "num_layers": 1}, context_degree=4, context_method="two_level", batch=(1, 1)
    ),
    "ring self-attention": training(
        model={**GPT, "num_layers": 1, "sequence_length": 12}, context_degree=3, context_method="ring_self_attention",
        batch=(1, 1),
    ),
    "contiguous ring": training(
        model={**LLAMA, "num_layers": 1}, context_degree=4, context_layout="contiguous", batch=(1, 1)
    ),
    "contiguous gathers": training(
        model={**LLAMA, "num_layers": 1}, context_degree=2, context_method="all_gather", context_layout="contiguous",
        batch=(1, 1),
    ),
    "ulysses": training(
        model={**LLAMA, "num_layers": 1}, context_degree=2, context_method="ulysses", batch=(1, 1)
    ),
}  # fmt: skip
"""Each kind of communication of theirs is silenced alone, in one process."""
