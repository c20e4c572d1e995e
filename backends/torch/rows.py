"""Rows of an executed timeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backends.torch.devices import StepTimes
from backends.torch.schedule import OpInstance
from costmodels.kernels import KERNELS, TensorSpec
from sim.plan.op import Collective, CollectiveKind, Compute, Op, Send
from sim.plan.program import Program

COLUMNS = (
    "rank", "stream", "name", "kind", "start_s", "end_s", "microbatch", "stage", "bytes", "flop", "group",
)  # fmt: skip


@dataclass(slots=True)
class _RowWriter:
    """Works out what is the same for all calls of an op once."""

    program: Program
    _work: dict[int, tuple[int, float]] = field(default_factory=dict)

    def work(self, op: Op) -> tuple[int, float]:
        """Return the bytes that an op moves (a kernel reads and writes) and its FLOP."""
        if id(op) not in self._work:
            self._work[id(op)] = self._count(op)
        return self._work[id(op)]

    def _count(self, op: Op) -> tuple[int, float]:
        if isinstance(op, Compute):
            inputs, outputs = self._specs(op.reads), self._specs(op.writes)
            work = KERNELS[op.kernel].work(inputs, outputs, op.attributes)
            return work.num_bytes, work.flop
        gathers = isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER
        names = op.writes if gathers or not op.reads else op.reads
        return sum(self.program.buffers[name].num_bytes for name in names), 0.0

    def _specs(self, names: Sequence[str]) -> list[TensorSpec]:
        return [TensorSpec(self.program.buffers[name].shape, self.program.buffers[name].dtype) for name in names]


def kind_of(op: Op) -> str:
    """Return an op's kind as a timeline names it."""
    if isinstance(op, Compute):
        return "compute"
    if isinstance(op, Collective):
        return str(op.kind)
    return "send" if isinstance(op, Send) else "recv"


def timeline_columns(
    program: Program, rank: int, instances: Sequence[OpInstance], times: StepTimes
) -> Mapping[str, list[object]]:
    """Return one rank's rows, in issue order, by column; none where ops were not timed."""
    writer = _RowWriter(program)
    columns: dict[str, list[object]] = {name: [] for name in COLUMNS}
    for instance, start_s, end_s in zip(instances, times.starts_s, times.ends_s, strict=bool(times.starts_s)):
        op, microbatch = instance.op, instance.call.microbatch
        num_bytes, flop = writer.work(op)
        row = (
            rank, op.stream, instance.name, kind_of(op), start_s, end_s, -1 if microbatch is None else microbatch,
            instance.task.stage, num_bytes, flop, ",".join(op.axes) if isinstance(op, Collective) else "",
        )  # fmt: skip
        for name, value in zip(COLUMNS, row, strict=True):
            columns[name].append(value)
    return columns
