"""Probes: small plans of one or two layers, priced once, from which the costs of layers and of model ends follow."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sim.engine.findings.alone import is_shared, tasks_alone_s
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.traffic import exchanges, signature
from sim.engine.running.memory import MemoryUse, memory_use
from sim.plan.facts.description import runs_on_host
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Collective, CollectiveKind, Compute, Copy, Send
from sim.plan.words.program import Phase, Plan, Program
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS

_BACKWARD: Final = (Phase.BACKWARD_INPUT, Phase.BACKWARD)
_TIMED: Final = (Phase.FORWARD, *_BACKWARD, Phase.OPTIMIZER, Phase.PREPARE)


class Costs(Struct, frozen=True):
    """What a part of a model costs a rank: seconds of a micro-batch, bytes of state, seconds and bytes of a step.

    ``expert_bytes``: of the parameters, those of experts that are split over ``ep``, so that fewer ranks hold them.
    ``input_s``, ``weight_s``: of a backward in two parts, for inputs and for weights. ``weight_kept_bytes``: what a
    micro-batch keeps between them. ``split_peak_bytes``: the most beside the state while one of them computes. They are
    0 where nobody asked for them. ``exchange_forward_s``, ``exchange_backward_s``: of these seconds, what exchanges of
    tokens with ranks of other experts take.
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
    input_s: float = 0.0
    weight_s: float = 0.0
    weight_kept_bytes: float = 0.0
    split_peak_bytes: float = 0.0
    exchange_forward_s: float = 0.0
    exchange_backward_s: float = 0.0

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


def probe(
    one: Plan, two: Plan, staged: Plan | None, pricing: ClusterPricing, split: tuple[Plan, Plan] | None = None
) -> Probe:
    """Return the costs of parts from plans of one micro-batch: of k and k + 1 layers, and of 2 k on two stages.

    ``staged``: None where two stages do not fill the cluster. ``split``: the first two with backwards in two parts.
    Assumes that layers are alike.
    """
    busy_s: dict[Hashable, float] = {}
    shorter, longer = _costs(one, pricing, busy_s)[0], _costs(two, pricing, busy_s)[0]
    if split is not None:
        shorter, longer = (_with_parts(*pair, pricing, busy_s) for pair in zip((shorter, longer), split, strict=True))
    layer = longer.minus(shorter)
    only = shorter.minus(layer)
    if staged is None:
        nothing = Costs(**dict.fromkeys(Costs.__struct_fields__, 0.0))
        return Probe(layer, nothing, nothing, only, 0, 0)
    begin, end = _costs(staged, pricing, {})
    first, last = begin.minus(layer), end.minus(layer)
    if split is not None:
        first, last = _ends_in_parts(first, last, only)
    sent, tied = _sent_bytes(staged.programs[0]), _tied_bytes(staged.programs[0])
    return Probe(layer, first, last, only, sent, tied)


def _with_parts(whole: Costs, split: Plan, pricing: ClusterPricing, busy_s: dict[Hashable, float]) -> Costs:
    """Return the costs of an only stage with those of the two parts of its backward."""
    program = split.programs[0]
    note_busy(split, pricing, busy_s)
    seconds = tasks_alone_s(split, pricing, lambda task: task.phase in _BACKWARD, busy_s)
    names = [call.task for call in program.calls]
    inputs, weights = "backward_input.0", "backward_weight.0"
    used = memory_use(program)
    at = [names.index(name) for name in (inputs, weights)]
    state_bytes = whole.parameter_bytes + whole.gradient_bytes + whole.optimizer_bytes
    return replace(
        whole,
        input_s=seconds[inputs],
        weight_s=seconds[weights],
        weight_kept_bytes=float(used.before_bytes[at[1]]) - state_bytes,
        split_peak_bytes=float(used.peak_bytes_of[at].max()) - state_bytes,
    )


def _ends_in_parts(first: Costs, last: Costs, only: Costs) -> tuple[Costs, Costs]:
    """Return the ends of two stages with those parts of an only stage's backward that are theirs.

    Nothing comes before the embedding, so its backward is all for weights.
    """
    begin = replace(first, weight_s=first.backward_s, split_peak_bytes=first.peak_bytes)
    end = replace(
        last,
        input_s=only.input_s,
        weight_s=max(0.0, only.weight_s - first.backward_s),
        weight_kept_bytes=only.weight_kept_bytes,
        split_peak_bytes=only.split_peak_bytes,
    )
    return begin, end


def _sent_bytes(program: Program) -> int:
    """Return the bytes of a micro-batch's messages to the next stage."""
    sends = [op for task in program.tasks.values() for op in task.ops if isinstance(op, Send)]
    return sum(program.buffers[name].num_bytes for op in sends for name in op.reads)


def _tied_bytes(program: Program) -> int:
    """Return the bytes of the gradients that some stages of the pipeline sum among themselves."""
    ops = [op for task in program.tasks.values() for op in task.ops if isinstance(op, Collective) and op.members]
    return sum(program.buffers[name].num_bytes for op in ops for name in op.reads)


