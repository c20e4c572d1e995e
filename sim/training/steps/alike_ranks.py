"""Pipeline ranks whose programs differ in the numbers of layers and stages alone: most ranks of a long pipeline.

Such a program need not be written op by op. It is that of another rank under other names: ``layer10.norm1.weight``
becomes ``layer15.norm1.weight``, and ``forward.2`` becomes ``forward.3``.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sim.plan.words.buffer import Buffer
from sim.plan.words.calls import Calls
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Call, Program, Task
from sim.training.pipeline.actions import LETTERS, Order
from sim.training.pipeline.placement import Placement
from sim.training.spec.job import DenseTraining, split_layers

FEWEST: Final = 3
"""Fewer alike ranks are all written."""
_LAYER: Final = re.compile(r"\blayer\d+\b")
_STAGE: Final = re.compile(
    r"^((?:input|output_gradient|(?:send_|recv_)?(?:forward|backward)(?:_input|_weight)?)\.)(\d+)"
)
_SEED: Final = "salt"
"""The attribute of kernels that is a name, as it tells the random numbers of one layer from those of another."""

Likeness = tuple[object, ...]
"""What a rank's program depends on beside the numbers of its layers and stages."""


class Numbers(Struct, frozen=True):
    """The virtual stages of a pipeline rank, and the layers of each."""

    stages: Sequence[int]
    layers: Sequence[range]

    @staticmethod
    def of(job: DenseTraining, place: Placement, rank: int) -> "Numbers":
        """Return the numbers of a rank."""
        counts, stages = split_layers(job.model.num_layers, job.parallel.pipeline), place.stages[rank]
        ends = [sum(counts[: stage % place.chain_length + 1]) for stage in stages]
        lengths = [counts[stage % place.chain_length] for stage in stages]
        return Numbers(stages, [range(end - num, end) for end, num in zip(ends, lengths, strict=True)])


class Written(Struct, frozen=True):
    """The program of a rank. ``around``: its calls before and after forwards, backwards and messages.

    ``idle``: tasks without ops, which are not called.
    """

    numbers: Numbers
    program: Program
    around: tuple[Sequence[Call], Sequence[Call]]
    idle: Collection[str]


class AlikeRanks(Struct):
    """Makes the programs of alike ranks. Two are written; if one is the other renamed, so are all others."""

    first: Written | None = None
    is_renamed: bool | None = None

    def program(self, numbers: Numbers, role: Mapping[str, int], calls: Calls, write: Callable[[], Written]) -> Program:
        """Return the program of the next rank. ``calls``: its forwards, backwards and messages."""
        if self.first is None:
            self.first = write()
            return self.first.program
        if self.is_renamed:
            return _renamed(self.first, numbers, role, calls)
        program = write().program
        if self.is_renamed is None:
            self.is_renamed = _are_equal(_renamed(self.first, numbers, role, calls), program)
        return program


def likeness(job: DenseTraining, place: Placement, rank: int, order: Order) -> Likeness | None:
    """Return what is equal for ranks with alike programs; None where layers or ranks may have something of their own.

    ``order``: the rank's forwards and backwards, some of which may come in two parts.
    """
    if not _has_equal_layers(job) or not _has_plain_ranks(job, place):
        return None
    numbers, stages_of = Numbers.of(job, place, rank), [order.stages_of(letter) for letter in LETTERS]
    return tuple(
        (
            len(layers), job.recompute_of(stage), *(stage in stages for stages in stages_of),
            None if place.is_first(stage) else place.hop(stage - 1), None if place.is_last(stage) else place.hop(stage),
        )
        for stage, layers in zip(numbers.stages, numbers.layers, strict=True)
    )  # fmt: skip


def _has_equal_layers(job: DenseTraining) -> bool:
    """Return whether all layers of a job are built alike."""
    model, parallel = job.model, job.parallel
    if model.experts or model.sliding_window or parallel.osdp or parallel.memory:
        return False
    return job.training.recompute_layers is None


def _has_plain_ranks(job: DenseTraining, place: Placement) -> bool:
    """Return whether a rank has one program, whose calls are those of its stages and what is around them."""
    training, parallel, pipeline = job.training, job.parallel, job.parallel.pipeline
    if pipeline.blocking_messages or pipeline.overlap_exchanges or pipeline.num_slices > 1 or place.num_copies > 1:
        return False
    if parallel.sharding.offload or pipeline.schedule == "aiao":
        return False
    if len(parallel.sequence.roles(causal=job.model.causal)) > 1:
        return False
    return not (training.types.casts or training.set_gradients_to_none)


def _renamed(first: Written, numbers: Numbers, role: Mapping[str, int], calls: Calls) -> Program:
    """Return the program of a rank from that of an alike one."""
    names = _Names(first.numbers, numbers)
    begin, end = ([call._replace(task=names[call.task]) for call in side] for side in first.around)
    calls = Calls.joined(begin, calls.without({names[task] for task in first.idle}), end)
    buffers = [_renamed_buffer(buffer, names) for buffer in first.program.buffers.values()]
    tasks = [_renamed_task(task, names) for task in first.program.tasks.values()]
    return Program(role, {each.name: each for each in buffers}, {each.name: each for each in tasks}, calls)


class _Names(dict[str, str]):
    """The names of a rank's buffers, ops and tasks, and those that an alike rank has for them; found on first use."""

    def __init__(self, ours: Numbers, theirs: Numbers) -> None:
        super().__init__()
        self.stages = dict(zip(ours.stages, theirs.stages, strict=True))
        pairs = zip(ours.layers, theirs.layers, strict=True)
        self._layers = {f"layer{one}": f"layer{other}" for both in pairs for one, other in zip(*both, strict=True)}

    def __missing__(self, name: str) -> str:
        head, dot, rest = name.partition(".")
        if head in self._layers:
            found = f"{self._layers[head]}{dot}{rest}"
        else:
            found = _LAYER.sub(lambda match: self._layers[match[0]], name)
            found = _STAGE.sub(lambda match: f"{match[1]}{self.stages[int(match[2])]}", found)
        self[name] = found
        return found


def _renamed_buffer(buffer: Buffer, names: _Names) -> Buffer:
    initial = buffer.initial
    if initial is not None:
        of = tuple([names[name] for name in initial.of])
        initial = replace(initial, source=names[initial.source], of=of)
    return replace(buffer, name=names[buffer.name], initial=initial)


def _renamed_task(task: Task, names: _Names) -> Task:
    ops = tuple([_renamed_op(op, names) for op in task.ops])
    return Task(names[task.name], task.phase, ops, names.stages.get(task.stage, task.stage))


def _renamed_op(op: Op, names: _Names) -> Op:
    reads, writes = tuple([names[name] for name in op.reads]), tuple([names[name] for name in op.writes])
    renamed = replace(op, name=names[op.name], reads=reads, writes=writes)
    if isinstance(renamed, Compute) and _SEED in renamed.attributes:
        return replace(renamed, attributes={**renamed.attributes, _SEED: names[renamed.attributes[_SEED]]})
    return renamed


def _are_equal(one: Program, other: Program) -> bool:
    """Return whether two programs have equal ops and buffers, and these and their calls in one order."""
    parts = [(list(each.buffers), list(each.tasks), each.role, each.buffers, each.tasks) for each in (one, other)]
    found = [Calls.of(each.calls) for each in (one, other)]
    calls = [(each.names, *(column.tolist() for column in each.columns)) for each in found]
    return parts[0] == parts[1] and calls[0] == calls[1]
