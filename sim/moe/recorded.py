"""Recorded routing: the number of tokens per step, layer, source rank and expert. ``routing_file`` has its files."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodels.digest import blake2b
from sim.moe.errors import RoutingError
from sim.moe.routing import Routing, RoutingShape


@dataclass(frozen=True, slots=True)
class RecordedRouting:
    """The columns of a file, int64: step, layer, source rank, expert and tokens, sorted in this order."""

    file: str
    columns: NDArray[np.int64] = field(repr=False)

    @classmethod
    def of(cls, file: str, routings: Sequence[Routing], first_layer: int = 0) -> "RecordedRouting":
        """Return the routings of steps in a row. ``first_layer``: the number of the first layer with experts."""
        tables = []
        for step, routing in enumerate(routings):
            layers, sources, experts = np.nonzero(routing.counts)
            tokens = routing.counts[layers, sources, experts]
            tables.append(np.stack([np.full_like(layers, step), layers + first_layer, sources, experts, tokens]))
        return cls(file, np.concatenate(tables, axis=1))

    @property
    def steps(self) -> NDArray[np.int64]:
        """Return the numbers of the steps, in order."""
        return np.unique(self.columns[0])

    def at(self, step: int) -> "Recorded":
        """Return one step. Raises RoutingError where the file does not have it."""
        chosen = self.columns[1:, self.columns[0] == step]
        if not chosen.size:
            steps = self.steps
            rule = f"{self.file} has no step {step}"
            raise RoutingError(rule, f"write one of its {len(steps)} steps, {steps[0]} to {steps[-1]}")
        digest = blake2b(np.ascontiguousarray(chosen).tobytes(), digest_size=16).hexdigest()
        return Recorded(self.file, step, digest, chosen, self)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One step of a recorded routing; two are equal if their contents are."""

    file: str
    step: int
    digest: str
    _columns: NDArray[np.int64] = field(repr=False, compare=False)
    _recording: RecordedRouting = field(repr=False, compare=False)

    def later(self, steps: int) -> "Recorded":
        """Return the routing of so many steps later. Raises RoutingError where the file does not have it."""
        last = int(self._recording.steps[-1])
        if self.step + steps > last:
            rule = f"{self.file} ends with step {last}, and experts move over {steps} steps after step {self.step}"
            raise RoutingError(rule, f"write placement.steps: {last - self.step + 1}, or name a longer file")
        return self._recording.at(self.step + steps)

    def routing(self, shape: RoutingShape) -> Routing:
        """Return the routing. Raises RoutingError where the file is of another shape."""
        layers, sources, experts, tokens = self._columns
        numbers = np.unique(layers)
        if len(numbers) != shape.num_layers:
            rule = f"{self.file} has {len(numbers)} layers in step {self.step}, and the model {shape.num_layers}"
            raise RoutingError(f"{rule} with experts", "use a routing that was recorded with this model")
        if experts.max() >= shape.num_experts:
            rule = f"{self.file} has an expert {experts.max()}, and the model's are 0 to {shape.num_experts - 1}"
            raise RoutingError(rule, "use a routing that was recorded with this model")
        num_sources = int(sources.max()) + 1
        if num_sources > len(sources):  # every source chooses something in every layer
            missing = int(np.setdiff1d(np.arange(num_sources), sources)[0])
            rule = f"{self.file} has a source rank {num_sources - 1}, and none of number {missing}"
            raise RoutingError(rule, "count source ranks from 0, in the order in which samples are dealt out")
        counts = np.zeros((shape.num_layers, num_sources, shape.num_experts), dtype=np.int64)
        counts[np.searchsorted(numbers, layers), sources, experts] = tokens
        return Routing(counts).check(shape)
