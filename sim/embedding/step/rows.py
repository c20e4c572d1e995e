"""A rank's rows: where they lie, the search of a batch's rows in the cache, and their moves between host and device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from costmodels.kernels import KERNELS
from sim.embedding.rank_batch import RankBatch
from sim.embedding.step.ops import RowOps
from sim.embedding.step.spec import AXIS, ClickStep
from sim.plan.functions.tracing import TaskTracer, Tensor
from sim.plan.words.buffer import Kind, Tier

_FOUND: Final = ("places", "slots")


class Found(Struct, frozen=True, kw_only=True):
    """Of each lookup the place of its row on the device, its row's number in the batch and its bag; rows' slots."""

    places: Tensor
    rows: Tensor
    bags: Tensor
    slots: Tensor


@dataclass(slots=True)
class RankRows:
    """Writes what brings a batch's rows to a rank's device. ``table``: its rows there: those in the cache, or all."""

    step: ClickStep
    batch: RankBatch
    ops: RowOps
    table: Tensor = field(init=False)
    _host_table: Tensor | None = field(init=False, default=None)
    _maps: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        batch, ops = self.batch, self.ops
        self.table = ops.kept(
            "rows_on_device", (batch.num_rows if batch.found is None else batch.num_slots, self.step.width)
        )
        if batch.found is not None:
            self._host_table = ops.kept("rows_on_host", (batch.num_rows, self.step.width), tier=Tier.HOST)
            count = 2 * (batch.num_rows + batch.num_slots)
            self._maps = ops.kept("maps", (count,), dtype="int64", kind=Kind.WORKSPACE)

    def start(self, t: TaskTracer) -> None:
        """Emit the initial rows of the host's table, and those of the cache on the device."""
        attributes: dict[str, Any] = {
            "batch": self.batch, "axes": (AXIS,) if self.step.sharding == "column" else (), "width": self.step.width,
            "total_width": self.step.model.row_elements, "dtype": self.step.dtype,
        }  # fmt: skip
        ops, host_table, maps = self.ops, self._host_table, self._maps
        if host_table is None or maps is None:
            ops.emit(t, "initial_rows", "initial_rows", (), (self.table,), **attributes)
            return
        ops.emit(t, "initial_rows", "initial_rows", (), (host_table,), Tier.HOST, **attributes)
        ops.emit(t, "initial_maps", "initial_maps", (), (maps,), batch=self.batch)
        if self.batch.num_cached:
            rows, slots = ops.made(t, "cached", "cached_numbers", (), Tier.HOST, ("rows", "slots"), batch=self.batch)
            count = self.batch.num_cached
            (values,) = ops.made(t, "first_rows", "gather_rows", (host_table, rows), Tier.HOST, count=count)
            moved = [ops.copied(t, x, Tier.DEVICE) for x in (values, slots)]
            ops.emit(t, "first_rows.placed", "scatter_rows", (*moved, self.table), (self.table,))

    def find(self, t: TaskTracer) -> Found:
        """Emit the search of a batch's rows, and the moves after which all of them are on the device."""
        ops, batch = self.ops, self.batch
        (ids,) = ops.made(t, "ids", "lookup_ids", (), Tier.HOST, batch=batch)
        here = ops.copied(t, ids, Tier.DEVICE)
        labels = ("rows", "of_lookups", "bags")
        rows, inverse, bags = ops.made(t, "unique", "unique_rows", (here,), labels=labels, batch=batch)
        if self._maps is None:
            return Found(places=here, rows=inverse, bags=bags, slots=rows)
        inputs = rows, inverse, self._maps
        specs = KERNELS["search_cache"].outputs([tensor.spec for tensor in inputs], {"batch": batch})
        places, slots = (
            ops.new(f"find.{label}", spec, Tier.DEVICE) for label, spec in zip(_FOUND, specs, strict=False)
        )
        kinds = [kind for kind, count in (("in", batch.num_in), ("out", batch.num_out)) if count]
        names = [f"{what}_{kind}" for kind in kinds for what in ("rows", "slots")]
        moving = {name: ops.new(f"find.{name}", spec, Tier.DEVICE) for name, spec in zip(names, specs[3:], strict=True)}
        outputs = (places, slots, self._maps, *moving.values())
        ops.emit(t, "find", "search_cache", inputs, outputs, batch=batch)
        self._move(t, moving)
        return Found(places=places, rows=inverse, bags=bags, slots=slots)

    def update(self, t: TaskTracer, slots: Tensor, gradients: Tensor) -> None:
        """Emit the update of a batch's rows."""
        rate = self.step.learning_rate
        t.update("rows", "sgd_rows", (slots, gradients), (self.table,), learning_rate=rate)

    def _move(self, t: TaskTracer, moving: Mapping[str, Tensor]) -> None:
        """Emit the moves of rows that give way and of those that are missing."""
        arriving = None
        if "rows_in" in moving and self.step.order == "fetch_first":
            arriving = self._fetched(t, moving["rows_in"])
        if "rows_out" in moving:
            self._write_back(t, moving["rows_out"], moving["slots_out"])
        if "rows_in" in moving:
            arriving = arriving or self._fetched(t, moving["rows_in"])
            self.ops.emit(t, "place", "scatter_rows", (arriving, moving["slots_in"], self.table), (self.table,))

    def _fetched(self, t: TaskTracer, rows: Tensor) -> Tensor:
        """Emit the way of missing rows to the device."""
        assert self._host_table is not None
        ops, count = self.ops, self.batch.num_in
        inputs = self._host_table, ops.copied(t, rows, Tier.HOST)
        (values,) = ops.made(t, "fetch", "gather_rows", inputs, Tier.HOST, count=count, **self.step.host_rate)
        return ops.copied(t, values, Tier.DEVICE)

    def _write_back(self, t: TaskTracer, rows: Tensor, slots: Tensor) -> None:
        """Emit the way of rows that give way to the host's table."""
        assert self._host_table is not None
        ops, table = self.ops, self._host_table
        (leaving,) = ops.made(t, "evict", "gather_rows", (self.table, slots), count=self.batch.num_out)
        inputs = (*(ops.copied(t, x, Tier.HOST) for x in (leaving, rows)), table)
        ops.emit(t, "write_back", "scatter_rows", inputs, (table,), Tier.HOST, **self.step.host_rate)
