"""The time of an iteration by a plain roofline: two efficiencies, and no fixed times.

Williams et al. 2009, for a decoder: weights are read once for all tokens of a pass, keys and values once per sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.hardware import DeviceSpec
from sim.serving.prices.microbatches import Chunk
from sim.serving.prices.model import ServedModel

Floats = NDArray[np.float64]
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

    def pass_s(self, rows: int, positions: int, contexts: Floats, chunks: Sequence[Chunk] = ()) -> Floats:
        """Return the time of a pass, one for each mean context; see ``IterationCost``."""
        tokens = rows * positions + sum(chunk.tokens for chunk in chunks)
        model = self.model
        layer = sum(model.attention_parameters) + model.mlp_parameters(model.ffn_hidden_size)
        parameters = model.num_layers * layer + model.vocab_size * model.hidden_size
        linear_s = max(self._compute_s(2.0 * tokens * parameters), self._memory_s(parameters * _BYTES))
        chunks_s = sum(float(self._attention_s(1, chunk.tokens, np.array([chunk.computed]))[0]) for chunk in chunks)
        return linear_s + chunks_s + self._attention_s(rows, positions, contexts)

    def _attention_s(self, rows: int, positions: int, contexts: Floats) -> Floats:
        model = self.model
        scores = rows * positions * (contexts + (positions + 1) / 2.0)
        flop = 4.0 * model.num_layers * model.num_heads * model.head_size * scores
        num_bytes = rows * (contexts + positions) * model.num_layers * model.kv_elements() * _BYTES
        longest: Floats = np.maximum(
            flop / (self.compute_fraction * self.device.peak("bfloat16")),
            num_bytes / (self.memory_fraction * self.device.memory_bandwidth_bytes_per_s),
        )
        return longest

    def _compute_s(self, flop: float) -> float:
        return flop / (self.compute_fraction * self.device.peak("bfloat16"))

    def _memory_s(self, num_bytes: float) -> float:
        return num_bytes / (self.memory_fraction * self.device.memory_bandwidth_bytes_per_s)
