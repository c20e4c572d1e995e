"""One step of generation: the tokens that it settles, and the target's states and choices."""

import torch
from msgspec import Struct
from torch import Tensor

from sim.serving.decoding.draft_tree import Floats


class Step(Struct, frozen=True):
    """What a step has settled. ``tokens``: now in the cache, the old root among them; ``hidden``: their last states.

    ``choices``: the target's first choice after each node of the verified tree; ``path``: the accepted nodes.
    """

    tokens: tuple[int, ...]
    hidden: Tensor
    choices: tuple[int, ...]
    path: tuple[int, ...]


def numbers(tensor: Tensor) -> Floats:
    """Return a tensor's values as float64 of numpy."""
    found: Floats = tensor.detach().to(torch.float64).numpy()
    return found
