"""The gates of layers of experts by name, and the keys that go with each."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

ExpertGate = Literal[
    "top_k", "switch", "gshard", "k_top_1", "group_limited", "expert_choice", "hash", "dense_to_sparse", "base"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTraits:
    """The needs of a gate, and the options that it can be combined with.

    ``top_k``: the only number of choices that it is defined for; None: any. ``has_scores``: a router scores experts.
    ``may_be_forced``: a stated routing may take the place of its choices. ``has_balance_loss``: a loss may keep its
    experts busy. ``tokens_choose``: each token chooses ``top_k`` experts; otherwise any number of experts has a token.
    """

    top_k: int | None = None
    has_scores: bool = True
    may_be_forced: bool = False
    has_balance_loss: bool = True
    tokens_choose: bool = True


GATE_TRAITS: Final[Mapping[ExpertGate, GateTraits]] = MappingProxyType(
    {
        "top_k": GateTraits(may_be_forced=True),
        "switch": GateTraits(top_k=1, may_be_forced=True),
        "gshard": GateTraits(top_k=2),
        "k_top_1": GateTraits(has_balance_loss=False),
        "group_limited": GateTraits(),
        "expert_choice": GateTraits(has_balance_loss=False, tokens_choose=False),
        "dense_to_sparse": GateTraits(top_k=1, has_balance_loss=False, tokens_choose=False),
        "base": GateTraits(top_k=1, has_balance_loss=False),
        "hash": GateTraits(top_k=1, has_scores=False, has_balance_loss=False),
    }
)
