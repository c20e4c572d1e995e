"""Gates for which it counts on which ranks experts lie: equal groups of experts are those of a node or of a rank."""

from fractions import Fraction
from math import ceil
from typing import Final

from sim.moe.nearby import kept_near
from sim.moe.routing import Routing
from sim.plan.functions import experts as ex
from sim.plan.functions.grouped_experts import route_mixed
from sim.training.errors import SpecError
from sim.training.gates.gate import Choosing, Gate, GateOptions

_GROUPS_KEY: Final = "model.experts.num_groups"


class TopologyAware(Gate):
    """The best of all experts, but only so many of a rank's tokens may choose one outside the rank's own group.

    He et al. 2022, FasterMoE, section 5.3, as fmoe/gates/faster_gate.py has it: where more tokens score an expert
    outside best, those of the highest best scores choose that expert last, and all other choices are inside.
    """

    name = "topology_aware"
    may_be_forced = True
    options = frozenset({"num_groups", "remote_share"})

    def check(self, spec: GateOptions) -> None:
        """Raise SpecError also where there is one group, groups are not equal, or have too few experts for a token."""
        super().check(spec)
        check_equal_groups(spec, self.name)

    def check_ranks(self, spec: GateOptions, expert_degree: int) -> None:
        """Raise SpecError where a rank has experts of several groups."""
        if expert_degree % spec.num_groups:
            rule = f"{spec.num_groups} groups of experts do not lie on equal parts of the {expert_degree} ranks"
            raise SpecError(_GROUPS_KEY, f"{rule} that share them out", "write a divisor of parallel.expert.degree")

    def limited(self, spec: GateOptions, routing: Routing, num_tokens: int) -> Routing:
        """Return the routing with no more choices outside a source's group than there may be."""
        return kept_near(routing, spec.num_groups, self._most_outside(spec, num_tokens), num_tokens)

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        num_tokens = g.x.shape[0] * g.x.shape[1]
        return ex.route_near(
            g.tracer, g.name, g.logits, top_k=g.spec.top_k, capacity=g.capacity,
            near=ex.Near(g.spec.num_groups, g.expert_axis, self._most_outside(g.spec, num_tokens)),
            forced=g.forced, balance_loss=g.balance_loss,
        )  # fmt: skip

    @staticmethod
    def _most_outside(spec: GateOptions, num_tokens: int) -> int:
        """Return how many of some tokens may choose an expert outside."""
        return int(Fraction(repr(spec.remote_share)) * num_tokens)


class SwitchAndMixture(Gate):
    """The ``top_k`` best of the one group whose shares of the softmax add up to most; a token is sent once.

    Jiang et al. 2021, arXiv:2110.07431. The loss that aligns scores with the chosen group is not built.
    """

    name = "sam"
    options = frozenset({"num_groups"})

    def check(self, spec: GateOptions) -> None:
        """Raise SpecError also where there is one group, groups are not equal, or have too few experts for a token."""
        super().check(spec)
        check_equal_groups(spec, self.name)

    def check_ranks(self, spec: GateOptions, expert_degree: int) -> None:
        """Raise SpecError where a group lies on several ranks."""
        if spec.num_groups % expert_degree:
            rule = f"{expert_degree} ranks share out experts, and the experts of a token lie on one of them"
            raise SpecError(_GROUPS_KEY, rule, f"write a multiple of {expert_degree}")

    def group_capacity(self, spec: GateOptions, num_tokens: int) -> int:
        """Return the slots of a group for a rank's tokens: ``capacity_factor`` times its even share."""
        return min(num_tokens, ceil(Fraction(repr(spec.capacity_factor)) * num_tokens / spec.num_groups))

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token, in its group and of its experts."""
        num_tokens = g.x.shape[0] * g.x.shape[1]
        limit = (g.spec.num_groups, self.group_capacity(g.spec, num_tokens))
        return route_mixed(
            g.tracer, g.name, g.logits, top_k=g.spec.top_k, capacity=g.capacity, groups=limit,
            balance_loss=g.balance_loss,
        )  # fmt: skip


def check_equal_groups(spec: GateOptions, gate: str) -> None:
    """Raise SpecError unless there are several equal groups, each with enough experts for a token's choices."""
    fits = [
        n for n in range(2, spec.num_experts + 1) if not spec.num_experts % n and spec.num_experts // n >= spec.top_k
    ]
    if spec.num_groups not in fits:
        rule = f"{gate} needs several equal groups of at least top_k = {spec.top_k} experts, and {spec.num_experts}"
        rule += f" experts are in {spec.num_groups}"
        remedy = f"write one of {', '.join(map(str, fits))}" if fits else "write more experts, or another gate"
        raise SpecError(_GROUPS_KEY, rule, remedy)
