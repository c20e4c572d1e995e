"""The training of a job once more, on one process, with the batches and learning rates that it had on many."""

from collections.abc import Sequence

import torch

from backends.execution.jobs import Compared, LiveTraining, Step
from backends.torch.jobs.training import JobTraining


def compared(training: LiveTraining, steps: Sequence[Step], parameters: Sequence[float]) -> Compared:
    """Return how far losses and final parameters [n] are from those of one process, all in 64 bits."""
    alone = JobTraining(training, torch.float64)
    for step in steps:
        alone.step_of(step.batch_size, 0, step.batch_size, step.learning_rate, lambda _: None, 0.0)
    if [each.position for each in alone.steps] != [each.position for each in steps] or not alone.is_done:
        raise ValueError(f"{len(steps)} steps do not cover the {training.samples:,} samples of all epochs once each")
    losses = [abs(one.loss - other.loss) for one, other in zip(alone.steps, steps, strict=True)]
    differences = [abs(one - other) for one, other in zip(alone.flat_parameters(), parameters, strict=True)]
    return Compared(max(losses), max(differences))
