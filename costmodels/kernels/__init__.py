"""The kernels: for each name, its output shapes and its work."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from costmodels.kernels.attention import ATTENTION_KERNELS
from costmodels.kernels.blocks import BLOCK_KERNELS
from costmodels.kernels.cached_attention import CACHED_ATTENTION_KERNELS
from costmodels.kernels.cached_rows import CACHED_ROW_KERNELS
from costmodels.kernels.click_models import CLICK_MODEL_KERNELS
from costmodels.kernels.elementwise import ELEMENTWISE_KERNELS
from costmodels.kernels.exact_moe import EXACT_MOE_KERNELS
from costmodels.kernels.expert_gates import EXPERT_GATE_KERNELS
from costmodels.kernels.float8 import FLOAT8_KERNELS
from costmodels.kernels.gemm import GEMM_KERNELS
from costmodels.kernels.gemm_parts import GEMM_PART_KERNELS
from costmodels.kernels.gemm_pieces import GEMM_PIECE_KERNELS
from costmodels.kernels.latent import LATENT_KERNELS
from costmodels.kernels.model_ends import MODEL_END_KERNELS
from costmodels.kernels.moe import MOE_KERNELS
from costmodels.kernels.one_hot_moe import ONE_HOT_MOE_KERNELS
from costmodels.kernels.ring_scores import RING_SCORE_KERNELS
from costmodels.kernels.scaled_latents import SCALED_LATENT_KERNELS
from costmodels.kernels.tensor import BYTES_PER_ELEMENT, Attributes, Family, GemmShape, Kernel, TensorSpec, Work

KERNELS: Final[Mapping[str, Kernel]] = MappingProxyType(
    {
        kernel.name: kernel
        for kernel in (
            *GEMM_KERNELS,
            *GEMM_PART_KERNELS,
            *GEMM_PIECE_KERNELS,
            *FLOAT8_KERNELS,
            *ATTENTION_KERNELS,
            *CACHED_ATTENTION_KERNELS,
            *ELEMENTWISE_KERNELS,
            *BLOCK_KERNELS,
            *LATENT_KERNELS,
            *SCALED_LATENT_KERNELS,
            *MODEL_END_KERNELS,
            *MOE_KERNELS,
            *RING_SCORE_KERNELS,
            *EXACT_MOE_KERNELS,
            *EXPERT_GATE_KERNELS,
            *ONE_HOT_MOE_KERNELS,
            *CLICK_MODEL_KERNELS,
            *CACHED_ROW_KERNELS,
        )
    }
)

__all__ = ["BYTES_PER_ELEMENT", "KERNELS", "Attributes", "Family", "GemmShape", "Kernel", "TensorSpec", "Work"]
