"""Click models in plain torch: whole tables, whole batch, autograd; what an executed step must reproduce.

Nothing here comes from the plan but its initial dense weights.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, embedding_bag, linear

from backends.torch.reference.check import relative_error
from backends.torch.values.clicks import drawn_clicks, drawn_rows
from sim.embedding.click_model import ClickModel, ClickModelName
from sim.embedding.ids import Table
from sim.embedding.policies import Ints

Weights = Mapping[str, Tensor]


class ClickReference(Struct, frozen=True):
    """A step's loss, the gradients of dense weights, these weights after it, and all rows after it."""

    loss: Tensor
    gradients: Weights
    parameters: Weights
    rows: Tensor


class ClickTraining(Struct, frozen=True, kw_only=True):
    """A training on whole tables. ``order``: of the tables' vectors in the model."""

    model: ClickModel
    tables: Sequence[Table]
    order: Sequence[int]
    batch_size: int
    seed: int
    learning_rate: float

    def after(self, batches: Sequence[Ints], initial: Weights) -> ClickReference:
        """Return the last step of SGD over some batches of ids, table after table, in 64 bits.

        ``initial``: dense weights before the first.
        """
        num_rows = sum(table.num_rows for table in self.tables)
        rows, weights = drawn_rows(self.seed, num_rows, self.model.row_elements), initial
        for step, ids in enumerate(batches):
            last = self._step(ids, step, weights, rows)
            rows, weights = last.rows, last.parameters
        return last

    def _step(self, ids: Ints, step: int, before: Weights, rows_before: Tensor) -> ClickReference:
        """Return one step; ``step``: its number."""
        rows = rows_before.requires_grad_()
        weights = {name: value.double().clone().requires_grad_() for name, value in before.items()}
        numbers, labels = drawn_clicks(self.seed, step, self.batch_size, self.model.num_numbers)
        logits = _LOGITS[self.model.name](self.model, weights, numbers, self._vectors(ids, rows))
        loss = binary_cross_entropy_with_logits(logits, labels)
        found = torch.autograd.grad(loss, [rows, *weights.values()])
        gradients = dict(zip(weights, found[1:], strict=True))
        after = {name: (weight - self.learning_rate * gradients[name]).detach() for name, weight in weights.items()}
        return ClickReference(loss.detach(), gradients, after, (rows - self.learning_rate * found[0]).detach())

    def _vectors(self, ids: Ints, rows: Tensor) -> Tensor:
        """Return [batch, tables, row elements]: the sum of each table's rows of a sample."""
        lookups = [self.batch_size * table.num_lookups for table in self.tables]
        by_table = torch.split(torch.from_numpy(ids), lookups)
        sums = [embedding_bag(part.view(self.batch_size, -1), rows, mode="sum") for part in by_table]
        return torch.stack([sums[place] for place in self.order], dim=1)


def errors_of(reference: ClickReference, found: Weights, rows: Tensor, loss: Tensor) -> dict[str, float]:
    """Return the largest error of each tensor, relative to its largest element.

    ``found``: dense weights by name, and their gradients by the name and ``.gradient``.
    """
    errors = {"loss": relative_error(loss.reshape(()), reference.loss), "rows": relative_error(rows, reference.rows)}
    for name, expected in reference.parameters.items():
        errors[name] = relative_error(found[name], expected)
        errors[f"{name}.gradient"] = relative_error(found[f"{name}.gradient"], reference.gradients[name])
    return errors


def _layer(weights: Weights, name: str, x: Tensor) -> Tensor:
    return linear(x, weights[f"{name}.weight"].T, weights[f"{name}.bias"])


def _layers(weights: Weights, name: str, x: Tensor, count: int, *, last: bool) -> Tensor:
    for index in range(count):
        x = _layer(weights, f"{name}.{index}", x)
        if last or index < count - 1:
            x = torch.relu(x)
    return x


def _features(model: ClickModel, numbers: Tensor, vectors: Tensor) -> Tensor:
    return torch.cat([numbers, vectors[:, :, : model.embedding_dim].flatten(1)], dim=1)


def _dlrm(model: ClickModel, weights: Weights, numbers: Tensor, vectors: Tensor) -> Tensor:
    x = _layers(weights, "bottom", numbers, len(model.bottom) + 1, last=True)
    joined = [x, *vectors.unbind(1)]
    products = [(joined[i] * joined[j]).sum(1, keepdim=True) for i in range(len(joined)) for j in range(i)]
    return _layers(weights, "top", torch.cat([x, *products], dim=1), len(model.hidden) + 1, last=False)


def _deep(model: ClickModel, weights: Weights, numbers: Tensor, vectors: Tensor) -> Tensor:
    return _layers(weights, "deep", _features(model, numbers, vectors), len(model.hidden) + 1, last=False)


def _wide_deep(model: ClickModel, weights: Weights, numbers: Tensor, vectors: Tensor) -> Tensor:
    return _deep(model, weights, numbers, vectors) + vectors[:, :, -1].sum(1, keepdim=True)


def _deepfm(model: ClickModel, weights: Weights, numbers: Tensor, vectors: Tensor) -> Tensor:
    parts = vectors[:, :, :-1].unbind(1)
    pairs = [(parts[i] * parts[j]).sum(1, keepdim=True) for i in range(len(parts)) for j in range(i)]
    return _wide_deep(model, weights, numbers, vectors) + torch.stack(pairs).sum(0)


def _dcn(model: ClickModel, weights: Weights, numbers: Tensor, vectors: Tensor) -> Tensor:
    x0 = x = _features(model, numbers, vectors)
    for index in range(model.num_cross_layers):
        x = x0 * (x @ weights[f"cross.{index}.weight"]) + weights[f"cross.{index}.bias"] + x
    deep = _layers(weights, "deep", x0, len(model.hidden), last=True)
    return _layer(weights, "of_crossed", x) + _layer(weights, "of_deep", deep)


_LOGITS: Final[Mapping[ClickModelName, Callable[[ClickModel, Weights, Tensor, Tensor], Tensor]]] = {
    "dlrm": _dlrm,
    "wide_deep": _wide_deep,
    "deepfm": _deepfm,
    "dcn": _dcn,
}
