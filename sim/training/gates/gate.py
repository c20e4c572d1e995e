"""What a gate is: its rules, the slots that its choices need, and how a plan makes them.

A gate knows neither prices nor kernels: its op names a kernel, whose cost is in ``costmodels/kernels`` and whose values
are in ``backends/torch``. ``backends/torch/reference/gates.py`` defines every gate once more for the check.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Protocol

from msgspec import Struct

from sim.moe.choices import GroupLimit
from sim.moe.dense_to_sparse import DenseToSparse
from sim.moe.routing import Routing, RoutingSource
from sim.plan.functions import experts as ex
from sim.plan.functions.rows import Rows
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.training.errors import SpecError

CapacityRule = Literal["even_share", "deepspeed", "tutel", "hetumoe"]
RoutingWord = Literal["learned", "balanced"]
GATE_KEY: Final = "model.experts.gate"
BIAS_UPDATE_RATE: Final = 0.001
"""DeepSeek-V3's (DeepSeek-AI 2024, section 4.2), and Megatron-LM's default."""
REMOTE_SHARE: Final = 0.14
"""FastMoE's (fmoe/gates/faster_gate.py)."""
_LEAST_CAPACITY: Final = 8
"""DeepSpeed's min_capacity (deepspeed/moe/sharded_moe.py, TopKGate)."""
_OPTIONS: Final[Mapping[str, tuple[Any, str, str]]] = MappingProxyType(
    {
        "dense_to_sparse": (None, "has no temperature", "dense_to_sparse"),
        "num_groups": (1, "has no such groups", "group_limited"),
        "top_groups": (1, "has no such groups", "group_limited"),
        "bias_update_rate": (BIAS_UPDATE_RATE, "has no biases", "bias"),
        "remote_share": (REMOTE_SHARE, "keeps no tokens near", "topology_aware"),
    }
)
"""Options of some gates: default, what another gate lacks, and a gate that has it."""


class GateOptions(Struct, frozen=True, kw_only=True):
    """The keys of ``model.experts`` that gates read."""

    num_experts: int
    top_k: int
    capacity_factor: float = 1.0
    """Slots that an expert has for the tokens of a rank, over its even share; choices that find none are dropped."""
    capacity_rule: CapacityRule = "even_share"
    """The rule by which slots are counted, see ``Gate.capacity``."""
    routing: RoutingWord | RoutingSource = "learned"
    """``balanced``: experts are dealt out in turn, as benchmarks force them to be. A source: whose choices are forced
    to be as many as it says; which token chooses what then follows from these numbers.
    """

    dense_to_sparse: DenseToSparse | None = None
    """Of the gate of this name, whose default is that of its class: how many experts are active at which step."""
    num_groups: int = 1
    top_groups: int = 1
    bias_update_rate: float = BIAS_UPDATE_RATE
    """Of gate ``bias``: what a step adds to an expert's bias, or takes from it."""
    remote_share: float = REMOTE_SHARE
    """Of gate ``topology_aware``: the part of a rank's tokens that may choose an expert outside the rank's group."""
    balance_loss: float = 0.0
    """Coefficient of the loss that keeps experts equally busy, per layer, of the choices of every rank's tokens."""


class Choosing(Protocol):
    """The inputs of a gate's op: the tokens of a rank's micro-batch in one layer, and their scores."""

    @property
    def tracer(self) -> TaskTracer:
        """Return the tracer of the task that the op is part of."""

    @property
    def name(self) -> str:
        """Return the name of the op."""

    @property
    def spec(self) -> GateOptions:
        """Return the options of the layer's experts."""

    @property
    def x(self) -> Tensor:
        """Return the tokens [s, b, h]."""

    @property
    def logits(self) -> Tensor:
        """Return the router's scores [s, b, E]."""

    @property
    def capacity(self) -> int:
        """Return the slots of each expert for these tokens."""

    @property
    def balance_loss(self) -> float:
        """Return the coefficient of the balance loss, on the scale of the micro-batch's loss."""

    @property
    def rows(self) -> Rows:
        """Return the positions of the tokens in their sequences."""

    @property
    def expert_axis(self) -> str:
        """Return the axis whose ranks share out the experts."""

    @property
    def forced(self) -> tuple[int, ...]:
        """Return how often these tokens choose each expert; empty where no routing is forced."""

    def words(self) -> Tensor:
        """Return the ids of the tokens."""


