"""The plan of one training step of a click model whose embedding tables are sharded, and cached on the devices.

In order, on each rank: ids come to the device; the cache finds the batch's rows; rows that give way go to the host's
table, and missing ones come from it; rows are summed by sample and table, and the sums exchanged; the dense layers run
forward and backward on the rank's samples; the gradients of the sums come back, and rows and layers are updated by SGD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec import Struct

from costmodels.kernels import KERNELS, TensorSpec
from sim.embedding.click_model import ClickModel, forward
from sim.embedding.rank_batch import RankBatch, Sharding
from sim.plan.functions.basic import all_to_all, only, reduce_scatter
from sim.plan.functions.click_models import exchange_tables, logistic_loss
from sim.plan.functions.gradients import backpropagate
from sim.plan.functions.tracing import Gradients, ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind, Scope, Tier
from sim.plan.words.layout import PARTIAL, REPLICATED, Layout, Shard
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Copy
from sim.plan.words.program import Call, Phase, Plan, Program

AXIS: Final = "dp"
TO_DEVICE: Final = "h2d"
TO_HOST: Final = "d2h"
HOST: Final = "host"
BUCKET_BYTES: Final = 25 * 2**20
"""The largest bucket of gradients that are summed together, as in torch's DistributedDataParallel."""

MoveOrder = Literal["evict_first", "fetch_first"]
"""``evict_first``: missing rows are looked for in the host's table once rows that give way are there, as in
Colossal-AI; ``fetch_first``: before, so that both copies run at once (its ``async_copy``)."""


class ClickStep(Struct, frozen=True, kw_only=True):
    """A training step: ``batch_size`` samples of all ranks together, of which each rank has an equal part.

    ``tables``: the number of tables that each rank sums rows of. ``row_bytes_per_s``: the rate at which a rank's host
    gathers rows from its table, or scatters them into it; None: that of its memory.
    """

    name: str
    model: ClickModel
    batch_size: int
    num_ranks: int
    sharding: Sharding
    tables: tuple[int, ...]
    order: MoveOrder = "evict_first"
    row_bytes_per_s: float | None = None
    dtype: Literal["float32", "float64"] = "float32"
    learning_rate: float = 0.1
    seed: int = 0


def build_step(step: ClickStep, batches: Sequence[RankBatch], *, starts: bool = False) -> Plan:
    """Return the plan of a step. ``batches``: the ranks' parts of its batch; one where all ranks do the same.

    ``starts``: before the step, fill the host's tables with initial values, and the caches with their rows. So the plan
    can be executed alone.
    """
    mesh = Mesh(((AXIS, step.num_ranks),))
    programs = []
    for rank, batch in enumerate(batches):
        role = {AXIS: rank} if len(batches) > 1 else {}
        tracer = ProgramTracer(mesh, step.dtype, step.dtype, role)
        programs.append(_ProgramWriter(step, tracer, batch, rank).write(starts=starts))
    return Plan(step.name, mesh, tuple(programs), seed=step.seed)


_FOUND: Final = ("places", "slots")


class _Found(Struct, frozen=True, kw_only=True):
    """Of each lookup the place of its row on the device, its row's number in the batch and its bag; rows' slots."""

    places: Tensor
    rows: Tensor
    bags: Tensor
    slots: Tensor


