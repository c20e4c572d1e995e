"""The dense runs that a process has computed, each once."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from backends.torch.reference.dense import Reference, backpropagation, reference_steps
from backends.torch.reference.local import local_updates
from sim.training.spec.job import DenseTraining


@dataclass(slots=True)
class TrainedReference:
    """A dense reference that is trained as far as it was asked for. ``num_steps``: so many steps."""

    steps: Iterator[Reference]
    num_steps: int = 0
    _last: Reference | None = None

    def after(self, num_steps: int) -> Reference:
        """Return the reference after so many steps, no fewer than before."""
        while self.num_steps < num_steps:
            self._last, self.num_steps = next(self.steps), self.num_steps + 1
        assert self._last is not None
        return self._last


@dataclass(slots=True)
class References:
    """The dense runs that plans must reproduce. Plans of the same model, batch, seed and algorithm share one.

    reference = References(torch.device("cpu")).of(job, steps=1)
    """

    device: torch.device
    _found: dict[tuple[object, ...], TrainedReference] = field(default_factory=dict)

    def of(self, job: DenseTraining, steps: int) -> Reference:
        """Return the dense run of so many optimizer steps of a training."""
        t, parallel = job.training, job.parallel
        optimizer = (t.optimizer, *t.optimizer_numbers.items())
        blocks = (t.update, parallel.pipeline) if t.method == "local" else None
        delay = parallel.gradient_delay
        dealing = (t.microbatch_size, parallel.sequence.chunks, parallel.data_degree, parallel.expert_degree)
        slots = dealing if job.model.experts else None
        key = (job.model, job.seed, t.global_batch_size, t.precision, optimizer, blocks, delay, slots)
        trained = self._found.get(key)
        if trained is None or trained.num_steps > steps:
            objective = local_updates(job) if t.method == "local" else backpropagation(job.model)
            trained = self._found[key] = TrainedReference(reference_steps(job, self.device, objective, delay))
        return trained.after(steps)
