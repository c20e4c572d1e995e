"""Inference jobs whose logits and tokens must be those of a dense model that takes each sequence at once."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from sim.inference.spec import InferenceJob
from sim.training.spec.job import ParallelSpec, PipelineSpec
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.latent import LatentAttention
from sim.training.spec.models.model import TransformerSpec
from sim.training.tensor.one_dimensional import OneDimensional

GROUPED: Final = TransformerSpec(
    family="llama", num_layers=2, hidden_size=16, num_heads=4, num_kv_heads=2, ffn_hidden_size=24, vocab_size=32,
    sequence_length=16, tied_embeddings=False, attention="flash",
)  # fmt: skip
GPT: Final = replace(GROUPED, family="gpt", num_kv_heads=4, tied_embeddings=True)
VARIED: Final = replace(
    GROUPED, own_head_size=6, qkv_bias=True, query_key_norm=True, post_norms=True, scaled_embeddings=True, logit_cap=0.1
)
EXPERTS: Final = replace(
    GROUPED,
    experts=ExpertsSpec(
        num_experts=4, top_k=2, ffn_hidden_size=12, shared_ffn_hidden_size=8, first_dense_layers=1, capacity_factor=2.0
    ),
)


_SIZES: Final = LatentAttention(kv_rank=10, head_size=4, rotary_head_size=2, value_head_size=3)
PLAIN_QUERIES: Final = replace(GROUPED, num_kv_heads=4, latent_attention=_SIZES)
LATENT: Final = replace(GROUPED, num_kv_heads=4, latent_attention=replace(_SIZES, q_rank=8))
TILED: Final = replace(GROUPED, num_kv_heads=4, latent_attention=replace(_SIZES, kv_rank=136))
"""Its latents in eight bits have two scales each, one of 128 numbers and one of eight."""


def job(model: TransformerSpec = GROUPED, **changes: Any) -> InferenceJob:
    """Return three unequal prompts with four tokens after each, in float64. ``tp``, ``pp``, ``ep``: degrees."""
    tensor, pipeline, expert = (changes.pop(axis, 1) for axis in ("tp", "pp", "ep"))
    parallel = ParallelSpec(
        tensor=OneDimensional(degree=tensor), pipeline=PipelineSpec(degree=pipeline), data_degree=expert,
        expert_degree=expert,
    )  # fmt: skip
    keys: dict[str, Any] = {"prompt_tokens": (5, 8, 1), "output_tokens": 4, "precision": "fp64", "block_tokens": 4}
    return InferenceJob(model=model, parallel=parallel, **keys | changes)


JOBS: Final[Mapping[str, InferenceJob]] = {
    "one device": job(),
    "prompts alone": job(output_tokens=1),
    "gpt, tp2": job(GPT, tp=2),
    "pp2, two micro-batches": job(pp=2, num_microbatches=2),
    "variations, tp2 x pp2": job(VARIED, tp=2, pp=2),
    "given text, three tokens per step, pp2": job(tokens_per_step=3, pp=2),
    "latent, tp2": job(LATENT, tp=2),
    "latent, prompts alone": job(LATENT, output_tokens=1),
    "latent without a rank of queries, three tokens per step, pp2": job(PLAIN_QUERIES, pp=2, tokens_per_step=3),
    "experts, ep2": job(EXPERTS, ep=2),
    "experts, ep2 x tp2": job(EXPERTS, ep=2, tp=2),
    "caches in eight bits, tp2": job(wide=True, tp=2, cache_precision="fp8"),
    "eight bits, tp2 x pp2": job(GPT, precision="fp8", wide=True, tp=2, pp=2, cache_precision="fp8"),
    "latents and weights in eight bits, tp2": job(LATENT, precision="fp8", wide=True, tp=2),
    "caches of latents in eight bits, prompts alone": job(TILED, wide=True, output_tokens=1, cache_precision="fp8"),
    "caches of latents in eight bits, tp2": job(TILED, wide=True, tp=2, cache_precision="fp8"),
    "all in eight bits, three tokens per step, pp2": job(
        TILED, precision="fp8", wide=True, pp=2, tokens_per_step=3, cache_precision="fp8"
    ),
    "queries in eight bits, two tokens per step": job(PLAIN_QUERIES, precision="fp8", wide=True, tokens_per_step=3),
    "experts in eight bits, ep2 x tp2": job(EXPERTS, precision="fp8", wide=True, ep=2, tp=2),
}
