"""A gate with a bias per expert that keeps experts busy without a loss (DeepSeek-AI 2024, DeepSeek-V3, section 2.1.2).

Biases choose and do not weigh. Backward counts the choices, once per micro-batch whatever is recomputed; the end of the
step sums the counts over all ranks and moves each bias by a fixed amount, up where an expert had less than its share.
"""

from typing import Final

from msgspec import Struct

from sim.plan.functions import experts as ex
from sim.plan.functions.basic import only
from sim.plan.functions.tracing import Gradients, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope

_BIAS: Final = ".router.bias"
_COUNTS: Final = ".router.choices"


class RouterBias(Struct, frozen=True):
    """The bias [E] of a layer's router, and the counts [E] of a step's choices; both live on from step to step."""

    bias: Tensor
    counts: Tensor


def router_bias(tracer: ProgramTracer, layer: str, num_experts: int, dtype: str) -> RouterBias:
    """Return a layer's bias and counts; the first call of a program adds them, as zeros."""
    if layer + _BIAS not in tracer.buffers:
        shape, initial = (num_experts,), Initial("zeros", layer + _BIAS)
        tracer.add_buffer(
            Buffer(layer + _BIAS, shape, dtype, Kind.OPTIMIZER, Scope.PERSISTENT, initial=initial, global_shape=shape)
        )
        tracer.add_buffer(
            Buffer(layer + _COUNTS, shape, dtype, Kind.WORKSPACE, Scope.PERSISTENT, initial=Initial("zeros"))
        )
    return RouterBias(*(_tensor(tracer, layer + name) for name in (_BIAS, _COUNTS)))


def router_biases(tracer: ProgramTracer) -> list[RouterBias]:
    """Return the biases and counts of all layers of a program, in the order of the layers on every rank."""
    layers = [name.removesuffix(_BIAS) for name in tracer.buffers if name.endswith(_BIAS)]
    layers.sort(key=lambda layer: (len(layer), layer))  # layer 2 before layer 10
    return [RouterBias(_tensor(tracer, layer + _BIAS), _tensor(tracer, layer + _COUNTS)) for layer in layers]


def route_biased(
    t: TaskTracer, name: str, logits: Tensor, state: RouterBias, *, top_k: int, capacity: int, limit: tuple[int, int]
) -> "ex.Routes":
    """Return the experts with the best sum of sigmoid and bias, weighed by their sigmoids over the sum of these.

    ``limit``: number of groups of experts, and of those from which a token chooses; see ``experts.route_limited``.
    """
    weights, experts, slots = t.compute(
        name, "route_biased", (logits, state.bias), (logits.layout,) * 3, labels=("weights", "experts", "slots"),
        top_k=top_k, capacity=capacity, num_groups=limit[0], top_groups=limit[1],
    )  # fmt: skip

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        r.update(f"{name}.count", "count_choices", (experts,), (state.counts,))
        return r.compute(
            f"{name}.backward", "route_biased_backward", (only(gradients), logits, experts), (logits.layout,),
            kind=Kind.WORKSPACE,
        )  # fmt: skip

    t.record((logits,), (weights,), backward)
    return ex.Routes(weights, slots, logits.shape[-1], capacity)


def _tensor(tracer: ProgramTracer, name: str) -> Tensor:
    buffer = tracer.buffers[name]
    return Tensor(buffer.name, buffer.shape, buffer.dtype)
