"""The gate of a layer of experts: from scores to the slots and weights of every token's choices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

from sim.moe.dense_to_sparse import THRESHOLD
from sim.plan.functions import basic as f
from sim.plan.functions import experts as ex
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.training.layers.layer import LayerBuilder
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.gates import ExpertGate
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS


@dataclass(frozen=True)
class Gating:
    """Inputs of the gate of one layer.

    ``x``: the layer's tokens [s, b, h]. ``scores``: the router's scores of the tokens; None for a gate without scores.
    """

    builder: LayerBuilder
    tracer: TaskTracer
    layer: int
    spec: ExpertsSpec
    x: Tensor
    scores: Tensor | None

    def routes(self) -> ex.Routes:
        """Return the experts, slots and weights of every token: by the layer's gate, or as a stated routing forces."""
        return _GATES[self.spec.gate](self)

    @property
    def name(self) -> str:
        """Return the name of the gate's op in the plan."""
        return f"layer{self.layer}.route"

    @property
    def logits(self) -> Tensor:
        """Return the router's scores; only for gates that have some."""
        assert self.scores is not None
        return self.scores

    @cached_property
    def capacity(self) -> int:
        """Return the slots of each expert for these tokens."""
        return self.spec.capacity(self.x.shape[0] * self.x.shape[1])

    @property
    def balance_loss(self) -> float:
        """Return the coefficient of the balance loss, on the scale of the micro-batch's loss."""
        return self.spec.balance_loss * self.builder.loss_scale


def _best(g: Gating) -> ex.Routes:
    routing = g.builder.routing
    return ex.route(
        g.tracer, g.name, g.logits, top_k=g.spec.top_k, capacity=g.capacity, balanced=g.spec.routing == "balanced",
        forced=() if routing is None else routing.chosen(g.layer), balance_loss=g.balance_loss,
    )  # fmt: skip


def _gshard(g: Gating) -> ex.Routes:
    return ex.route_drawn(
        g.tracer, g.name, g.logits, g.builder.rows, capacity=g.capacity, balance_loss=g.balance_loss
    )  # fmt: skip


def _k_top_1(g: Gating) -> ex.Routes:
    return ex.route_in_groups(g.tracer, g.name, g.logits, top_k=g.spec.top_k, capacity=g.capacity)


def _group_limited(g: Gating) -> ex.Routes:
    limit = (g.spec.num_groups, g.spec.top_groups)
    return ex.route_limited(
        g.tracer, g.name, g.logits, top_k=g.spec.top_k, capacity=g.capacity, limit=limit, balance_loss=g.balance_loss
    )


def _expert_choice(g: Gating) -> ex.Routes:
    return ex.route_by_experts(g.tracer, g.name, g.logits, capacity=g.capacity)


def _dense_to_sparse(g: Gating) -> ex.Routes:
    schedule, num_tokens = g.spec.cooling, g.x.shape[0] * g.x.shape[1]
    assert schedule is not None
    cooling = ex.Cooling(schedule.temperature, THRESHOLD, schedule.is_hard, g.spec.choices(num_tokens))
    return ex.route_cooling(g.tracer, g.name, g.logits, g.builder.rows, cooling, g.capacity)


def _base(g: Gating) -> ex.Routes:
    return ex.route_assigned(g.tracer, g.name, g.logits, capacity=g.capacity)


def _hash(g: Gating) -> ex.Routes:
    b, dtype = g.builder, "float64" if g.x.dtype == "float64" else "float32"
    ids = f.tokens(
        g.tracer, f"{g.name}.words", shift=0, rows=b.rows, batch=b.microbatch_size, vocabulary=b.model.vocab_size,
        axes=(DATA_AXIS,),
    )  # fmt: skip
    return ex.route_words(g.tracer, g.name, ids, dtype, num_experts=g.spec.num_experts, capacity=g.capacity)


_GATES: Final[Mapping[ExpertGate, Callable[[Gating], ex.Routes]]] = MappingProxyType(
    {
        "top_k": _best,
        "switch": _best,
        "gshard": _gshard,
        "k_top_1": _k_top_1,
        "group_limited": _group_limited,
        "expert_choice": _expert_choice,
        "dense_to_sparse": _dense_to_sparse,
        "base": _base,
        "hash": _hash,
    }
)
