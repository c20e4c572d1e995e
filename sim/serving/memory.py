"""The memory of a replica: the blocks that are left for keys and values beside weights and activations."""

from costmodels.kernels.tensor import BYTES_PER_ELEMENT
from sim.serving.errors import ServingError
from sim.serving.prices.calls import WIDE
from sim.serving.prices.cost import KernelCost
from sim.serving.prices.layout import Stage


def num_blocks(
    cost: KernelCost, *, device_bytes: int, memory_fraction: float, activation_bytes: int, block_tokens: int
) -> int:
    """Return the blocks of keys and values that fit on a replica's devices, of all groups.

    A block of a group lies on all of its stages; the fullest stage decides. Raises ServingError where none fits.
    """
    found = []
    for stage in cost.stages:
        weights = weight_bytes(cost, stage)
        left = round(device_bytes * memory_fraction) - weights - activation_bytes
        blocks = left // (block_tokens * cached_bytes(cost, stage))
        if blocks < 1:
            taken = f"weights of {weights / 1e9:.1f} GB and activations of {activation_bytes / 1e9:.1f} GB"
            rule = f"{taken} leave no room for keys and values in {device_bytes * memory_fraction / 1e9:.1f} GB"
            raise ServingError(
                "service.tensor_degree",
                rule,
                "write larger degrees, a larger memory_fraction, less activation_memory, or precision: fp8",
            )
        found.append(blocks)
    return min(found) * cost.layout.expert_degree


def weight_bytes(cost: KernelCost, stage: Stage) -> int:
    """Return the bytes of a stage's weights on each of its devices."""
    model, layout = cost.model, cost.layout
    copied, shared = model.attention_parameters
    beside, of_experts = model.expert_parameters
    ends = stage.is_first + stage.is_last - (model.tied_embeddings and stage.is_first and stage.is_last)
    in_group = stage.num_layers * shared + stage.num_dense * model.mlp_parameters(model.ffn_hidden_size)
    in_group += stage.num_sparse * beside + ends * model.vocab_size * model.hidden_size
    whole = in_group * layout.expert_degree + stage.num_sparse * of_experts
    element = BYTES_PER_ELEMENT[cost.weight_dtype]
    wider = stage.num_layers * model.absorbed_parameters * (BYTES_PER_ELEMENT[WIDE] - element)
    return whole * element // layout.stage_devices + stage.num_layers * copied * element + wider // layout.tensor_degree


def cached_bytes(cost: KernelCost, stage: Stage) -> int:
    """Return the bytes that a token leaves in the caches of a stage, on each device of its group."""
    return stage.num_layers * cost.model.cached_bytes(cost.cache_dtype, cost.layout.tensor_degree)