class Gate(ABC):
    """A rule by which tokens and experts come together.

        gate = gate_of("group_limited")
        gate.check(spec)
        routes = gate.routes(gating)

    ``name``: as scenarios write it. ``top_k``: the only number of choices that it is defined for; None: any.
    ``has_scores``: a router scores experts. ``may_be_forced``: a stated routing may take the place of its choices.
    ``has_balance_loss``: a loss may keep its experts busy. ``tokens_choose``: each token chooses ``top_k`` experts;
    otherwise any number of experts has a token. ``options``: keys of ``_OPTIONS`` that it has.
    """

    name: ClassVar[str]
    top_k: ClassVar[int | None] = None
    has_scores: ClassVar[bool] = True
    may_be_forced: ClassVar[bool] = False
    has_balance_loss: ClassVar[bool] = True
    tokens_choose: ClassVar[bool] = True
    options: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def routes(self, g: Choosing) -> "ex.Routes":
        """Emit the gate's op; return the slots and weights of every token."""

    def check(self, spec: GateOptions) -> None:
        """Raise SpecError where the gate does not go with the options of ``model.experts``."""
        if self.top_k not in {None, spec.top_k}:
            rule = f"{self.name} chooses {self.top_k} of the experts, and top_k is {spec.top_k}"
            raise SpecError("model.experts.top_k", rule, f"write {self.top_k}, or another gate")
        if spec.balance_loss and not self.has_balance_loss:
            rule, remedy = f"{self.name} is built without a balance loss", "leave it out, or write gate: top_k"
            raise SpecError("model.experts.balance_loss", rule, remedy)
        for key, (default, lacks, other) in _OPTIONS.items():
            if getattr(spec, key) != default and key not in self.options:
                remedy = f"leave it out, or write gate: {other}"
                raise SpecError(f"model.experts.{key}", f"gate {self.name} {lacks}", remedy)

    def check_ranks(self, _spec: GateOptions, _expert_degree: int) -> None:  # noqa: B027
        """Raise SpecError where the gate does not go with so many ranks that share out experts; most go with any."""

    def limited(self, _spec: GateOptions, routing: Routing, _num_tokens: int) -> Routing:
        """Return a stated routing of sources of so many tokens as the gate lets it be."""
        return routing

    def limit(self, spec: GateOptions) -> GroupLimit:
        """Return in which groups of experts a token's forced choices lie: most gates limit nothing."""
        return GroupLimit(spec.num_experts, spec.top_k, 1)

    def choices(self, spec: GateOptions, num_tokens: int) -> int:
        """Return how many choices some tokens make."""
        return num_tokens * spec.top_k

    def capacity(self, spec: GateOptions, num_tokens: int) -> int:
        """Return the slots of each expert for a rank's tokens, no more than tokens.

        With T tokens, k choices, E experts and a factor c. ``even_share``: ceil(c T k / E). ``deepspeed``: the same,
        and 8 at least (deepspeed/moe/sharded_moe.py). ``tutel``: k int(c ceil(T/E)) (tutel/impls/fast_dispatch.py).
        ``hetumoe``: k ceil(c T / E) (hetu/v1/python/hetu/layers/TopGate.py).
        """
        factor, k = Fraction(repr(spec.capacity_factor)), spec.top_k
        share = Fraction(num_tokens, spec.num_experts)
        slots = {
            "even_share": ceil(factor * share * k), "deepspeed": max(ceil(factor * share * k), _LEAST_CAPACITY),
            "tutel": k * max(1, int(factor * ceil(share))), "hetumoe": k * ceil(factor * share),
        }  # fmt: skip
        return min(num_tokens, slots[spec.capacity_rule])

    def reached(self, spec: GateOptions, num_tokens: int, forced: Routing | None) -> float:
        """Return how many experts a token reaches on the mean: choices that find a slot, forced or spread evenly."""
        capacity = self.capacity(spec, num_tokens)
        if forced is not None:
            return spec.top_k * forced.kept_fraction(capacity)
        return ex.filled_slots(self.choices(spec, num_tokens), spec.num_experts, capacity) / num_tokens
