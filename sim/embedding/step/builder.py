"""The plan of one training step of a click model whose embedding tables are sharded, and cached on the devices.

In order, on each rank: ids come to the device; the cache finds the batch's rows; rows that give way go to the host's
table, and missing ones come from it; rows are summed by sample and table, and the sums exchanged; the dense layers run
forward and backward on the rank's samples; the gradients of the sums come back, and rows and layers are updated by SGD.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.embedding.click_model import forward
from sim.embedding.rank_batch import RankBatch
from sim.embedding.step.dense import sum_gradients, update_layers, zero_gradients
from sim.embedding.step.ops import RowOps
from sim.embedding.step.rows import Found, RankRows
from sim.embedding.step.served import ServedRows
from sim.embedding.step.spec import AXIS, ClickStep
from sim.plan.functions.basic import all_to_all, only, reduce_scatter
from sim.plan.functions.click_models import exchange_tables, logistic_loss
from sim.plan.functions.gradients import backpropagate
from sim.plan.functions.tracing import Gradients, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import PARTIAL, REPLICATED, Layout, Shard
from sim.plan.words.mesh import Mesh
from sim.plan.words.program import Call, Phase, Plan, Program


def build_step(step: ClickStep, batches: Sequence[RankBatch], *, starts: bool = False) -> Plan:
    """Return the plan of a step. ``batches``: the ranks' parts of its batch; one where all ranks do the same.

    ``starts``: before the step, fill the host's tables with initial values, and the caches with their rows. So the plan
    can be executed alone, or first in a session.
    """
    mesh = Mesh(((AXIS, step.num_ranks),))
    programs = []
    for rank, batch in enumerate(batches):
        role = {AXIS: rank} if len(batches) > 1 else {}
        tracer = ProgramTracer(mesh, step.dtype, step.dtype, role)
        programs.append(_ProgramWriter(step, tracer, batch, rank).write(starts=starts))
    return Plan(step.name, mesh, tuple(programs), seed=step.seed)


@dataclass(slots=True)
class _ProgramWriter:
    """Writes the program of a rank."""

    step: ClickStep
    tracer: ProgramTracer
    batch: RankBatch
    rank: int
    rows: RankRows | ServedRows = field(init=False)
    row_gradients: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        rows = ServedRows if self.step.served else RankRows
        self.rows = rows(self.step, self.batch, RowOps(self.tracer, self.step.dtype))

    def write(self, *, starts: bool) -> Program:
        """Return the program."""
        names = [*self._write_start(), *self._write_passes()] if starts else self._write_passes()
        calls = tuple(Call(name, 0) for name in names)
        return Program(self.tracer.role, self.tracer.buffers, self.tracer.tasks, calls)

    def _write_start(self) -> list[str]:
        """Write the task that fills tables and caches; return its name."""
        t = TaskTracer(self.tracer)
        self.rows.start(t)
        return [self.tracer.add_task("start", Phase.PREPARE, t.ops).name]

    def _write_passes(self) -> list[str]:
        """Write the step; return the names of its tasks in call order."""
        add, t = self.tracer.add_task, TaskTracer(self.tracer)
        found = self.rows.find(t)
        add("rows", Phase.PREPARE, t.ops)
        t = TaskTracer(self.tracer)
        loss = self._forward(t, found)
        add("forward", Phase.FORWARD, t.ops, 0)
        r = TaskTracer(self.tracer)
        backpropagate(r, t.tape, {loss: None})
        add("backward", Phase.BACKWARD, r.ops, 0)
        t = TaskTracer(self.tracer)
        zero_gradients(t)
        names = ["rows", add("zero_gradients", Phase.PREPARE, t.ops).name, "forward", "backward"]
        if self.step.is_shared:
            t = TaskTracer(self.tracer)
            sum_gradients(t)
            names.append(add("gradient_sync", Phase.GRADIENT_SYNC, t.ops).name)
        return [*names, self._write_update(found.slots)]

    def _forward(self, t: TaskTracer, found: Found) -> Tensor:
        """Emit the forward pass; return the loss."""
        step, own = self.step, Layout(((AXIS, Shard(0)),))
        numbers, labels = t.compute(
            "inputs", "click_inputs", (), (own, own), labels=("numbers", "labels"), num_samples=step.rank_samples,
            num_numbers=step.model.num_numbers, dtype=step.dtype, axes=(AXIS,),
        )  # fmt: skip
        vectors = self._exchanged(t, self._summed(t, found))
        logits = forward(t, step.model, numbers, vectors)
        return logistic_loss(t, "loss", logits, labels, self.rows.ops.kept("loss", (1,)), step.batch_size)

    def _summed(self, t: TaskTracer, found: Found) -> Tensor:
        """Emit the sums of rows by sample and table, and record their backward: the gradients of different rows."""
        count = self.step.tables[self.rank]
        shape: tuple[int, ...] = (self.step.batch_size, count)
        layout = Layout(((AXIS, Shard(0)),))
        if self.step.is_shared:
            by = {"table": REPLICATED, "row": Layout(((AXIS, PARTIAL),)), "column": Layout(((AXIS, Shard(2)),))}
            layout = by[self.step.sharding]
            shape = (self.step.batch_size * count,) if self.step.sharding == "table" else shape
        (sums,) = t.compute("sums", "pool_rows", (self.rows.table, found.places, found.bags), (layout,), bags=shape)

        def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
            dy = only(gradients)
            (self.row_gradients,) = r.compute(
                "row_gradients", "pool_rows_backward", (dy, found.rows, found.bags), (REPLICATED,), kind=Kind.GRADIENT,
                count=self.batch.num_unique,
            )  # fmt: skip
            return [None]

        t.record((self.rows.table,), (sums,), backward, settles=False)
        return sums

    def _exchanged(self, t: TaskTracer, sums: Tensor) -> Tensor:
        """Return the vectors of all tables for the rank's samples [samples, tables, row elements]."""
        if not self.step.is_shared:
            return sums
        if self.step.sharding == "table":
            return exchange_tables(t, sums, AXIS, self.step.tables, self.rank)
        if self.step.sharding == "row":
            return reduce_scatter(t, sums, AXIS, 0)
        return all_to_all(t, sums, AXIS, 0)

    def _write_update(self, slots: Tensor) -> str:
        """Write the update of rows and of dense layers."""
        assert self.row_gradients is not None
        t = TaskTracer(self.tracer)
        self.rows.update(t, slots, self.row_gradients)
        update_layers(t, self.step.learning_rate)
        return self.tracer.add_task("update", Phase.OPTIMIZER, t.ops).name
