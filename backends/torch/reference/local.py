"""Local updates by their definition: every block has a detached input and its own loss."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from msgspec.structs import replace
from torch import Tensor

from backends.torch.reference.dense import DenseModel, Objective, parameter_shapes
from sim.training.spec.job import DenseTraining, split_layers


def local_updates(job: DenseTraining) -> Objective:
    """Return the objective of local updates (Laskin et al. 2020).

    Greedy: block k minimises the loss of its own head alone. Overlapping: block k minimises the sum of its own loss and
    the loss of block k+1, with the parameters of block k+1 as constants. No other gradient crosses a block's input.
    Each pipeline rank reports the sum of its blocks' own losses.
    """
    edges = tuple(accumulate(split_layers(job.model.num_layers, job.parallel.pipeline), initial=0))
    blocks = [range(first, last) for first, last in pairwise(edges)]
    overlaps, per_rank = job.training.update == "overlapping", job.parallel.pipeline.virtual_stages

    def evaluate(dense: DenseModel) -> tuple[Tensor, Mapping[str, Tensor]]:
        frozen = replace(dense, parameters={name: value.detach() for name, value in dense.parameters.items()})
        total, own = torch.zeros((), dtype=torch.float64, device=dense.device), []
        x = dense.embedded()
        for k in range(len(blocks)):
            y = dense.through(x, blocks[k])
            own.append(_loss(dense, y, k, blocks))
            total = total + own[k]
            if overlaps and k + 1 < len(blocks):
                total = total + _loss(frozen, frozen.through(y, blocks[k + 1]), k + 1, blocks)
            x = y.detach()
        sums = [sum(own[first : first + per_rank]) for first in range(0, len(own), per_rank)]
        return total, {f"loss.{rank}": torch.as_tensor(loss).detach() for rank, loss in enumerate(sums)}

    return Objective(_shapes(job, len(blocks)), evaluate)


def _loss(dense: DenseModel, y: Tensor, block: int, blocks: Sequence[range]) -> Tensor:
    """Return the loss of a block's head; for the last block, the loss of the model."""
    if block == len(blocks) - 1:
        return dense.loss_of(y, "final_norm", "head.weight")
    return dense.loss_of(y, f"auxiliary{block}.norm", f"auxiliary{block}.weight")


def _shapes(job: DenseTraining, num_blocks: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of the dense model and of the auxiliary heads."""
    model, shapes = job.model, parameter_shapes(job.model)
    for block in range(num_blocks - 1):
        shapes[f"auxiliary{block}.norm.weight"] = (model.hidden_size,)
        if model.family == "gpt":
            shapes[f"auxiliary{block}.norm.bias"] = (model.hidden_size,)
        shapes[f"auxiliary{block}.weight"] = (model.vocab_size, model.hidden_size)
    return shapes
