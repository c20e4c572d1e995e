"""The memory of a replica: the blocks that are left for keys and values beside weights and activations."""

from costmodels.kernels.tensor import BYTES_PER_ELEMENT
from sim.serving.cost import KernelCost
from sim.serving.errors import ServingError


def num_blocks(
    cost: KernelCost, *, device_bytes: int, memory_fraction: float, activation_bytes: int, block_tokens: int
) -> int:
    """Return the blocks of keys and values that fit on a replica's devices. Raises ServingError where none does."""
    weight_bytes = cost.model.num_parameters * BYTES_PER_ELEMENT[cost.weight_dtype] // cost.degree
    left = round(device_bytes * memory_fraction) - weight_bytes - activation_bytes
    block_bytes = block_tokens * cost.model.kv_bytes_per_token(BYTES_PER_ELEMENT[cost.cache_dtype], cost.degree)
    if left < block_bytes:
        taken = f"weights of {weight_bytes / 1e9:.1f} GB and activations of {activation_bytes / 1e9:.1f} GB"
        rule = f"{taken} leave no room for keys and values in {device_bytes * memory_fraction / 1e9:.1f} GB"
        raise ServingError(
            "service.tensor_degree", rule, "write a larger tensor_degree, a larger memory_fraction, or precision: fp8"
        )
    return left // block_bytes
