"""The weights of the learned policy that come with the program, and the commands that trained them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from sim.jobs.policies.learned import Weights

SHIPPED: Final = Path(__file__).parent / "learned.yaml"
SHIPPED_OBSERVED: Final = Path(__file__).parent / "learned_observed.yaml"
"""Trained with observed speeds."""


class TrainedWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``made_by``: the command. ``best_mean_jct_s``: of the best draws, by generation."""

    made_by: str
    best_mean_jct_s: Sequence[float]
    weights: Weights


def shipped_weights(*, observed: bool = False) -> Weights:
    """Return the weights that come with the program: those for known speeds, or for observed ones."""
    path = SHIPPED_OBSERVED if observed else SHIPPED
    return msgspec.yaml.decode(path.read_bytes(), type=TrainedWeights).weights
