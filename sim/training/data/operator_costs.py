"""The cost of every choice of every operator, measured on a few uniform plans.

The plans are, for each number of slices, one with all operators replicated and one with all sharded. The cost of a
slice does not depend on the other slices: its time is the sum of the plan's ops on its parameters, gradients and
optimizer state, each taken alone (nothing overlaps, as in the paper's model); its memory is the sum of the plan's
buffers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from costmodels.memory import allocated_bytes
from sim.plan.words.buffer import Scope
from sim.plan.words.calls import Calls
from sim.plan.words.op import Op
from sim.plan.words.program import Program
from sim.training.data.operators import Choices, OperatorSlice, buffers_of, linear_layers, operator_slices
from sim.training.data.osdp import Option
from sim.training.data.units import first_name
from sim.training.spec.job import TrainingJob
from sim.training.spec.parallelism.sharding import Choice

OpSeconds = Callable[[Program, Op], float]
"""Duration of an op that runs alone, in seconds."""


class SliceCost(NamedTuple):
    """Cost of a slice per step: seconds, bytes held all the time, bytes gathered for a while."""

    time_s: float
    held_bytes: int
    gathered_bytes: int


class UniformPlan(Struct, frozen=True):
    """The program of a job all of whose operators make the same choice.

    Operators that cannot be split have one slice.
    """

    choices: Choices
    program: Program


def uniform_choices(job: TrainingJob, parameters: Sequence[str], num_slices: int, *, sharded: bool) -> Choices:
    """Return the choices that split every linear layer with a divisible input, and shard all operators or none."""
    layers = linear_layers(job)
    whole = {piece.operator for piece in _slices(job, parameters, {})}
    slices = {name: num_slices if layers.get(name, 1) % num_slices == 0 else 1 for name in whole}
    return {name: Choice(count, count if sharded else 0) for name, count in slices.items()}


def parameters_of(program: Program) -> list[str]:
    """Return the names of a program's parameters, in the order of first use."""
    return [name for name in program.buffers if f"{name}.gradient" in program.buffers]


def slice_costs(job: TrainingJob, plan: UniformPlan, seconds: OpSeconds) -> dict[str, list[SliceCost]]:
    """Return the costs of the slices of every operator, in order.

    An op on several slices, such as zeroing, costs nothing.
    """
    program = plan.program
    slices = _slices(job, parameters_of(program), plan.choices)
    owner = {name: piece.name for piece in slices for name in buffers_of(piece)}
    times: dict[str, float] = dict.fromkeys(owner.values(), 0.0)
    calls = Calls.of(program.calls).counts()
    for name, task in program.tasks.items():
        for op in task.ops:
            touched = map(first_name, (*op.reads, *op.writes))
            owners = {owner[buffer] for buffer in touched if buffer in owner}
            if len(owners) == 1:
                times[owners.pop()] += calls[name] * seconds(program, op)
    costs: dict[str, list[SliceCost]] = {}
    for piece in slices:
        ahead = job.parallel.sharding.units_ahead
        cost = SliceCost(times[piece.name], *_slice_bytes(program, piece, ahead))
        costs.setdefault(piece.operator, []).append(cost)
    return costs


def _slices(job: TrainingJob, parameters: Sequence[str], choices: Choices) -> list[OperatorSlice]:
    return operator_slices(parameters, choices, tied_embeddings=job.model.tied_embeddings)


def _slice_bytes(program: Program, piece: OperatorSlice, ahead: int) -> tuple[int, int]:
    """Return the bytes that a slice holds all the time, and the bytes that it gathers for a while.

    With prefetching, 1 + ``ahead`` units are gathered at once; each slice is charged for all of them, so the largest
    slice decides.
    """
    held = gathered = 0
    for name in buffers_of(piece) & program.buffers.keys():
        buffer = program.buffers[name]
        size = allocated_bytes(buffer.num_bytes)
        if buffer.scope is not Scope.MICROBATCH:  # whole gradients that wait for the end of a step count as held
            held += size
        elif name in piece.parameters:
            gathered += size * (1 + ahead)
        elif not name.endswith(".regathered"):  # a parameter is whole in forward or in backward
            gathered += size
    return held, gathered


def options_of(
    replicated: Mapping[int, Mapping[str, Sequence[SliceCost]]],
    sharded: Mapping[int, Mapping[str, Sequence[SliceCost]]],
) -> dict[str, list[Option]]:
    """Return the options of every operator, from the costs of its slices by number of slices."""
    options: dict[str, list[Option]] = {}
    for num_slices, by_operator in sorted(sharded.items()):
        for operator, pieces in by_operator.items():
            if len(pieces) != num_slices:
                continue  # this operator cannot be split into as many slices
            wholes = replicated[num_slices][operator]
            for z in range(0 if num_slices == 1 else 1, num_slices + 1):
                costs = [*pieces[:z], *wholes[z:]]
                gathered = max((cost.gathered_bytes for cost in pieces[:z]), default=0)
                held, time_s = sum(c.held_bytes for c in costs), sum(c.time_s for c in costs)
                options.setdefault(operator, []).append(Option(held, time_s, gathered, Choice(num_slices, z)))
    return options
