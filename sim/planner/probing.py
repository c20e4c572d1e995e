"""Probes: small plans of one or two layers, priced once, from which the costs of layers and of model ends follow."""

from collections.abc import Hashable
from typing import Final

import numpy as np
from msgspec import Struct

from sim.engine.findings.alone import is_shared, tasks_alone_s
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.traffic import exchanges, signature
from sim.engine.running.memory import MemoryUse, memory_use
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Collective, Send
from sim.plan.words.program import Phase, Plan, Program
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS

_TIMED: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.PREPARE)


class Costs(Struct, frozen=True):
    """What a part of a model costs a rank: seconds of a micro-batch, bytes of state, seconds and bytes of a step.

    ``expert_bytes``: of the parameters, those of experts that are split over ``ep``, so that fewer ranks hold them.
    ``update_s``: the optimizer, and what clears gradients, without sharding. ``kept_bytes``: what a micro-batch keeps
    from its forward for its backward. ``peak_bytes``: the most beside the state while the only micro-batch computes.
    """

    forward_s: float
    backward_s: float
    update_s: float
    parameter_bytes: float
    expert_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    kept_bytes: float
    peak_bytes: float

    def minus(self, other: "Costs") -> "Costs":
        """Return the difference; parts that add up to nothing measurable are 0."""
        return Costs(*(max(0.0, getattr(self, name) - getattr(other, name)) for name in self.__struct_fields__))


class Probe(Struct, frozen=True):
    """The costs of a layer, of what the first stage has beside layers, the last one, and the only one.

    ``hop_bytes``: of a message between stages. ``tied_bytes``: of gradients that the first and the last stage sum.
    Of a probe without two stages ``first`` and ``last`` cost nothing.
    """

    layer: Costs
    first: Costs
    last: Costs
    only: Costs
    hop_bytes: int
    tied_bytes: int


def probe(one: Plan, two: Plan, staged: Plan | None, pricing: ClusterPricing) -> Probe:
    """Return the costs of parts from plans of one micro-batch: of k and k + 1 layers, and of 2 k on two stages.

    ``staged``: None where two stages do not fill the cluster. Assumes that layers are alike.
    """
    shorter, longer = _costs(one, pricing)[0], _costs(two, pricing)[0]
    layer = longer.minus(shorter)
    only = shorter.minus(layer)
    if staged is None:
        nothing = Costs(**dict.fromkeys(Costs.__struct_fields__, 0.0))
        return Probe(layer, nothing, nothing, only, 0, 0)
    begin, end = _costs(staged, pricing)
    sent, tied = _sent_bytes(staged.programs[0]), _tied_bytes(staged.programs[0])
    return Probe(layer, begin.minus(layer), end.minus(layer), only, sent, tied)


def _sent_bytes(program: Program) -> int:
    """Return the bytes of a micro-batch's messages to the next stage."""
    sends = [op for task in program.tasks.values() for op in task.ops if isinstance(op, Send)]
    return sum(program.buffers[name].num_bytes for op in sends for name in op.reads)


def _tied_bytes(program: Program) -> int:
    """Return the bytes of the gradients that some stages of the pipeline sum among themselves."""
    ops = [op for task in program.tasks.values() for op in task.ops if isinstance(op, Collective) and op.members]
    return sum(program.buffers[name].num_bytes for op in ops for name in op.reads)


def _costs(plan: Plan, pricing: ClusterPricing) -> list[Costs]:
    """Return the costs of every program of a plan."""
    alone_s = tasks_alone_s(plan, pricing, lambda task: task.phase in _TIMED, _busy_s(plan, pricing))
    return [_of_program(program, alone_s) for program in plan.programs]


def _busy_s(plan: Plan, pricing: ClusterPricing) -> dict[Hashable, float]:
    """Return for how long each op keeps its busiest link busy when all of its groups, or ranks, run it at once.

    A message has its links to itself.
    """
    tasks = [(program, task) for program in plan.programs for task in program.tasks.values() if task.phase in _TIMED]
    timed = {signature(program, op) for program, task in tasks for op in task.ops if is_shared(program, op)}
    found = dict[Hashable, float]()
    for exchange in exchanges(plan) if timed else ():
        key = signature(exchange.program, exchange.op)
        if key in timed:
            use = pricing.use_of(exchange)
            found[key] = float(np.bincount(use.links, weights=use.seconds).max(initial=0.0))
    return found


def _of_program(program: Program, alone_s: dict[str, float]) -> Costs:
    seconds = dict.fromkeys(_TIMED, 0.0)
    for call in program.calls:
        if call.task in alone_s:
            seconds[program.tasks[call.task].phase] += alone_s[call.task]
    held = dict.fromkeys((Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER), 0)
    expert_bytes = 0
    for buffer in program.buffers.values():
        if buffer.scope is Scope.PERSISTENT and buffer.kind in held:
            held[buffer.kind] += buffer.num_bytes
        if buffer.kind is Kind.PARAMETER and buffer.layout.get(EXPERT_AXIS) is not None:
            expert_bytes += buffer.num_bytes
    used, state_bytes = memory_use(program), sum(held.values())
    return Costs(
        forward_s=seconds[Phase.FORWARD],
        backward_s=seconds[Phase.BACKWARD],
        update_s=seconds[Phase.OPTIMIZER] + seconds[Phase.PREPARE],
        parameter_bytes=held[Kind.PARAMETER],
        expert_bytes=expert_bytes,
        gradient_bytes=held[Kind.GRADIENT],
        optimizer_bytes=held[Kind.OPTIMIZER],
        kept_bytes=_kept_bytes(program, used) - state_bytes,
        peak_bytes=used.peak_bytes - state_bytes,
    )


def _kept_bytes(program: Program, used: MemoryUse) -> int:
    """Return what lives between the forward and the backward of the only micro-batch, state included."""
    phases = [program.tasks[call.task].phase for call in program.calls]
    between = slice(phases.index(Phase.FORWARD) + 1, phases.index(Phase.BACKWARD) + 1)
    return int(used.before_bytes[between].min())