@dataclass(slots=True)
class _ProgramWriter:
    """Writes the program of a rank. ``table``: its rows on the device: those in the cache, or all."""

    step: ClickStep
    tracer: ProgramTracer
    batch: RankBatch
    rank: int
    table: Tensor = field(init=False)
    host_table: Tensor | None = field(init=False, default=None)
    maps: Tensor | None = field(init=False, default=None)
    row_gradients: Tensor | None = field(init=False, default=None)

    def write(self, *, starts: bool) -> Program:
        """Return the program."""
        num_rows = self.batch.num_rows if self.batch.found is None else self.batch.num_slots
        self.table = self._kept("rows_on_device", (num_rows, self._width))
        if self.batch.found is not None:
            self.host_table = self._kept("rows_on_host", (self.batch.num_rows, self._width), tier=Tier.HOST)
            count = 2 * (self.batch.num_rows + self.batch.num_slots)
            self.maps = self._kept("maps", (count,), dtype="int64", kind=Kind.WORKSPACE)
        names = [self._write_start()] if starts else []
        names += self._write_step()
        calls = tuple(Call(name, 0) for name in names)
        return Program(self.tracer.role, self.tracer.buffers, self.tracer.tasks, calls)

    # --- properties ------------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        """Return the elements of a row that the rank has."""
        return self.step.model.row_elements // (self.step.num_ranks if self.step.sharding == "column" else 1)

    @property
    def _is_shared(self) -> bool:
        return self.step.num_ranks > 1

    @property
    def _samples(self) -> int:
        """Return the samples of the rank's dense layers."""
        return self.step.batch_size // self.step.num_ranks

    def _kept(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        dtype: str = "",
        kind: Kind = Kind.PARAMETER,
        tier: Tier = Tier.DEVICE,
    ) -> Tensor:
        """Return a new persistent buffer."""
        return self.tracer.tensor(Buffer(name, shape, dtype or self.step.dtype, kind, Scope.PERSISTENT, tier))

    # --- ops -------------------------------------------------------------------------------------------------------

    def _made(
        self,
        t: TaskTracer,
        name: str,
        kernel: str,
        inputs: Sequence[Tensor],
        tier: Tier = Tier.DEVICE,
        labels: Sequence[str] = ("",),
        **attributes: Any,
    ) -> tuple[Tensor, ...]:
        """Emit a kernel with new outputs, on the host's cores if its buffers are there."""
        specs = KERNELS[kernel].outputs([tensor.spec for tensor in inputs], attributes)
        outputs = tuple(
            self._new(f"{name}.{label}" if label else name, spec, tier)
            for label, spec in zip(labels, specs, strict=True)
        )
        self._emit(t, name, kernel, inputs, outputs, tier, **attributes)
        return outputs

    def _new(self, name: str, spec: TensorSpec, tier: Tier) -> Tensor:
        return self.tracer.tensor(Buffer(name, spec.shape, spec.dtype, Kind.WORKSPACE, Scope.MICROBATCH, tier))

    @staticmethod
    def _emit(
        t: TaskTracer,
        name: str,
        kernel: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        tier: Tier = Tier.DEVICE,
        **attributes: Any,
    ) -> None:
        reads, writes = (tuple(tensor.name for tensor in side) for side in (inputs, outputs))
        t.emit(Compute(t.unique(name), kernel, reads, writes, attributes, "compute" if tier is Tier.DEVICE else HOST))

    def _copied(self, t: TaskTracer, x: Tensor, tier: Tier) -> Tensor:
        """Emit a copy to another tier of memory."""
        name = f"{x.name}.{'to_host' if tier is Tier.HOST else 'to_device'}"
        y = self._new(name, x.spec, tier)
        t.emit(Copy(name, (x.name,), (y.name,), TO_HOST if tier is Tier.HOST else TO_DEVICE))
        return y

    # --- before the step -------------------------------------------------------------------------------------------

    def _write_start(self) -> str:
        """Write the initial rows into the host's table, and those of the cache to the device."""
        t = TaskTracer(self.tracer)
        attributes: dict[str, Any] = {
            "batch": self.batch, "axes": (AXIS,) if self.step.sharding == "column" else (), "width": self._width,
            "total_width": self.step.model.row_elements, "dtype": self.step.dtype,
        }  # fmt: skip
        if self.host_table is None or self.maps is None:
            self._emit(t, "initial_rows", "initial_rows", (), (self.table,), **attributes)
            return self.tracer.add_task("start", Phase.PREPARE, t.ops).name
        self._emit(t, "initial_rows", "initial_rows", (), (self.host_table,), Tier.HOST, **attributes)
        self._emit(t, "initial_maps", "initial_maps", (), (self.maps,), batch=self.batch)
        if self.batch.num_cached:
            rows, slots = self._made(t, "cached", "cached_numbers", (), Tier.HOST, ("rows", "slots"), batch=self.batch)
            count = self.batch.num_cached
            (values,) = self._made(t, "first_rows", "gather_rows", (self.host_table, rows), Tier.HOST, count=count)
            moved = [self._copied(t, x, Tier.DEVICE) for x in (values, slots)]
            self._emit(t, "first_rows.placed", "scatter_rows", (*moved, self.table), (self.table,))
        return self.tracer.add_task("start", Phase.PREPARE, t.ops).name

    # --- the step --------------------------------------------------------------------------------------------------

    def _write_step(self) -> list[str]:
        """Write the step; return the names of its tasks in call order."""
        t = TaskTracer(self.tracer)
        found = self._find(t)
        self.tracer.add_task("rows", Phase.PREPARE, t.ops)
        t = TaskTracer(self.tracer)
        loss = self._forward(t, found)
        self.tracer.add_task("forward", Phase.FORWARD, t.ops, 0)
        r = TaskTracer(self.tracer)
        backpropagate(r, t.tape, {loss: None})
        self.tracer.add_task("backward", Phase.BACKWARD, r.ops, 0)
        names = ["rows", self._write_zeros(), "forward", "backward"]
        if self._is_shared:
            names.append(self._write_sync())
        return [*names, self._write_update(found.slots)]

    def _find(self, t: TaskTracer) -> _Found:
        """Emit what brings a batch's rows to the device."""
        (ids,) = self._made(t, "ids", "lookup_ids", (), Tier.HOST, batch=self.batch)
        here = self._copied(t, ids, Tier.DEVICE)
        labels = ("rows", "of_lookups", "bags")
        rows, inverse, bags = self._made(t, "unique", "unique_rows", (here,), labels=labels, batch=self.batch)
        if self.maps is None:
            return _Found(places=here, rows=inverse, bags=bags, slots=rows)
        inputs = rows, inverse, self.maps
        specs = KERNELS["search_cache"].outputs([tensor.spec for tensor in inputs], {"batch": self.batch})
        places, slots = (
            self._new(f"find.{label}", spec, Tier.DEVICE) for label, spec in zip(_FOUND, specs, strict=False)
        )
        kinds = [kind for kind, count in (("in", self.batch.num_in), ("out", self.batch.num_out)) if count]
        names = [f"{what}_{kind}" for kind in kinds for what in ("rows", "slots")]
        moving = {
            name: self._new(f"find.{name}", spec, Tier.DEVICE) for name, spec in zip(names, specs[3:], strict=True)
        }
        outputs = (places, slots, self.maps, *moving.values())
        self._emit(t, "find", "search_cache", inputs, outputs, batch=self.batch)
        self._move(t, moving)
        return _Found(places=places, rows=inverse, bags=bags, slots=slots)

    def _move(self, t: TaskTracer, moving: Mapping[str, Tensor]) -> None:
        """Emit the moves of rows that give way and of those that are missing."""
        arriving = None
        if "rows_in" in moving and self.step.order == "fetch_first":
            arriving = self._fetched(t, moving["rows_in"])
        if "rows_out" in moving:
            self._write_back(t, moving["rows_out"], moving["slots_out"])
        if "rows_in" in moving:
            arriving = arriving or self._fetched(t, moving["rows_in"])
            self._emit(t, "place", "scatter_rows", (arriving, moving["slots_in"], self.table), (self.table,))

    def _fetched(self, t: TaskTracer, rows: Tensor) -> Tensor:
        """Emit the way of missing rows to the device."""
        assert self.host_table is not None
        numbers, count = self._copied(t, rows, Tier.HOST), self.batch.num_in
        inputs = self.host_table, numbers
        (values,) = self._made(t, "fetch", "gather_rows", inputs, Tier.HOST, count=count, **self._host_rate)
        return self._copied(t, values, Tier.DEVICE)

    def _write_back(self, t: TaskTracer, rows: Tensor, slots: Tensor) -> None:
        """Emit the way of rows that give way to the host's table."""
        assert self.host_table is not None
        (leaving,) = self._made(t, "evict", "gather_rows", (self.table, slots), count=self.batch.num_out)
        inputs = (*(self._copied(t, x, Tier.HOST) for x in (leaving, rows)), self.host_table)
        self._emit(t, "write_back", "scatter_rows", inputs, (self.host_table,), Tier.HOST, **self._host_rate)

    @property
    def _host_rate(self) -> dict[str, Any]:
        return {} if self.step.row_bytes_per_s is None else {"bytes_per_s": self.step.row_bytes_per_s}

    def _forward(self, t: TaskTracer, found: _Found) -> Tensor:
        """Emit the forward pass; return the loss."""
        step, own = self.step, Layout(((AXIS, Shard(0)),))
        numbers, labels = t.compute(
            "inputs", "click_inputs", (), (own, own), labels=("numbers", "labels"), num_samples=self._samples,
            num_numbers=step.model.num_numbers, dtype=step.dtype, axes=(AXIS,),
        )  # fmt: skip
        vectors = self._exchanged(t, self._summed(t, found))
        logits = forward(t, step.model, numbers, vectors)
        return logistic_loss(t, "loss", logits, labels, self._kept("loss", (1,)), step.batch_size)

    def _summed(self, t: TaskTracer, found: _Found) -> Tensor:
        """Emit the sums of rows by sample and table, and record their backward: the gradients of different rows."""
        count = self.step.tables[self.rank]
        shape: tuple[int, ...] = (self.step.batch_size, count)
        layout = Layout(((AXIS, Shard(0)),))
        if self._is_shared:
            by = {"table": REPLICATED, "row": Layout(((AXIS, PARTIAL),)), "column": Layout(((AXIS, Shard(2)),))}
            layout = by[self.step.sharding]
            shape = (self.step.batch_size * count,) if self.step.sharding == "table" else shape
        (sums,) = t.compute("sums", "pool_rows", (self.table, found.places, found.bags), (layout,), bags=shape)

        def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
            dy = only(gradients)
            (self.row_gradients,) = r.compute(
                "row_gradients", "pool_rows_backward", (dy, found.rows, found.bags), (REPLICATED,), kind=Kind.GRADIENT,
                count=self.batch.num_unique,
            )  # fmt: skip
            return [None]

        t.record((self.table,), (sums,), backward, settles=False)
        return sums

    def _exchanged(self, t: TaskTracer, sums: Tensor) -> Tensor:
        """Return the vectors of all tables for the rank's samples [samples, tables, row elements]."""
        if not self._is_shared:
            return sums
        if self.step.sharding == "table":
            return exchange_tables(t, sums, AXIS, self.step.tables, self.rank)
        if self.step.sharding == "row":
            return reduce_scatter(t, sums, AXIS, 0)
        return all_to_all(t, sums, AXIS, 0)

    def _write_zeros(self) -> str:
        """Write the zeroing of the gradients of the dense layers."""
        t = TaskTracer(self.tracer)
        t.update("zero", "zero", (), [p.gradient for p in self.tracer.parameters.values()])
        return self.tracer.add_task("zero_gradients", Phase.PREPARE, t.ops).name

    def _write_sync(self) -> str:
        """Write the sums of the dense layers' gradients over all ranks, in buckets, the last layers first."""
        t, buckets, size = TaskTracer(self.tracer), [list[str]()], 0
        for parameter in reversed(self.tracer.parameters.values()):
            num_bytes = self.tracer.buffers[parameter.gradient.name].num_bytes
            if buckets[-1] and size + num_bytes > BUCKET_BYTES:
                buckets.append([])
                size = 0
            buckets[-1].append(parameter.gradient.name)
            size += num_bytes
        for place, bucket in enumerate(buckets):
            names = tuple(bucket)
            t.emit(Collective(f"all_reduce.{place}", CollectiveKind.ALL_REDUCE, (AXIS,), names, names, AXIS))
        return self.tracer.add_task("gradient_sync", Phase.GRADIENT_SYNC, t.ops).name

    def _write_update(self, slots: Tensor) -> str:
        """Write the update of rows and of dense layers."""
        assert self.row_gradients is not None
        t, rate = TaskTracer(self.tracer), self.step.learning_rate
        t.update("rows", "sgd_rows", (slots, self.row_gradients), (self.table,), learning_rate=rate)
        gradients = [parameter.gradient for parameter in self.tracer.parameters.values()]
        values = [parameter.value for parameter in self.tracer.parameters.values()]
        size = sum(self.tracer.buffers[value.name].num_elements for value in values)
        t.update(
            "dense", "sgd_piece", gradients, values, axes=(), size=size, num_gradients=len(gradients),
            num_parameters=len(values), learning_rate=rate,
        )  # fmt: skip
        return self.tracer.add_task("update", Phase.OPTIMIZER, t.ops).name
