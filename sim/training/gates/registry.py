"""All gates, by the names that scenarios write."""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from sim.training.gates import best_scores, near_experts, other_rules
from sim.training.gates.gate import Gate

ExpertGate = Literal[
    "top_k", "switch", "gshard", "k_top_1", "group_limited", "bias", "topology_aware", "sam", "expert_choice", "hash",
    "dense_to_sparse", "base",
]  # fmt: skip
GATES: Final[Mapping[ExpertGate, Callable[[], type[Gate]]]] = {
    "top_k": lambda: best_scores.TopK,
    "switch": lambda: best_scores.Switch,
    "gshard": lambda: best_scores.GShard,
    "k_top_1": lambda: best_scores.KTop1,
    "group_limited": lambda: best_scores.GroupLimited,
    "bias": lambda: best_scores.Biased,
    "topology_aware": lambda: near_experts.TopologyAware,
    "sam": lambda: near_experts.SwitchAndMixture,
    "expert_choice": lambda: other_rules.ExpertChoice,
    "hash": lambda: other_rules.Hash,
    "dense_to_sparse": lambda: other_rules.Cooled,
    "base": lambda: other_rules.Base,
}
"""What names the class of each gate, whose file may wait until then."""


def gate_of(name: ExpertGate) -> Gate:
    """Return the gate of a name: ``gate_of("switch")``."""
    return GATES[name]()()
