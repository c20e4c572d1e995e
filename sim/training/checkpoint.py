"""Plans of checkpoints: the state goes to the hosts' memory at once, and from there to drives beside further steps.

All ranks save equal parts of the state: the parameters, and what the optimizer keeps of them. The part of it that lies
on drives is read from there and written to another place, as the next update changes it.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from sim.plan.words.buffer import BYTES_PER_ELEMENT, Buffer, Kind, Scope, Tier
from sim.plan.words.op import Compute, Copy, Op
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.training.data.host_streams import HOST, TO_HOST
from sim.training.data.optimizer import MOMENTS
from sim.training.spec.job import DenseTraining

_TASK: Final = "checkpoint"
_STREAM: Final = "nvme_checkpoint"
_STATE: Final = (Kind.PARAMETER, Kind.OPTIMIZER)


class Saved(Struct, frozen=True, kw_only=True):
    """The bytes that every rank saves, by the tier of memory that they lie in during steps."""

    by_tier: Mapping[Tier, int]

    @property
    def rank_bytes(self) -> int:
        """Return the bytes that a rank saves."""
        return sum(self.by_tier.values())

    @property
    def snapshot_bytes(self) -> int:
        """Return the bytes of a rank that lie in its host's memory until they are on drives."""
        return self.rank_bytes - self.by_tier[Tier.NVME]


def saved_state(job: DenseTraining, plan: Plan) -> Saved:
    """Return what every rank saves: its part of each parameter, master weight and moment, once in all ranks."""
    types = job.training.types
    in_master = types.mixed + len(MOMENTS[job.training.optimizer])
    each_bytes = BYTES_PER_ELEMENT[types.parameter] + in_master * BYTES_PER_ELEMENT[types.master]
    rank_bytes = job.model.num_parameters * each_bytes / plan.mesh.size
    held = dict.fromkeys(Tier, 0)
    for program in plan.programs:
        for buffer in program.buffers.values():
            if buffer.scope is Scope.PERSISTENT and buffer.kind in _STATE:
                held[buffer.tier] += buffer.num_bytes * plan.num_ranks_of(program)
    return Saved(by_tier={tier: round(rank_bytes * num_bytes / sum(held.values())) for tier, num_bytes in held.items()})


def snapshot(plan: Plan, saved: Saved) -> Plan:
    """Return the plan in which every rank copies its state to its host, while nothing else runs."""
    ops: list[tuple[Op, Tier, Tier]] = []
    if saved.by_tier[Tier.DEVICE]:
        ops.append((_copy("from_device", TO_HOST), Tier.DEVICE, Tier.HOST))
    if saved.by_tier[Tier.HOST]:
        ops.append((Compute("on_host", "copy", *_ends("on_host"), {}, HOST), Tier.HOST, Tier.HOST))
    return _alone(plan, ops, [saved.by_tier[source] for _, source, _ in ops])


def writing(plan: Plan, saved: Saved) -> Plan:
    """Return the plan in which every rank writes its whole state to drives, while nothing else runs."""
    return _alone(plan, *_written(saved, 1))


def beside_writing(plan: Plan, saved: Saved, over_steps: int) -> Plan:
    """Return a step beside which every rank writes one of ``over_steps`` equal pieces of its state to drives."""
    ops, sizes = _written(saved, over_steps)
    buffers, task = _task(ops, [size * plan.num_steps for size in sizes])
    programs = tuple(
        replace(
            program,
            buffers={**program.buffers, **buffers},
            tasks={**program.tasks, _TASK: task},
            calls=(Call(_TASK), *program.calls),
        )
        for program in plan.programs
    )
    return replace(plan, programs=programs)


def _written(saved: Saved, pieces: int) -> tuple[list[tuple[Op, Tier, Tier]], list[int]]:
    """Return the ops that write a piece, each with the tiers that it joins, and their bytes."""
    ops: list[tuple[Op, Tier, Tier]] = []
    sizes: list[int] = []
    if saved.snapshot_bytes:
        ops.append((_copy("write", _STREAM), Tier.HOST, Tier.NVME))
        sizes.append(ceil(saved.snapshot_bytes / pieces))
    if saved.by_tier[Tier.NVME]:
        size = ceil(saved.by_tier[Tier.NVME] / pieces)
        ops += [(_copy("reread", _STREAM), Tier.NVME, Tier.HOST), (_copy("rewrite", _STREAM), Tier.HOST, Tier.NVME)]
        sizes += [size, size]
    return ops, sizes


def _copy(name: str, stream: str) -> Copy:
    return Copy(f"{_TASK}.{name}", *_ends(name), stream)


def _ends(name: str) -> tuple[tuple[str], tuple[str]]:
    """Return the buffers that an op reads and writes."""
    return (f"{_TASK}.{name}.from",), (f"{_TASK}.{name}.to",)


def _task(ops: Sequence[tuple[Op, Tier, Tier]], sizes: Sequence[int]) -> tuple[dict[str, Buffer], Task]:
    """Return the task of some ops, and their buffers."""
    buffers = {}
    for (op, *tiers), num_bytes in zip(ops, sizes, strict=True):
        for name, tier in zip((*op.reads, *op.writes), tiers, strict=True):
            buffers[name] = Buffer(name, (num_bytes,), "uint8", Kind.WORKSPACE, Scope.PERSISTENT, tier)
    return buffers, Task(_TASK, Phase.PREPARE, tuple(op for op, *_ in ops))


def _alone(plan: Plan, ops: Sequence[tuple[Op, Tier, Tier]], sizes: Sequence[int]) -> Plan:
    """Return the plan in which every rank runs these ops and no others."""
    buffers, task = _task(ops, sizes)
    programs = tuple(Program(program.role, buffers, {_TASK: task}, (Call(_TASK),)) for program in plan.programs)
    return Plan(f"{plan.name}, {_TASK}", plan.mesh, programs)
