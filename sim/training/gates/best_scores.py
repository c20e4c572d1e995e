"""Gates by which tokens choose the experts that score them best."""

from typing import ClassVar

from sim.moe.choices import GroupLimit
from sim.moe.routing import Routing
from sim.moe.within_groups import within_groups
from sim.plan.functions import experts as ex
from sim.plan.functions.biased_experts import route_biased, router_bias
from sim.training.errors import SpecError
from sim.training.gates.gate import GATE_KEY, Choosing, Gate, GateOptions


class TopK(Gate):
    """The best of all experts, or what a stated routing forces."""

    name = "top_k"
    may_be_forced = True

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        return ex.route(
            g.tracer, g.name, g.logits, top_k=g.spec.top_k, capacity=g.capacity, balanced=g.spec.routing == "balanced",
            forced=g.forced, balance_loss=g.balance_loss,
        )  # fmt: skip


class Switch(TopK):
    """The one best expert (Fedus et al. 2021)."""

    name = "switch"
    top_k: ClassVar[int | None] = 1


class GShard(Gate):
    """The two best, the second at random, the likelier the more it weighs (Lepikhin et al. 2020, algorithm 1)."""

    name = "gshard"
    top_k: ClassVar[int | None] = 2

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        return ex.route_drawn(g.tracer, g.name, g.logits, g.rows, capacity=g.capacity, balance_loss=g.balance_loss)


class KTop1(Gate):
    """The best of each of ``top_k`` equal groups, weighed by its softmax there (Yang et al. 2021, M6-T)."""

    name = "k_top_1"
    has_balance_loss = False

    def check(self, spec: GateOptions) -> None:
        """Raise SpecError also where groups would not be equal."""
        super().check(spec)
        if spec.num_experts % spec.top_k:
            rule = f"{spec.num_experts} experts cannot be divided into {spec.top_k} equal groups, one for each of top_k"
            raise SpecError(GATE_KEY, rule, "choose a num_experts that top_k divides")

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        return ex.route_in_groups(g.tracer, g.name, g.logits, top_k=g.spec.top_k, capacity=g.capacity)


class GroupLimited(Gate):
    """The best of those ``top_groups`` groups, of ``num_groups``, whose best scores add up to most.

    DeepSeek-AI 2024, V3, section 2.1.2, where a group is a node's experts. Where a routing is stated, a token chooses
    as many experts in each of its groups.
    """

    name = "group_limited"
    may_be_forced = True
    options = frozenset({"num_groups", "top_groups"})

    def check(self, spec: GateOptions) -> None:
        """Raise SpecError also where groups are not equal, or too few for a token's choices.

        And where a stated routing does not part a token's choices evenly among its groups.
        """
        super().check(spec)
        check_groups(spec)
        if spec.routing != "learned" and spec.top_k % spec.top_groups:
            rule = f"a stated routing takes equally many of {spec.top_k} experts from each of {spec.top_groups} groups"
            raise SpecError("model.experts.top_groups", rule, "write a divisor of top_k, or routing: learned")

    def limit(self, spec: GateOptions) -> GroupLimit:
        """Return in which groups of experts a token's forced choices lie: as many in each."""
        return GroupLimit(spec.num_groups, spec.top_groups, spec.top_k // spec.top_groups)

    def limited(self, spec: GateOptions, routing: Routing, num_tokens: int) -> Routing:
        """Return the nearest routing that obeys the limit."""
        return within_groups(routing, self.limit(spec), num_tokens)

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        limit = (g.spec.num_groups, g.spec.top_groups)
        return ex.route_limited(
            g.tracer, g.name, g.logits, top_k=g.spec.top_k, capacity=g.capacity, limit=limit, forced=g.forced,
            balance_loss=g.balance_loss,
        )  # fmt: skip


def check_groups(spec: GateOptions) -> None:
    """Raise SpecError where groups of experts are not equal, or have too few experts for a token's choices."""
    if spec.num_experts % spec.num_groups:
        rule = f"{spec.num_experts} experts cannot be divided into {spec.num_groups} equal groups"
        raise SpecError("model.experts.num_groups", rule, f"write a divisor of {spec.num_experts}")
    in_groups = spec.num_experts // spec.num_groups * min(spec.top_groups, spec.num_groups)
    if spec.top_groups > spec.num_groups or in_groups < spec.top_k:
        rule = f"{spec.top_groups} of {spec.num_groups} groups have {in_groups} experts"
        rule += f", and a token goes to {spec.top_k}"
        least = -(-spec.top_k * spec.num_groups // spec.num_experts)
        raise SpecError("model.experts.top_groups", rule, f"write a number of {least} to {spec.num_groups}")


class Biased(Gate):
    """The best sums of sigmoid and a bias per expert, which moves after every step towards equal loads.

    DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2; with ``num_groups``, only of the best groups, as those of a node.
    """

    name = "bias"
    has_balance_loss = False
    options = frozenset({"num_groups", "top_groups", "bias_update_rate"})

    def check(self, spec: GateOptions) -> None:
        """Raise SpecError also where groups are not equal, or too few for a token's choices."""
        super().check(spec)
        check_groups(spec)

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        state = router_bias(g.tracer.program, g.name.removesuffix(".route"), g.spec.num_experts, g.logits.dtype)
        limit = (g.spec.num_groups, g.spec.top_groups)
        return route_biased(g.tracer, g.name, g.logits, state, top_k=g.spec.top_k, capacity=g.capacity, limit=limit)
