"""Rows of a worker of parameter servers: its batch's rows come from its host's memory, and their gradients go there."""

from dataclasses import dataclass, field

from sim.embedding.rank_batch import RankBatch
from sim.embedding.step.ops import RowOps
from sim.embedding.step.rows import Found
from sim.embedding.step.spec import ClickStep
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.buffer import Tier


@dataclass(slots=True)
class ServedRows:
    """Writes the ways of a batch's rows and of their gradients. ``table``: the rows on the device, once found."""

    step: ClickStep
    batch: RankBatch
    ops: RowOps
    table: Tensor = field(init=False)
    _rows: Tensor = field(init=False)
    _host_table: Tensor = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.batch.num_unique, self.step.width)
        self._host_table = self.ops.kept("rows_on_host", shape, tier=Tier.HOST)

    def start(self, t: TaskTracer) -> None:
        """Emit the initial rows of the host's memory."""
        attributes = {"batch": self.batch, "axes": (), "width": self.step.width, "dtype": self.step.dtype}
        total = self.step.model.row_elements
        self.ops.emit(
            t, "initial_rows", "initial_rows", (), (self._host_table,), Tier.HOST, total_width=total, **attributes
        )

    def find(self, t: TaskTracer) -> Found:
        """Emit the search for a batch's different rows, and their way to the device."""
        ops, batch = self.ops, self.batch
        (ids,) = ops.made(t, "ids", "lookup_ids", (), Tier.HOST, batch=batch)
        labels = ("rows", "of_lookups", "bags")
        found = ops.made(t, "unique", "unique_rows", (ops.copied(t, ids, Tier.DEVICE),), labels=labels, batch=batch)
        rows, inverse, bags = found
        self._rows = ops.copied(t, rows, Tier.HOST)
        inputs = self._host_table, self._rows
        (values,) = ops.made(
            t, "fetch", "gather_rows", inputs, Tier.HOST, count=batch.num_unique, **self.step.host_rate
        )
        self.table = ops.copied(t, values, Tier.DEVICE)
        return Found(places=inverse, rows=inverse, bags=bags, slots=rows)

    def update(self, t: TaskTracer, _slots: Tensor, gradients: Tensor) -> None:
        """Emit the way of the rows' gradients to the host, which adds them to its rows."""
        inputs = self.ops.copied(t, gradients, Tier.HOST), self._rows, self._host_table
        self.ops.emit(t, "write_back", "scatter_rows", inputs, (self._host_table,), Tier.HOST, **self.step.host_rate)
