"""Rows of embedding tables: the ids of a batch, the search in the cache, rows that move, sums of rows, updates.

What a batch finds is data (``sim.embedding.rank_batch``): the attribute ``batch`` of a kernel holds it.
"""

from collections.abc import Sequence
from typing import Final

from costmodels.kernels.tensor import Attributes, Kernel, TensorSpec, Work, require, total_bytes

SORT_PASSES: Final = 8
"""Passes of a radix sort over numbers of 64 bits, 8 bits each; a pass reads and writes number and place."""
SORT_KERNELS: Final = 3 * SORT_PASSES
"""Kernels of such a sort: histogram, sums and scatter of each pass."""
SELECTION_PASSES: Final = 4
"""Times that a selection of the k largest reads all numbers."""


def _numbers(count: int) -> TensorSpec:
    return TensorSpec((count,), "int64")


def _ids_outputs(_inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    return (_numbers(attributes["batch"].num_lookups),)


def _ids_work(_inputs: Sequence[TensorSpec], _outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return no work: the data loader has already put the ids into the host's memory."""
    return Work(0.0, 0.0, 0, 0)


def _unique_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the different rows, ascending, and of each lookup the number of its row among them, and its bag."""
    batch = attributes["batch"]
    per_lookup = _numbers(batch.num_lookups)
    require(inputs[0] == per_lookup, f"there must be {batch.num_lookups} ids", inputs[0])
    return _numbers(batch.num_unique), per_lookup, per_lookup


def _unique_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of a sort of all ids."""
    count = inputs[0].num_elements
    read = SORT_PASSES * 32 * count + inputs[0].num_bytes
    return Work(0.0, float(count), read, total_bytes(outputs), num_kernels=SORT_KERNELS + 6)


def _search_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the slot of each lookup and of each row, the maps, and rows and slots that are fetched and written back.

    The last are missing where there are none.
    """
    batch, maps = attributes["batch"], inputs[2]
    moved = [count for count in (batch.num_in, batch.num_out) if count]
    found = _numbers(batch.num_lookups), _numbers(batch.num_unique), maps
    return (*found, *(_numbers(count) for count in moved for _ in range(2)))


def _search_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    """Return the work of a search in the cache.

    It sorts the rows in the cache among those of the batch, and selects those that give way among all slots.
    """
    batch = attributes["batch"]
    count = batch.num_unique + batch.num_slots
    selected = SELECTION_PASSES * 8 * batch.num_slots if batch.num_out else 0
    read = SORT_PASSES * 32 * count + selected + inputs[0].num_bytes + inputs[1].num_bytes
    written = total_bytes(outputs) - outputs[2].num_bytes
    return Work(0.0, float(count), read, written, num_kernels=SORT_KERNELS + 8)


def _maps_outputs(_inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    batch = attributes["batch"]
    return (_numbers(2 * (batch.num_rows + batch.num_slots)),)


def _table_outputs(_inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    return (TensorSpec((attributes["batch"].num_rows, attributes["width"]), attributes["dtype"]),)


def _start_work(_inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    return Work(0.0, 0.0, 0, total_bytes(outputs))


def _gather_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the rows of a table [rows, w] that a batch's numbers name: ``count`` of them."""
    table = inputs[0]
    return (table.like(attributes["count"], table.shape[1]),)


def _gather_work(_inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    num_bytes = outputs[0].num_bytes
    return Work(0.0, 0.0, num_bytes + 8 * attributes["count"], num_bytes, duration_s=_stated_s(num_bytes, attributes))


def _scatter_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return (inputs[-1],)


def _scatter_work(inputs: Sequence[TensorSpec], _outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    """Return the work of rows read, and written to their places in a table."""
    num_bytes = inputs[0].num_bytes
    seconds = _stated_s(num_bytes, attributes)
    return Work(0.0, 0.0, num_bytes + 8 * inputs[0].shape[0], num_bytes, duration_s=seconds)


def _stated_s(num_bytes: int, attributes: Attributes) -> float:
    """Return the time of moving rows at the stated rate, and of the call; 0 without one."""
    rate = attributes.get("bytes_per_s")
    return 0.0 if rate is None else num_bytes / float(rate)


def _pool_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the sums of the rows of each bag, in the shape of ``bags`` and a row's elements."""
    table = inputs[0]
    return (table.like(*attributes["bags"], table.shape[1]),)


def _pool_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of a row read for each lookup, and a sum written for each bag."""
    table, places, bags = inputs
    read = table.like(places.shape[0], table.shape[1]).num_bytes + places.num_bytes + bags.num_bytes
    return Work(0.0, float(places.shape[0] * table.shape[1]), read, outputs[0].num_bytes)


def _pool_backward_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    dy = inputs[0]
    return (dy.like(attributes["count"], dy.shape[-1]),)


def _pool_backward_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of adding each lookup's gradient to that of its row, by atomic additions."""
    dy, of_row, bags = inputs
    gradients = dy.like(of_row.shape[0], dy.shape[-1])
    read = gradients.num_bytes + of_row.num_bytes + bags.num_bytes
    count = gradients.num_elements
    return Work(0.0, float(count), read, outputs[0].num_bytes, scattered_additions=count)


def _sgd_rows_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return (inputs[-1],)


def _sgd_rows_work(inputs: Sequence[TensorSpec], _outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of rows and gradients read, and rows written, by atomic additions."""
    slots, gradients, _table = inputs
    count, num_bytes = gradients.num_elements, gradients.num_bytes
    return Work(0.0, 2.0 * count, 2 * num_bytes + slots.num_bytes, num_bytes, scattered_additions=count)


CACHED_ROW_KERNELS = (
    Kernel("lookup_ids", "none", (0, 0), _ids_outputs, _ids_work),
    Kernel("initial_rows", "elementwise", (0, 0), _table_outputs, _start_work),
    Kernel("initial_maps", "elementwise", (0, 0), _maps_outputs, _start_work),
    Kernel("cached_numbers", "none", (0, 0), lambda _inputs, a: (_numbers(a["batch"].num_cached),) * 2, _ids_work),
    Kernel("unique_rows", "elementwise", (1, 1), _unique_outputs, _unique_work),
    Kernel("search_cache", "elementwise", (3, 3), _search_outputs, _search_work),
    Kernel("gather_rows", "elementwise", (2, 2), _gather_outputs, _gather_work),
    Kernel("scatter_rows", "elementwise", (3, 3), _scatter_outputs, _scatter_work),
    Kernel("pool_rows", "elementwise", (3, 3), _pool_outputs, _pool_work),
    Kernel("pool_rows_backward", "elementwise", (3, 3), _pool_backward_outputs, _pool_backward_work),
    Kernel("sgd_rows", "elementwise", (3, 3), _sgd_rows_outputs, _sgd_rows_work),
)
