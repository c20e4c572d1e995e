"""A cache of latents in eight bits: of its numbers, of their scales, and of the positions of keys.

See ``costmodels/kernels/scaled_latents``. Nothing is differentiated.
"""

from typing import Final

from costmodels.kernels.scaled_latents import scaled_caches
from costmodels.kernels.tensor import TensorSpec
from sim.plan.functions.cached_tokens import CachedTokens
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.op import Compute

_PARTS: Final = ("", ".scales", ".positions")


def scaled_latents(t: TaskTracer, name: str, latent: Tensor, position: Tensor, tokens: CachedTokens) -> list[Tensor]:
    """Write new tokens' latents [s, 1, r] and positions [s, 1, 1, p] into the caches ``name``; return the caches."""
    names, known = tuple(f"{name}{part}" for part in _PARTS), name in t.program.buffers
    specs = scaled_caches(tokens.num_slots, latent.shape[-1], TensorSpec(position.shape, position.dtype))
    if not known:
        for cache, spec in zip(names, specs, strict=True):
            t.program.add_buffer(Buffer(cache, spec.shape, spec.dtype, Kind.CACHE, t.scope))
    reads = (latent.name, position.name, *(names if known else ()))
    attributes = {"places": tokens.places, "rows": tokens.num_slots}
    t.emit(Compute(t.unique(f"{name}.append"), "append_latents", reads, names, attributes))
    return [Tensor(cache, spec.shape, spec.dtype, latent.layout) for cache, spec in zip(names, specs, strict=True)]
