"""The inputs of a gate in one layer: tokens, their scores, and what the layer's builder knows of them."""

from dataclasses import dataclass
from functools import cached_property

from sim.plan.functions import basic as f
from sim.plan.functions import exact_experts as exact
from sim.plan.functions import experts as ex
from sim.plan.functions.rows import Rows
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.training.layers.layer import LayerBuilder
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.parallelism.mesh_axes import DATA_AXIS, EXPERT_AXIS


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
        """Return the slots and weights of every token: by the layer's gate, or as a stated routing forces."""
        return self.spec.gating.routes(self)

    def words(self) -> Tensor:
        """Return the ids of the tokens."""
        b = self.builder
        return f.tokens(
            self.tracer, f"{self.name}.words", shift=0, rows=b.rows, batch=b.microbatch_size,
            vocabulary=b.model.vocab_size, axes=(DATA_AXIS,),
        )  # fmt: skip

    @property
    def rows(self) -> Rows:
        """Return the positions of the tokens in their sequences."""
        return self.builder.rows

    @property
    def expert_axis(self) -> str:
        """Return the axis whose ranks share out the experts."""
        return EXPERT_AXIS

    @property
    def forced(self) -> tuple[int, ...]:
        """Return how often these tokens choose each expert; empty where no routing is forced."""
        routing = self.builder.routing
        return () if routing is None else routing.chosen(self.layer)

    @property
    def forced_exactly(self) -> exact.Forced:
        """Return the choices of these tokens, with a row each; only where a routing is forced."""
        limit = self.spec.gating.limit(self.spec)
        groups = (limit.num_groups, limit.top_groups) if self.spec.limits_groups else ()
        return exact.Forced(self.spec.top_k, self.forced, groups)

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
