"""The training of one job: its samples, its network, a step of data-parallel ranks, and its whole state as bytes.

Everything but the state follows from the job's seed, so that every rank makes it for itself. The optimizer is SGD with
momentum. Its three lines stand here: ``torch.optim`` imports torch's compiler, which takes seconds.
"""

from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from typing import Final

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn.functional import cross_entropy

from backends.execution.jobs import LiveTraining, Step
from backends.torch.values.hashing import key_of

MOMENTUM: Final = 0.9
VALIDATION_SAMPLES: Final = 256
LABEL_NOISE: Final = 0.5

Reduce = Callable[[Tensor], None]
"""Adds a tensor up over all ranks, in place."""


class Samples(Struct, frozen=True):
    """Features [n, num_features] and classes [n]."""

    features: Tensor
    classes: Tensor


class JobTraining:
    """Parameters, momentum, position and learning rate of a job on one rank.

    ``position``: samples done, counted over all epochs. ``steps``: all steps so far.
    """

    def __init__(self, training: LiveTraining, dtype: torch.dtype) -> None:
        self.training, self.position, self.steps = training, 0, list[Step]()
        network, seed = training.network, training.seed
        shapes = (network.num_features, network.hidden_size), (network.hidden_size, network.num_classes)
        self.parameters = [
            (_normal(seed, f"weight {place}", shape, dtype) / shape[0] ** 0.5).requires_grad_()
            for place, shape in enumerate(shapes)
        ] + [torch.zeros(shape[1], dtype=dtype, requires_grad=True) for shape in shapes]
        self.momentum = [torch.zeros_like(each) for each in self.parameters]
        self._samples = _samples(training, "training", training.samples_per_epoch, dtype)
        self._validation = _samples(training, "validation", VALIDATION_SAMPLES, dtype)
        self._order = -1, torch.empty(0, dtype=torch.int64)
        self._ramp = training.batch(1).learning_rate, training.batch(1).learning_rate, 0

    @property
    def is_done(self) -> bool:
        """Return whether all epochs are done."""
        return self.position >= self.training.samples

    @property
    def learning_rate(self) -> float:
        """Return the learning rate of the next step: after a change it rises or falls linearly for an epoch."""
        before, after, begin = self._ramp
        part = min(1.0, (self.position - begin) / self.training.samples_per_epoch)
        return before + (after - before) * part

    def rescale(self, num_ranks: int) -> None:
        """Let the learning rate go to that of a number of ranks; at the very beginning at once."""
        after = self.training.batch(num_ranks).learning_rate
        self._ramp = (self.learning_rate if self.position else after), after, self.position

    def step(self, rank: int, num_ranks: int, reduce: Reduce, flag: float) -> float:
        """Train on the next batch, and return the sum of all ranks' flags.

        Each rank has an equal part of the batch; the last batch of an epoch is what is left of it. Gradients, the loss
        and the flag are added up in one collective.
        """
        batch = self.training.batch(num_ranks)
        return self.step_of(batch.local, rank, batch.size, self.learning_rate, reduce, flag)

    def step_of(self, local: int, rank: int, size: int, rate: float, reduce: Reduce, flag: float) -> float:
        """Train on a stated batch of which this rank has ``local`` samples, at a stated learning rate."""
        epoch, begin = divmod(self.position, self.training.samples_per_epoch)
        count = min(size, self.training.samples_per_epoch - begin)
        rows = self._rows(epoch)[begin : begin + count][rank * local : (rank + 1) * local]
        loss = self._loss(self._samples, rows) / count
        gradients = torch.autograd.grad(loss, self.parameters)
        bucket = torch.cat([*(each.flatten() for each in gradients), loss.detach()[None], loss.new_tensor([flag])])
        reduce(bucket)
        *summed, mean_loss, flags = torch.split(bucket, [*(each.numel() for each in self.parameters), 1, 1])
        with torch.no_grad():
            for parameter, momentum, gradient in zip(self.parameters, self.momentum, summed, strict=True):
                momentum.mul_(MOMENTUM).add_(gradient.view_as(momentum))
                parameter.sub_(momentum, alpha=rate)
        self.steps.append(Step(self.position, count, rate, float(mean_loss)))
        self.position += count
        return float(flags)

    def validate(self) -> tuple[float, float]:
        """Return loss and accuracy on the validation samples."""
        with torch.no_grad():
            shown = self._shown(self._validation.features)
            right = (shown.argmax(dim=1) == self._validation.classes).double().mean()
            return float(cross_entropy(shown, self._validation.classes)), float(right)

    def digest(self) -> str:
        """Return a digest of the bits of all parameters and their momentum."""
        found = sha256()
        for each in (*self.parameters, *self.momentum):
            found.update(each.detach().numpy().tobytes())
        return found.hexdigest()

    def flat_parameters(self) -> tuple[float, ...]:
        """Return all parameters in a row."""
        return tuple(torch.cat([each.detach().flatten() for each in self.parameters]).tolist())

    def to_bytes(self) -> bytes:
        """Return the whole state: parameters, momentum, position, learning rate and steps."""
        file = BytesIO()
        rows = [(each.position, each.batch_size, each.learning_rate, each.loss) for each in self.steps]
        state = {
            "parameters": [each.detach() for each in self.parameters], "momentum": self.momentum,
            "position": self.position, "ramp": self._ramp, "steps": torch.tensor(rows, dtype=torch.float64),
        }  # fmt: skip
        torch.save(state, file)
        return file.getvalue()

    def take(self, state: bytes) -> None:
        """Go on from a state."""
        found = torch.load(BytesIO(state), weights_only=True)
        with torch.no_grad():
            for mine, other in zip((*self.parameters, *self.momentum), (*found["parameters"], *found["momentum"]),
                                   strict=True):  # fmt: skip
                mine.copy_(other)
        self.position, self._ramp = found["position"], found["ramp"]
        self.steps = [Step(int(row[0]), int(row[1]), *row[2:]) for row in found["steps"].tolist()]

    def _rows(self, epoch: int) -> Tensor:
        """Return the order of an epoch's samples."""
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(key_of("jobs", self.training.seed, f"epoch {epoch}"))
            self._order = epoch, torch.randperm(self.training.samples_per_epoch, generator=generator)
        return self._order[1]

    def _loss(self, samples: Samples, rows: Tensor) -> Tensor:
        return cross_entropy(self._shown(samples.features[rows]), samples.classes[rows], reduction="sum")

    def _shown(self, features: Tensor) -> Tensor:
        first, second, bias, last_bias = self.parameters
        shown: Tensor = torch.relu(features @ first + bias) @ second + last_bias
        return shown


def _samples(training: LiveTraining, name: str, count: int, dtype: torch.dtype) -> Samples:
    """Return drawn features, and as classes those of a drawn linear map with noise."""
    network, seed = training.network, training.seed
    features = _normal(seed, f"{name} features", (count, network.num_features), dtype)
    linear = _normal(seed, "teacher", (network.num_features, network.num_classes), dtype)
    noise = _normal(seed, f"{name} noise", (count, network.num_classes), dtype)
    return Samples(features, (features @ linear + LABEL_NOISE * noise).argmax(dim=1))


def _normal(seed: int, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(key_of("jobs", seed, name))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
