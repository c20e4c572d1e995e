"""Layers of experts: sizes, slots, and the costs that no strategy changes."""

from functools import lru_cache
from typing import Final, Literal

from msgspec.structs import replace

from sim.moe import sources
from sim.moe.balancing import replicas as balancing
from sim.moe.balancing.placement_policy import MovingExperts
from sim.moe.errors import RoutingError
from sim.moe.routing import Routing, RoutingShape, RoutingSource
from sim.training.errors import SpecError
from sim.training.gates.gate import GATE_KEY, Gate, GateOptions
from sim.training.gates.registry import ExpertGate, gate_of

Dispatch = Literal["slots", "exact"]
Permutation = Literal["indexed", "einsum"]
RankLoad = Literal["own", "busiest"]
DispatchPrecision = Literal["own", "fp8"]
_ROUTING_KEY: Final = "model.experts.routing"
_NO_SLOTS: Final = (
    "it counts slots, and dispatch: exact has a row for each choice instead",
    "leave it out, or write dispatch: slots",
)
"""Rule and remedy of keys of slots where there are none."""


class ExpertsSpec(GateOptions, frozen=True, kw_only=True):
    """Experts in the place of the MLP of a layer.

    A router scores all experts; a token goes to the ``top_k`` best, whose outputs weigh the softmax of their scores (of
    one expert alone: its share of the softmax over all). ``ffn_hidden_size``: of one; ``shared_ffn_hidden_size``: of
    those that every token goes to, 0: there are none. ``first_dense_layers`` have an MLP.
    """

    ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    first_dense_layers: int = 0
    gate: ExpertGate = "top_k"
    """The choice of a token's experts; see ``sim/training/gates``."""

    dispatch: Dispatch = "slots"
    """``slots``: every expert has as many rows as slots; ``exact``: as many as there are choices, none dropped."""

    dispatch_precision: DispatchPrecision = "own"
    """The type in which rows travel to experts. ``own``: that of activations; ``fp8``: eight bits, a scale per row."""

    rank_load: RankLoad = "own"
    """``own``: each rank has the rows of its experts; ``busiest``: all have those of the busiest, layer by layer."""

    replicas: "balancing.Replicas | None" = None
    """Where experts lie, if not in equal parts on the ranks that share them out; with ``dispatch: exact``."""

    moving: MovingExperts | None = None
    """A policy that places experts anew from step to step; with ``dispatch: exact``."""

    permutation: Permutation = "indexed"
    """Tokens' way into slots and back. ``indexed``: rows are looked up. ``einsum``: products with one-hot masks."""

    shared_gate: bool = False
    """The output of the shared experts is weighed per token by the sigmoid of a score (Qwen 2 MoE)."""

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
        self._check_rank_load()
        if self.dispatch_precision == "fp8" and self.dispatch != "exact":
            rule, remedy = "eight bits are built for rows of exact sizes", "write dispatch: exact, or leave it out"
            raise SpecError("model.experts.dispatch_precision", rule, remedy)
        if self.permutation == "einsum" and self.dispatch == "exact":
            rule, remedy = "masks are of slots, and exact dispatch has none", "write permutation: indexed"
            raise SpecError("model.experts.permutation", rule, remedy)
        if self.permutation == "einsum" and self.gate == "sam":
            rule, remedy = "masks are of experts' slots, and sam sends tokens to groups", "write permutation: indexed"
            raise SpecError("model.experts.permutation", rule, remedy)
        if self.dispatch == "exact" and self.capacity_factor != 1.0:
            raise SpecError("model.experts.capacity_factor", *_NO_SLOTS)
        if self.dispatch == "exact" and self.capacity_rule != "even_share":
            raise SpecError("model.experts.capacity_rule", *_NO_SLOTS)
        if self.dispatch == "exact" and self.routing == "learned":
            remedy = "write dispatch: slots"
            if self.gating.may_be_forced:
                remedy = "write routing: balanced, {skew: ...}, {shares: ...} or {trace: FILE}, or dispatch: slots"
            rule = "exact sizes follow the choices of tokens, and only a run knows what a learned router chooses"
            raise SpecError("model.experts.dispatch", rule, remedy)

    def _check_gate(self) -> None:
        """Raise SpecError where a gate does not go with the rest."""
        if not self.gating.may_be_forced and self.routing != "learned":
            rule = f"{self.gate} makes its own choices, and the routing is forced"
            raise SpecError(GATE_KEY, rule, "write gate: top_k, or routing: learned")
        self.gating.check(self)

    def _check_rank_load(self) -> None:
        """Raise SpecError where ranks cannot all stand for the busiest."""
        if self.rank_load == "own":
            return
        key = "model.experts.rank_load"
        if self.dispatch != "exact":
            raise SpecError(key, "slots are as many on every rank", "write dispatch: exact, or leave it out")
        if self.replicas is not None or self.moving is not None:
            rule = "where experts have replicas, ranks sum gradients with different ranks"
            raise SpecError(key, rule, "write rank_load: own, or leave placement out")

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
    def gating(self) -> Gate:
        """Return the gate: its rules, its slots, and its op in a plan."""
        return gate_of(self.gate)

    def choices(self, num_tokens: int) -> int:
        """Return how many choices some tokens make, on the mean where their number varies."""
        return self.gating.choices(self, num_tokens)

    @property
    def is_forced(self) -> bool:
        """Return whether a stated routing is forced on the step, be it even or not."""
        return not isinstance(self.routing, str)

    @property
    def limits_groups(self) -> bool:
        """Return whether a token's forced choices lie in some of several groups of experts."""
        return self.gating.limit(self).num_groups < self.num_experts

    def forced(self, shape: RoutingShape) -> Routing | None:
        """Return the routing that is forced on a step; None where tokens choose, or experts are dealt out in turn.

        Raises SpecError where the routing cannot be of such a shape.
        """
        in_turn = self.routing == "balanced" and self.dispatch == "slots" and not self.limits_groups
        if self.routing == "learned" or in_turn:
            return None
        source = sources.Even() if isinstance(self.routing, str) else self.routing
        try:
            routing = _routing(source, shape)
        except RoutingError as error:
            raise SpecError(_ROUTING_KEY, error.rule, error.remedy) from error
        return self.gating.limited(self, routing, shape.num_tokens)

    def capacity(self, num_tokens: int) -> int:
        """Return the slots of each expert for a rank's tokens, no more than tokens; see ``Gate.capacity``."""
        return self.gating.capacity(self, num_tokens)

    def reached(self, num_tokens: int, forced: Routing | None = None) -> float:
        """Return how many experts a token reaches on the mean, of a rank's tokens; choices are forced or spread evenly.

        That is ``top_k``, less the choices that find no slot; where experts choose, all slots over all tokens.
        """
        return float(self.top_k) if self.dispatch == "exact" else self.gating.reached(self, num_tokens, forced)

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
        return (self.num_experts if self.gating.has_scores else 0) + (1 if self.shared_gate else 0)


@lru_cache(maxsize=16)
def _routing(source: RoutingSource, shape: RoutingShape) -> Routing:
    """Return the routing of a source; drawing it takes long for many layers, ranks and experts."""
    return source.routing(shape)
