"""The dense runs that a process has computed, each once."""

from dataclasses import dataclass, field

import torch

from backends.torch.reference.dense import Reference, backpropagation, run_reference
from backends.torch.reference.local import local_updates
from sim.training.spec.job import DenseTraining


@dataclass(slots=True)
class References:
    """The dense runs that plans must reproduce. Plans of the same model, batch, seed and algorithm share one.

    reference = References(torch.device("cpu")).of(job, steps=1)
    """

    device: torch.device
    _found: dict[tuple[object, ...], Reference] = field(default_factory=dict)

    def of(self, job: DenseTraining, steps: int) -> Reference:
        """Return the dense run of so many optimizer steps of a training."""
        t, parallel = job.training, job.parallel
        optimizer = (t.optimizer, *t.optimizer_numbers.items())
        blocks = (t.update, parallel.pipeline) if t.method == "local" else None
        delay = parallel.pipeline.gradient_delay
        dealing = (t.microbatch_size, parallel.sequence.chunks, parallel.data_degree, parallel.expert_degree)
        slots = dealing if job.model.experts else None
        key = (job.model, job.seed, t.global_batch_size, t.precision, optimizer, blocks, delay, steps, slots)
        if key not in self._found:
            objective = local_updates(job) if t.method == "local" else backpropagation(job.model)
            self._found[key] = run_reference(job, steps, self.device, objective, delay)
        return self._found[key]
