"""Real runs of what newer models change in a Llama: heads of another width, norms, gates, windows, caps."""

from collections.abc import Mapping
from typing import Any

from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.window import SlidingWindow
from tests.backends.jobs import LLAMA, training

WINDOW = SlidingWindow(size=3, global_every=2, rotary_base=500.0)
QWEN: Mapping[str, Any] = {
    **LLAMA, "num_layers": 2, "own_head_size": 6, "qkv_bias": True, "query_key_norm": True, "sliding_window": WINDOW,
}  # fmt: skip
GEMMA: Mapping[str, Any] = {
    **LLAMA, "num_layers": 2, "own_head_size": 6, "gate": "gelu", "post_norms": True, "scaled_embeddings": True,
    "tied_embeddings": True, "attention": "core", "score_cap": 0.05, "logit_cap": 0.2, "sliding_window": WINDOW,
}  # fmt: skip
QWEN_MOE: Mapping[str, Any] = {
    **QWEN,
    "experts": ExpertsSpec(
        num_experts=4, top_k=2, ffn_hidden_size=6, shared_ffn_hidden_size=12, shared_gate=True, capacity_factor=2.0
    ),
}  # fmt: skip

VARIATION_JOBS = {
    "gemma, tp2 sp x pp2, recompute selective": training(
        model=GEMMA, tensor_degree=2, sequence_parallel=True, pipeline={"degree": 2}, recompute="selective"
    ),
    "gemma, zero3 dp2 x tp2": training(model=GEMMA, data_degree=2, zero_stage=3, tensor_degree=2),
    "qwen, experts, tp2 sp x ep2": training(
        model=QWEN_MOE, tensor_degree=2, sequence_parallel=True, data_degree=2, expert_degree=2, zero_stage=1
    ),
    "qwen, experts, tp2, recompute full": training(model=QWEN_MOE, tensor_degree=2, batch=(2, 1), recompute="full"),
    "qwen, zb_h1, pp2 x tp2": training(
        model=QWEN, tensor_degree=2, batch=(4, 1), pipeline={"degree": 2, "schedule": "zb_h1"}
    ),
    "qwen, collective matmul, tp2": training(
        model=QWEN, tensor_degree=2, sequence_parallel=True, collective_matmul=True, batch=(2, 1)
    ),
}  # fmt: skip
