"""Gates by other rules than best scores: experts choose, tokens are assigned, words have experts, a softmax cools."""

from fractions import Fraction
from math import ceil
from typing import ClassVar

from sim.moe.dense_to_sparse import THRESHOLD, DenseToSparse
from sim.moe.routing import Routing
from sim.plan.functions import experts as ex
from sim.training.errors import SpecError
from sim.training.gates.gate import Choosing, Gate, GateOptions


class ExpertChoice(Gate):
    """Every expert takes as many tokens as it has slots, those that score it highest (Zhou et al. 2022)."""

    name = "expert_choice"
    has_balance_loss = False
    tokens_choose = False

    def reached(self, spec: GateOptions, num_tokens: int, _: Routing | None) -> float:
        """Return how many experts a token reaches on the mean: all slots are filled."""
        return spec.num_experts * self.capacity(spec, num_tokens) / num_tokens

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        return ex.route_by_experts(g.tracer, g.name, g.logits, capacity=g.capacity)


class Base(Gate):
    """A rank's tokens are assigned to slots so that the scores add up to most (Lewis et al. 2021)."""

    name = "base"
    top_k: ClassVar[int | None] = 1
    has_balance_loss = False

    def check(self, spec: GateOptions) -> None:
        """Raise SpecError also where there are fewer slots than tokens."""
        super().check(spec)
        if spec.capacity_factor < 1.0:
            rule = f"base gives every token a slot, and experts have {spec.capacity_factor:g} times as many as tokens"
            raise SpecError("model.experts.capacity_factor", rule, "write 1 or more")

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        return ex.route_assigned(g.tracer, g.name, g.logits, capacity=g.capacity)


class Hash(Gate):
    """A fixed random expert of each word, without a router (Roller et al. 2021)."""

    name = "hash"
    top_k: ClassVar[int | None] = 1
    has_scores = False
    has_balance_loss = False

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        dtype = "float64" if g.x.dtype == "float64" else "float32"
        return ex.route_words(
            g.tracer, g.name, g.words(), dtype, num_experts=g.spec.num_experts, capacity=g.capacity
        )  # fmt: skip


class Cooled(Gate):
    """All experts whose weight in a cooling Gumbel softmax is not tiny: many at first, one in the end.

    Nie et al. 2021, the gate of EvoMoE. Slots are counted by the active experts on the mean.
    """

    name = "dense_to_sparse"
    top_k: ClassVar[int | None] = 1
    has_balance_loss = False
    tokens_choose = False
    options = frozenset({"dense_to_sparse"})

    def check(self, spec: GateOptions) -> None:
        """Raise SpecError also for slots that are counted by the rule of a system."""
        super().check(spec)
        if spec.capacity_rule != "even_share":
            rule = "a rule of a system counts top_k choices, and this gate makes others"
            raise SpecError("model.experts.capacity_rule", rule, "leave it out")

    def choices(self, spec: GateOptions, num_tokens: int) -> int:
        """Return how many choices some tokens make on the mean."""
        return round(num_tokens * schedule_of(spec).active_experts(spec.num_experts))

    def capacity(self, spec: GateOptions, num_tokens: int) -> int:
        """Return the slots of each expert, ceil(c n / E) of n choices."""
        factor = Fraction(repr(spec.capacity_factor))
        return min(num_tokens, ceil(factor * self.choices(spec, num_tokens) / spec.num_experts))

    def routes(self, g: Choosing) -> ex.Routes:
        """Emit the gate's op; return the slots and weights of every token."""
        schedule, num_tokens = schedule_of(g.spec), g.x.shape[0] * g.x.shape[1]
        cooling = ex.Cooling(schedule.temperature, THRESHOLD, schedule.is_hard, self.choices(g.spec, num_tokens))
        return ex.route_cooling(g.tracer, g.name, g.logits, g.rows, cooling, g.capacity)


def schedule_of(spec: GateOptions) -> DenseToSparse:
    """Return how gate ``dense_to_sparse`` cools, by default as its class says."""
    return spec.dense_to_sparse or DenseToSparse()
