"""Layers of experts: sizes, slots, and the costs that no strategy changes."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final, Literal

from sim.moe.balancing.placement_policy import MovingExperts
from sim.moe.balancing.replicas import Replicas
from sim.moe.dense_to_sparse import DenseToSparse
from sim.moe.errors import RoutingError
from sim.moe.routing import Routing, RoutingShape, RoutingSource
from sim.moe.sources import Even
from sim.plan.functions.experts import filled_slots
from sim.training.errors import SpecError
from sim.training.spec.models.gates import GATE_TRAITS, ExpertGate, GateTraits

RoutingWord = Literal["learned", "balanced"]
Dispatch = Literal["slots", "exact"]
Permutation = Literal["indexed", "einsum"]
CapacityRule = Literal["even_share", "deepspeed", "tutel", "hetumoe"]
_ROUTING_KEY: Final = "model.experts.routing"
_GATE_KEY: Final = "model.experts.gate"
_LEAST_CAPACITY: Final = 8
"""DeepSpeed's min_capacity (deepspeed/moe/sharded_moe.py, TopKGate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """Experts in the place of the MLP of a layer.

    A router scores all experts; a token goes to the ``top_k`` best, whose outputs weigh the softmax of their scores (of
    one expert alone: its share of the softmax over all). ``ffn_hidden_size``: of one; ``shared_ffn_hidden_size``: of
    those that every token goes to, 0: there are none. ``first_dense_layers`` have an MLP.
    """

    num_experts: int
    top_k: int
    ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    first_dense_layers: int = 0
    capacity_factor: float = 1.0
    """Slots that an expert has for the tokens of a rank, over its even share; choices that find none are dropped."""
    routing: RoutingWord | RoutingSource = "learned"
    """``balanced``: experts are dealt out in turn, as benchmarks force them to be. A source: whose choices are forced
    to be as many as it says; which token chooses what then follows from these numbers.
    """

    gate: ExpertGate = "top_k"
    """The choice of a token's experts. ``top_k``: the best of all. ``switch``: the one best (Fedus et al. 2021).
    ``gshard``: the two best, the second at random, the likelier the more it weighs (Lepikhin et al. 2020, algorithm 1).
    ``k_top_1``: the best of each of ``top_k`` equal groups, weighed by its softmax there (Yang et al. 2021, M6-T).
    ``group_limited``: the best of those ``top_groups`` groups, of ``num_groups``, whose best scores add up to most
    (DeepSeek-AI 2024, V3, section 2.1.2, where a group is a node's experts). ``expert_choice``: every expert takes as
    many tokens as it has slots, those that score it highest (Zhou et al. 2022). ``hash``: a fixed random expert of each
    word, without a router (Roller et al. 2021). ``base``: a rank's tokens are assigned to slots so that the scores add
    up to most; every token has a slot (Lewis et al. 2021). ``dense_to_sparse``: many at first, one in the end.
    """

    dense_to_sparse: DenseToSparse | None = None
    """Of the gate of this name, whose default is that of its class: how many experts are active at which step."""

    num_groups: int = 1
    top_groups: int = 1
    capacity_rule: CapacityRule = "even_share"
    """The rule by which slots are counted, see ``capacity``."""

    dispatch: Dispatch = "slots"
    """``slots``: every expert has as many rows as slots; ``exact``: as many as there are choices, none dropped."""

    replicas: Replicas | None = None
    """Where experts lie, if not in equal parts on the ranks that share them out; with ``dispatch: exact``."""

    moving: MovingExperts | None = None
    """A policy that places experts anew from step to step; with ``dispatch: exact``."""

    permutation: Permutation = "indexed"
    """Tokens' way into slots and back. ``indexed``: rows are looked up. ``einsum``: products with one-hot masks."""

    shared_gate: bool = False
    """The output of the shared experts is weighed per token by the sigmoid of a score (Qwen 2 MoE)."""
    balance_loss: float = 0.0
    """Coefficient of the loss that keeps experts equally busy, per layer, of the choices of every rank's tokens."""

    def __post_init__(self) -> None:
        if self.top_k > self.num_experts:
            raise SpecError(
                "model.experts.top_k",
                f"a token goes to {self.top_k} of {self.num_experts} experts",
                f"write a number of 1 to {self.num_experts}",
            )
        if self.shared_gate and not self.shared_ffn_hidden_size:
            rule, remedy = "there are no shared experts to weigh", "write shared_ffn_hidden_size, or leave it out"
            raise SpecError("model.experts.shared_gate", rule, remedy)
        self._check_gate()
        if self.replicas is not None and self.dispatch != "exact":
            rule, remedy = "slots are shared out in equal parts", "write dispatch: exact, or leave it out"
            raise SpecError("model.experts.replicas", rule, remedy)
        if self.moving is not None and self.dispatch != "exact":
            rule, remedy = "slots are shared out in equal parts", "write dispatch: exact, or leave it out"
            raise SpecError("model.experts.placement", rule, remedy)
        if self.permutation == "einsum" and self.dispatch == "exact":
            rule, remedy = "masks are of slots, and exact dispatch has none", "write permutation: indexed"
            raise SpecError("model.experts.permutation", rule, remedy)
        if self.dispatch == "exact" and self.routing == "learned":
            remedy = "write dispatch: slots"
            if self.traits.may_be_forced:
                remedy = "write routing: balanced, {skew: ...}, {shares: ...} or {trace: FILE}, or dispatch: slots"
            rule = "exact sizes follow the choices of tokens, and only a run knows what a learned router chooses"
            raise SpecError("model.experts.dispatch", rule, remedy)

    def _check_gate(self) -> None:
        """Raise SpecError where a gate does not go with the rest."""
        traits = self.traits
        if not traits.may_be_forced and self.routing != "learned":
            rule = f"{self.gate} makes its own choices, and the routing is forced"
            raise SpecError(_GATE_KEY, rule, "write gate: top_k, or routing: learned")
        if traits.top_k not in {None, self.top_k}:
            rule = f"{self.gate} chooses {traits.top_k} of the experts, and top_k is {self.top_k}"
            raise SpecError("model.experts.top_k", rule, f"write {traits.top_k}, or another gate")
        if self.balance_loss and not traits.has_balance_loss:
            rule, remedy = f"{self.gate} is built without a balance loss", "leave it out, or write gate: top_k"
            raise SpecError("model.experts.balance_loss", rule, remedy)
        if self.dense_to_sparse is not None and self.gate != "dense_to_sparse":
            rule, remedy = f"gate {self.gate} has no temperature", "leave it out, or write gate: dense_to_sparse"
            raise SpecError("model.experts.dense_to_sparse", rule, remedy)
        if self.gate == "dense_to_sparse" and self.capacity_rule != "even_share":
            rule = "a rule of a system counts top_k choices, and this gate makes others"
            raise SpecError("model.experts.capacity_rule", rule, "leave it out")
        if self.gate == "base" and self.capacity_factor < 1.0:
            rule = f"base gives every token a slot, and experts have {self.capacity_factor:g} times as many as tokens"
            raise SpecError("model.experts.capacity_factor", rule, "write 1 or more")
        if self.gate == "k_top_1" and self.num_experts % self.top_k:
            rule = f"{self.num_experts} experts cannot be divided into {self.top_k} equal groups, one for each of top_k"
            raise SpecError(_GATE_KEY, rule, "choose a num_experts that top_k divides")
        if self.gate != "group_limited":
            if (self.num_groups, self.top_groups) != (1, 1):
                rule, remedy = f"gate {self.gate} has no such groups", "leave it out, or write gate: group_limited"
                raise SpecError("model.experts.num_groups", rule, remedy)
        else:
            self._check_groups()

    def _check_groups(self) -> None:
        """Raise SpecError where the groups of ``group_limited`` are not equal, or too few for a token's choices."""
        if self.num_experts % self.num_groups:
            rule = f"{self.num_experts} experts cannot be divided into {self.num_groups} equal groups"
            raise SpecError("model.experts.num_groups", rule, f"write a divisor of {self.num_experts}")
        in_groups = self.num_experts // self.num_groups * min(self.top_groups, self.num_groups)
        if self.top_groups > self.num_groups or in_groups < self.top_k:
            rule = f"{self.top_groups} of {self.num_groups} groups have {in_groups} experts"
            rule += f", and a token goes to {self.top_k}"
            least = -(-self.top_k * self.num_groups // self.num_experts)
            raise SpecError("model.experts.top_groups", rule, f"write a number of {least} to {self.num_groups}")

    def later(self, steps: int) -> "ExpertsSpec":
        """Return the experts of so many steps later: a drawn or recorded routing goes on.

        Raises SpecError past the end of a recording.
        """
        if isinstance(self.routing, str):
            return self
        try:
            return replace(self, routing=self.routing.later(steps))
        except RoutingError as error:
            raise SpecError(_ROUTING_KEY, error.rule, error.remedy) from error

    @property
    def traits(self) -> GateTraits:
        """Return what the gate needs and what it goes with."""
        return GATE_TRAITS[self.gate]

    @property
    def cooling(self) -> DenseToSparse | None:
        """Return the schedule of gate ``dense_to_sparse``; None of another."""
        return self.dense_to_sparse or DenseToSparse() if self.gate == "dense_to_sparse" else None

    def choices(self, num_tokens: int) -> int:
        """Return how many choices some tokens make, of gate ``dense_to_sparse`` on the mean."""
        active = self.top_k if self.cooling is None else self.cooling.active_experts(self.num_experts)
        return round(num_tokens * active)

    @property
    def is_forced(self) -> bool:
        """Return whether a stated routing is forced on the step, be it even or not."""
        return not isinstance(self.routing, str)

    def forced(self, shape: RoutingShape) -> Routing | None:
        """Return the routing that is forced on a step; None where tokens choose, or experts are dealt out in turn.

        Raises SpecError where the routing cannot be of such a shape.
        """
        if self.routing == "learned" or (self.routing == "balanced" and self.dispatch == "slots"):
            return None
        source = Even() if isinstance(self.routing, str) else self.routing
        try:
            return _routing(source, shape)
        except RoutingError as error:
            raise SpecError(_ROUTING_KEY, error.rule, error.remedy) from error

    def capacity(self, num_tokens: int) -> int:
        """Return the slots of each expert for a rank's tokens, no more than tokens.

        With T tokens, k choices, E experts and a factor c. ``even_share``: ceil(c T k / E). ``deepspeed``: the same,
        and 8 at least (deepspeed/moe/sharded_moe.py). ``tutel``: k int(c ceil(T/E)) (tutel/impls/fast_dispatch.py).
        ``hetumoe``: k ceil(c T / E) (hetu/v1/python/hetu/layers/TopGate.py). Of gate ``dense_to_sparse``: as
        ``even_share``, k being the active experts on the mean.
        """
        factor, k = Fraction(repr(self.capacity_factor)), self.top_k
        if self.cooling is not None:
            return min(num_tokens, ceil(factor * self.choices(num_tokens) / self.num_experts))
        share = Fraction(num_tokens, self.num_experts)
        slots = {
            "even_share": ceil(factor * share * k), "deepspeed": max(ceil(factor * share * k), _LEAST_CAPACITY),
            "tutel": k * max(1, int(factor * ceil(share))), "hetumoe": k * ceil(factor * share),
        }  # fmt: skip
        return min(num_tokens, slots[self.capacity_rule])

    def reached(self, num_tokens: int, forced: Routing | None = None) -> float:
        """Return how many experts a token reaches on the mean, of a rank's tokens; choices are forced or spread evenly.

        That is ``top_k``, less the choices that find no slot; where experts choose, all slots over all tokens.
        """
        if self.dispatch == "exact":
            return float(self.top_k)
        if self.gate == "expert_choice":
            return self.num_experts * self.capacity(num_tokens) / num_tokens
        choices = self.choices(num_tokens)
        if forced is not None:
            return self.top_k * forced.kept_fraction(self.capacity(num_tokens))
        return filled_slots(choices, self.num_experts, self.capacity(num_tokens)) / num_tokens

    def num_parameters(self, hidden_size: int, matrices: int) -> int:
        """Return the parameters of router and experts; an expert has 2 matrices, or 3 where it is gated."""
        widths = self.num_experts * self.ffn_hidden_size + self.shared_ffn_hidden_size
        return hidden_size * (self._num_scores + matrices * widths)

    def products(self, hidden_size: int, matrices: int, reached: float | None = None) -> float:
        """Return the multiplications with weights per token: router, shared experts, and those that it is routed to.

        ``reached``: how many of these it reaches on the mean; None: all that it chooses.
        """
        widths = (self.top_k if reached is None else reached) * self.ffn_hidden_size + self.shared_ffn_hidden_size
        return hidden_size * (self._num_scores + matrices * widths)

    @property
    def _num_scores(self) -> int:
        """Return how many scores a token gets: of the experts it chooses by them, and of the shared ones if weighed."""
        return (self.num_experts if self.traits.has_scores else 0) + (1 if self.shared_gate else 0)


@lru_cache(maxsize=16)
def _routing(source: RoutingSource, shape: RoutingShape) -> Routing:
    """Return the routing of a source; drawing it takes long for many layers, ranks and experts."""
    return source.routing(shape)