def _costs(plan: Plan, pricing: ClusterPricing, busy_s: dict[Hashable, float]) -> list[Costs]:
    """Return the costs of every program of a plan. ``busy_s``: as ``note_busy`` fills it."""
    note_busy(plan, pricing, busy_s)
    alone_s = tasks_alone_s(plan, pricing, lambda task: task.phase in _TIMED, busy_s)
    return [_of_program(program, alone_s, _exchanges_s(plan, program, pricing, busy_s)) for program in plan.programs]


def _exchanges_s(
    plan: Plan, program: Program, pricing: ClusterPricing, busy_s: Mapping[Hashable, float]
) -> dict[Phase, float]:
    """Return how long the exchanges of tokens with ranks of other experts take, by phase, of a call of every task."""
    rank, found = plan.ranks_of(program)[0], dict[Phase, float]()
    for task in program.tasks.values():
        for op in task.ops:
            if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL and op.axes == (EXPERT_AXIS,):
                price = pricing.price(plan, program, op, rank)
                shared_s = busy_s.get(signature(program, op), 0.0)
                seconds = price.latency_s + max(price.occupancy_s, shared_s)
                found[task.phase] = found.get(task.phase, 0.0) + seconds
    return found


def note_busy(plan: Plan, pricing: ClusterPricing, busy_s: dict[Hashable, float]) -> None:
    """Note for how long each op keeps its busiest link busy when all of its groups, or ranks, run it at once.

    A message has its links to itself. ``busy_s``: by ``signature``, for plans on one mesh; what it has is not worked
    out again.
    """
    tasks = [(program, task) for program in plan.programs for task in program.tasks.values() if task.phase in _TIMED]
    timed = {signature(program, op) for program, task in tasks for op in task.ops if is_shared(program, op)}
    for exchange in exchanges(plan) if timed else ():
        key = signature(exchange.program, exchange.op)
        if key in timed and key not in busy_s:
            use = pricing.use_of(exchange)
            busy_s[key] = float(np.bincount(use.links, weights=use.seconds).max(initial=0.0))


class HostWork(Struct, frozen=True):
    """For how long a micro-batch's gradients keep a rank's copies, its part of the host's cores, and a link busy.

    ``links_s``: of the link that the copies and the sums of all ranks keep busy the longest; ``link_copies_s``: of this
    time, what the copies take. ``updates_s``: the optimizer's, of the cores.
    """

    copies_s: float
    adds_s: float
    updates_s: float
    links_s: float
    link_copies_s: float


def host_work(plan: Plan, pricing: ClusterPricing) -> HostWork:
    """Return the work of the first rank's host for the gradients of a micro-batch, which it adds up, and of a step."""
    program, rank = plan.programs[0], plan.ranks_of(plan.programs[0])[0]
    uses = {signature(e.program, e.op): pricing.use_of(e) for e in exchanges(plan)}
    alone_s = dict.fromkeys(("copies", "adds", "updates"), 0.0)
    busy_s = {name: np.zeros(pricing.cluster.topology.num_links) for name in alone_s}
    for name, op in _host_ops(program):
        use, price = uses[signature(program, op)], pricing.price(plan, program, op, rank)
        on_links_s = np.bincount(use.links, weights=use.seconds, minlength=len(busy_s[name]))
        busy_s[name] += on_links_s
        alone_s[name] += max(price.occupancy_s, float(on_links_s.max()))
    links_s = busy_s["copies"] + busy_s["adds"]
    busiest = int(links_s.argmax())
    shared_s = float(links_s[busiest]), float(busy_s["copies"][busiest])
    return HostWork(alone_s["copies"], alone_s["adds"], alone_s["updates"], *shared_s)


def _host_ops(program: Program) -> Iterator[tuple[str, Copy | Compute]]:
    """Yield the copies of gradients to the host, its sums of them, and its updates, each under what it is."""
    works = {Phase.BACKWARD: "adds", Phase.OPTIMIZER: "updates"}
    for task in program.tasks.values():
        for op in task.ops:
            if isinstance(op, Copy) and task.phase is Phase.BACKWARD:
                yield "copies", op
            elif isinstance(op, Compute) and task.phase in works and runs_on_host(program, op):
                yield works[task.phase], op


def _of_program(program: Program, alone_s: Mapping[str, float], exchanges_s: Mapping[Phase, float]) -> Costs:
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
        exchange_forward_s=exchanges_s.get(Phase.FORWARD, 0.0),
        exchange_backward_s=exchanges_s.get(Phase.BACKWARD, 0.0),
    )


def _kept_bytes(program: Program, used: MemoryUse) -> int:
    """Return what lives between the forward and the backward of the only micro-batch, state included."""
    phases = [program.tasks[call.task].phase for call in program.calls]
    between = slice(phases.index(Phase.FORWARD) + 1, phases.index(Phase.BACKWARD) + 1)
    return int(used.before_bytes[between].min())
