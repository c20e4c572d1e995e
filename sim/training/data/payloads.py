"""Gradients in the memory of gathered parameters: once backward is done with a parameter, its gradient replaces it.

Colossal-AI's Gemini copies the gradient of each parameter into the chunk that holds the parameter, and frees it; a
chunk of gradients alone is reduced (colossalai/zero/gemini/gemini_ddp.py, reuse_fp16_chunk). So besides chunks only the
gradients of parameters that are in use take memory.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sim.plan.words.op import Compute, Op, on_other_buffers
from sim.training.data.units import REGATHERED, Unit, first_name, with_reductions, zeros


def with_gradients_in_payloads(
    ops: Sequence[Op], units: Sequence[Unit], reductions: Mapping[str, Sequence[Op]]
) -> list[Op]:
    """Return a backward whose gradients move into the gathered parameters of their units, which are reduced then.

    Every gradient begins as zeros of its own before the first op that adds to it. Units without parameters that are
    gathered for this backward are reduced as they are.
    """
    payloads = payloads_of(ops, units)
    held = [unit for unit in units if all(name in payloads for name in unit.values)]
    others = [unit for unit in units if unit not in held]
    first = {name: place for place, op in reversed(list(enumerate(ops))) for name in op.writes}
    last = {name: place for place, op in enumerate(ops) for name in (*op.reads, *op.writes)}
    before, after = defaultdict[int, list[Op]](list), defaultdict[int, list[Op]](list)
    for unit in held:
        ends = []
        for parameter in unit.parameters:
            gradient, payload = parameter.gradient, payloads[parameter.value.name]
            begin = [zeros(f"zeros.{parameter.source}", [gradient])]
            move = Compute(f"into_chunk.{parameter.source}", "copy", (gradient.name, payload), (payload,))
            ends.append(max(last.get(gradient.name, 0), last.get(payload, 0)))
            if gradient.name in first:
                before[first[gradient.name]] += begin
                after[ends[-1]].append(move)
            else:
                after[ends[-1]] += [*begin, move]
        names = {p.gradient.name: payloads[p.value.name] for p in unit.parameters}
        after[max(ends)] += [on_other_buffers(op, names) for op in reductions[unit.name]]
    changed = [new for place, op in enumerate(ops) for new in (*before[place], op, *after[place])]
    return with_reductions(changed, others, reductions, {})


def payloads_of(ops: Sequence[Op], units: Sequence[Unit]) -> dict[str, str]:
    """Return, by parameter, the buffer that holds it in a pass, of the units that the pass uses.

    A pass that gathers a unit writes all its parameters; one that finds it gathered may use only some of them, and the
    others have their first names.
    """
    used = {parameter_of(name): name for op in ops for name in (*op.reads, *op.writes)}
    present = [unit for unit in units if not used.keys().isdisjoint(unit.values)]
    return {name: used.get(name, name) for unit in present for name in unit.values}


def parameter_of(buffer: str) -> str:
    """Return the parameter that a buffer of gathered parameters holds; of another buffer, a name of no parameter."""
    return first_name(buffer).removesuffix(REGATHERED)
