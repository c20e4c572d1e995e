"""The kernels: one torch implementation per name of the plan language's vocabulary."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from backends.torch.kernels.attention import ATTENTION_KERNELS
from backends.torch.kernels.blocks import BLOCK_KERNELS
from backends.torch.kernels.cached_attention import CACHED_ATTENTION_KERNELS
from backends.torch.kernels.cached_rows import CACHED_ROW_KERNELS
from backends.torch.kernels.click_models import CLICK_MODEL_KERNELS
from backends.torch.kernels.context import DTYPES, KernelContext, KernelFunction, RankContext
from backends.torch.kernels.elementwise import ELEMENTWISE_KERNELS
from backends.torch.kernels.exact_moe import EXACT_MOE_KERNELS
from backends.torch.kernels.expert_gates import EXPERT_GATE_KERNELS
from backends.torch.kernels.float8 import FLOAT8_KERNELS
from backends.torch.kernels.gemm import GEMM_KERNELS
from backends.torch.kernels.gemm_parts import GEMM_PART_KERNELS
from backends.torch.kernels.gemm_pieces import GEMM_PIECE_KERNELS
from backends.torch.kernels.latent import LATENT_KERNELS
from backends.torch.kernels.model_ends import MODEL_END_KERNELS
from backends.torch.kernels.moe import MOE_KERNELS
from backends.torch.kernels.one_hot_moe import ONE_HOT_MOE_KERNELS
from backends.torch.kernels.ring_scores import RING_SCORE_KERNELS
from backends.torch.kernels.scaled_latents import SCALED_LATENT_KERNELS

KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        **GEMM_KERNELS,
        **GEMM_PART_KERNELS,
        **GEMM_PIECE_KERNELS,
        **FLOAT8_KERNELS,
        **ATTENTION_KERNELS,
        **CACHED_ATTENTION_KERNELS,
        **ELEMENTWISE_KERNELS,
        **BLOCK_KERNELS,
        **LATENT_KERNELS,
        **SCALED_LATENT_KERNELS,
        **MODEL_END_KERNELS,
        **MOE_KERNELS,
        **RING_SCORE_KERNELS,
        **EXACT_MOE_KERNELS,
        **EXPERT_GATE_KERNELS,
        **ONE_HOT_MOE_KERNELS,
        **CLICK_MODEL_KERNELS,
        **CACHED_ROW_KERNELS,
    }
)

__all__ = ["DTYPES", "KERNELS", "KernelContext", "KernelFunction", "RankContext"]
