"""All gates, by the names that scenarios write."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from sim.training.gates.best_scores import Biased, GroupLimited, GShard, KTop1, Switch, TopK
from sim.training.gates.gate import Gate
from sim.training.gates.near_experts import SwitchAndMixture, TopologyAware
from sim.training.gates.other_rules import Base, Cooled, ExpertChoice, Hash

ExpertGate = Literal[
    "top_k", "switch", "gshard", "k_top_1", "group_limited", "bias", "topology_aware", "sam", "expert_choice", "hash",
    "dense_to_sparse", "base",
]  # fmt: skip
GATES: Final[Mapping[str, Gate]] = MappingProxyType(
    {
        gate.name: gate
        for gate in (
            TopK(), Switch(), GShard(), KTop1(), GroupLimited(), Biased(), TopologyAware(), SwitchAndMixture(),
            ExpertChoice(), Hash(), Cooled(), Base(),
        )
    }
)  # fmt: skip
