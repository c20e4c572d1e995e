"""Training of a dense model whose optimizer goes at its own pace, and the same updates once more in one thread."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from backends.execution.lock_free import LockFreeExecution, LockFreeRequest
from backends.torch.reference.check import relative_error
from backends.torch.reference.dense import DenseModel, backpropagation, initial_parameters, run_reference
from backends.torch.tiers.lock_free import AdamNumbers, LockFreeOptimizer, Update, state_sizes
from backends.torch.tiers.page_file import PageFile
from sim.training.spec.job import DenseTraining

_CPU = torch.device("cpu")


@dataclass(slots=True)
class _Model:
    """A dense model whose parameters are vectors, one per unit: a layer, the embedding, the final norm, the head."""

    job: DenseTraining
    shapes: Mapping[str, tuple[int, ...]] = field(init=False)
    units: dict[str, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes = backpropagation(self.job.model).shapes
        for name in self.shapes:
            self.units.setdefault(name.partition(".")[0], []).append(name)

    def initial(self) -> dict[str, Tensor]:
        """Return the first parameters of each unit."""
        return self.flat(initial_parameters(self.job, self.shapes, _CPU))

    def gradients(self, parameters: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """Return the gradient of each unit for the batch of a step, the last units of backward first."""
        leaves = {name: x.requires_grad_() for name, x in self._whole(parameters).items()}
        loss, _ = backpropagation(self.job.model).evaluate(DenseModel(self.job, leaves, step, _CPU))
        found = torch.autograd.grad(loss, list(leaves.values()))
        flat = self.flat(dict(zip(leaves, found, strict=True)))
        return dict(reversed(flat.items()))

    def flat(self, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return parameters as a vector per unit."""
        return {unit: torch.cat([whole[name].reshape(-1) for name in names]) for unit, names in self.units.items()}

    def _whole(self, flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for unit, names in self.units.items():
            sizes = [torch.Size(self.shapes[name]).numel() for name in names]
            for name, part in zip(names, torch.split(flat[unit], sizes), strict=True):
                found[name] = part.reshape(self.shapes[name]).detach().clone()
        return found


def train_lock_free(request: LockFreeRequest) -> LockFreeExecution:
    """Return what a training with an update of its own pace did.

    Raises PageFileError for a file that cannot be made or is gone, UpdateError where the optimizer ends early.
    """
    model, rule = _Model(request.job), _adam(request.job)
    initial = model.initial()
    seen, staleness, step_times_s = list[Mapping[str, int]](), list[int](), list[float]()
    with tempfile.TemporaryDirectory(prefix="meshtwin-", dir=request.folder) as folder:
        file = PageFile(Path(folder) / "pages", state_sizes(initial))
        with LockFreeOptimizer(initial, rule.updated, file, request.max_staleness) as optimizer:
            for step in range(request.steps):
                began_s = perf_counter()
                ready = optimizer.wait(step)
                seen.append(ready.versions)
                staleness.append(ready.staleness)
                for unit, gradient in model.gradients(ready.parameters, step).items():
                    optimizer.add(unit, gradient)
                step_times_s.append(perf_counter() - began_s)
            last = optimizer.settle().parameters
    checked = _again(model, rule, request.steps, seen, optimizer.updates) if request.check else None
    return LockFreeExecution(
        step_times_s=step_times_s,
        staleness=staleness,
        gradients=[update.num_gradients for update in optimizer.updates],
        num_made=sum(optimizer.account.num_made.values()),
        num_applied=sum(optimizer.account.num_applied.values()),
        num_units=len(initial),
        page_bytes=file.num_bytes,
        num_weights=sum(x.numel() for x in last.values()),
        differing_weights=None if checked is None else sum(int((last[unit] != checked[unit]).sum()) for unit in last),
        max_error=_error(model, request, last) if request.check and request.max_staleness == 0 else None,
    )


def _adam(job: DenseTraining) -> AdamNumbers:
    t = job.training
    return AdamNumbers(learning_rate=t.learning_rate, beta1=t.adam_beta1, beta2=t.adam_beta2, epsilon=t.adam_epsilon)


def _error(model: _Model, request: LockFreeRequest, last: Mapping[str, Tensor]) -> float:
    """Return how far parameters are from those of synchronous training."""
    expected = model.flat(run_reference(request.job, request.steps, _CPU).parameters)
    return max(relative_error(last[unit], expected[unit]) for unit in last)


def _again(
    model: _Model, rule: AdamNumbers, steps: int, seen: Sequence[Mapping[str, int]], updates: Sequence[Update]
) -> dict[str, Tensor]:
    """Return the parameters after the same updates in one thread: each step reads the versions that it has seen."""
    last = {unit: [x, torch.zeros_like(x), torch.zeros_like(x)] for unit, x in model.initial().items()}
    versions = {unit: [state[0]] for unit, state in last.items()}
    left = {unit: [u.num_gradients for u in updates if u.unit == unit] for unit in last}
    gradients: dict[str, list[Tensor]] = {unit: [] for unit in last}

    def advance(unit: str, version: int) -> None:
        while len(versions[unit]) <= version:
            count = left[unit].pop(0)
            total = torch.zeros_like(versions[unit][0])
            for gradient in gradients[unit][:count]:
                total = total + gradient
            del gradients[unit][:count]
            last[unit] = rule.updated(last[unit], total, len(versions[unit]))
            versions[unit].append(last[unit][0])

    for step in range(steps):
        for unit, version in seen[step].items():
            advance(unit, version)
        found = model.gradients({unit: versions[unit][version] for unit, version in seen[step].items()}, step)
        for unit, gradient in found.items():
            gradients[unit].append(gradient)
    for unit, rest in left.items():
        advance(unit, len(versions[unit]) - 1 + len(rest))
    return {unit: state[0] for unit, state in last.items()}
