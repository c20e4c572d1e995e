"""Probes: small plans of one or two layers, priced once, from which the costs of layers and of model ends follow."""

from dataclasses import dataclass, fields
from typing import Final

from sim.engine.findings.alone import tasks_alone_s
from sim.engine.prices.activity import Pricing
from sim.engine.running.memory import memory_use
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.program import Phase, Plan, Program

_TIMED: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.PREPARE)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a part of a model costs a rank: seconds of a micro-batch, bytes of state, seconds and bytes of a step.

    ``update_s``: the optimizer, and what clears gradients, without sharding. ``activation_bytes``: at the peak of one
    micro-batch.
    """

    forward_s: float
    backward_s: float
    update_s: float
    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float

    def minus(self, other: "Costs") -> "Costs":
        """Return the difference; parts that add up to nothing measurable are 0."""
        return Costs(*(max(0.0, getattr(self, f.name) - getattr(other, f.name)) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Probe:
    """The costs of a layer, of what the first stage has beside layers, and of what the last one has; seconds of a hop.

    Of a probe without two stages all ends are ``first``.
    """

    layer: Costs
    first: Costs
    last: Costs
    hop_s: float


def probe(one: Plan, two: Plan, staged: Plan | None, pricing: Pricing) -> Probe:
    """Return the costs of parts from plans of one micro-batch: of k and k + 1 layers, and of 2 k on two stages.

    ``staged``: None where two stages do not fill the cluster. Assumes that layers are alike.
    """
    shorter, longer = _costs(one, pricing)[0], _costs(two, pricing)[0]
    layer = longer.minus(shorter)
    nothing = Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    if staged is None:
        return Probe(layer, shorter.minus(layer), nothing, 0.0)
    begin, end = _costs(staged, pricing)
    hops_s = tasks_alone_s(staged, pricing, lambda task: task.phase is Phase.SEND)
    return Probe(layer, begin.minus(layer), end.minus(layer), max(hops_s.values(), default=0.0))


def _costs(plan: Plan, pricing: Pricing) -> list[Costs]:
    """Return the costs of every program of a plan."""
    alone_s = tasks_alone_s(plan, pricing, lambda task: task.phase in _TIMED)
    return [_of_program(program, alone_s) for program in plan.programs]


def _of_program(program: Program, alone_s: dict[str, float]) -> Costs:
    seconds = dict.fromkeys(_TIMED, 0.0)
    for call in program.calls:
        if call.task in alone_s:
            seconds[program.tasks[call.task].phase] += alone_s[call.task]
    held = dict.fromkeys((Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER), 0)
    for buffer in program.buffers.values():
        if buffer.scope is Scope.PERSISTENT and buffer.kind in held:
            held[buffer.kind] += buffer.num_bytes
    return Costs(
        forward_s=seconds[Phase.FORWARD],
        backward_s=seconds[Phase.BACKWARD],
        update_s=seconds[Phase.OPTIMIZER] + seconds[Phase.PREPARE],
        parameter_bytes=held[Kind.PARAMETER],
        gradient_bytes=held[Kind.GRADIENT],
        optimizer_bytes=held[Kind.OPTIMIZER],
        activation_bytes=memory_use(program).peak_bytes - sum(held.values()),
    )
