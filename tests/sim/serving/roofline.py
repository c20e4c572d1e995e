"""The time of an iteration by a plain roofline: two efficiencies, and no fixed times.

Williams et al. 2009, for a decoder: weights are read once for all tokens of a pass, keys and values once per sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.hardware import DeviceSpec
from sim.serving.prices.microbatches import Chunk
from sim.serving.prices.model import ServedModel

_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCost:
    """Times of a model without experts on one device, in 16 bits.

    ``compute_fraction`` and ``memory_fraction``: of the device's peak arithmetic rate and memory bandwidth.
    """

    model: ServedModel
    device: DeviceSpec
    compute_fraction: float = 0.6
    memory_fraction: float = 0.8

    def pass_s(self, rows: int, positions: int, context: float, chunks: Sequence[Chunk] = ()) -> float:
        """Return the time of a pass; see ``IterationCost``."""
        tokens = rows * positions + sum(chunk.tokens for chunk in chunks)
        model = self.model
        layer = sum(model.attention_parameters) + model.mlp_parameters(model.ffn_hidden_size)
        parameters = model.num_layers * layer + model.vocab_size * model.hidden_size
        linear_s = max(self._compute_s(2.0 * tokens * parameters), self._memory_s(parameters * _BYTES))
        chunks_s = sum(self._attention_s(1, chunk.tokens, chunk.computed) for chunk in chunks)
        return linear_s + chunks_s + self._attention_s(rows, positions, context)

    def _attention_s(self, rows: int, positions: int, context: float) -> float:
        model = self.model
        scores = rows * positions * (context + (positions + 1) / 2.0)
        flop = 4.0 * model.num_layers * model.num_heads * model.head_size * scores
        num_bytes = rows * (context + positions) * model.num_layers * model.cached_bytes("bfloat16")
        return max(self._compute_s(flop), self._memory_s(num_bytes))

    def _compute_s(self, flop: float) -> float:
        return flop / (self.compute_fraction * self.device.peak("bfloat16"))

    def _memory_s(self, num_bytes: float) -> float:
        return num_bytes / (self.memory_fraction * self.device.memory_bandwidth_bytes_per_s)
