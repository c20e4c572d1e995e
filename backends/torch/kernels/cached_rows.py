"""Rows of embedding tables: the ids of a batch, the search in the cache, rows that move, sums of rows, updates.

The cache's decisions are data (``batch``). The maps on the device say where rows lie, and must agree with them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.execution.errors import ExecutionError
from backends.torch.kernels.context import DTYPES, Attributes, KernelContext, KernelFunction
from backends.torch.values.clicks import drawn_rows
from sim.embedding.policies import Ints
from sim.plan.words.buffer import Tier


def _tensor(context: KernelContext, numbers: Ints) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=context.rank.device)


def lookup_ids(_: KernelContext, _inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the row that each of the rank's lookups reads, in host memory."""
    return (torch.tensor(attributes["batch"].ids, dtype=torch.int64),)


def initial_rows(context: KernelContext, _: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the rank's rows before the first step, or its columns of them, where ``axes`` split these."""
    batch, width = attributes["batch"], attributes["width"]
    first = context.index(attributes["axes"]) * width
    values = drawn_rows(context.rank.seed, batch.num_global_rows, attributes["total_width"])
    own = values[torch.from_numpy(batch.owned), first : first + width]
    device = "cpu" if context.outputs[0].tier is Tier.HOST else context.rank.device
    return (own.to(device, DTYPES[attributes["dtype"]]).clone(),)


def initial_maps(context: KernelContext, _: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the slot of each row, the row of each slot, and places for counts; -1: none."""
    batch = attributes["batch"]
    rows, slots = batch.cached_rows, batch.cached_slots
    maps = torch.full((2 * (batch.num_rows + batch.num_slots),), -1, dtype=torch.int64, device=context.rank.device)
    maps[_tensor(context, rows)] = _tensor(context, slots)
    maps[batch.num_rows + _tensor(context, slots)] = _tensor(context, rows)
    return (maps,)


def cached_numbers(_: KernelContext, _inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the rows that lie in the cache before the batch, and their slots."""
    batch = attributes["batch"]
    return torch.tensor(batch.cached_rows), torch.tensor(batch.cached_slots)


def unique_rows(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the different rows of a batch, and of each lookup the number of its row among them, and its bag."""
    rows, inverse = torch.unique(inputs[0], return_inverse=True)  # CUDA gives rows the memory of all lookups
    return rows.clone(), inverse, _tensor(context, attributes["batch"].bags)


def search_cache(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the slots of lookups and rows once all rows are there, the maps, and what moves. Raises ExecutionError.

    Slots of hits are read from the maps.
    """
    (rows, inverse, maps), batch = inputs, attributes["batch"]
    found = batch.found
    if not torch.equal(maps[rows] >= 0, torch.tensor(found.is_hit, device=rows.device)):
        raise ExecutionError("the maps on the device and the cache's policy disagree on which rows are there")
    rows_out, slots_out, rows_in, slots_in = (
        _tensor(context, part) for part in (found.rows_out, found.slots_out, found.rows_in, found.slots_in)
    )
    maps[rows_out] = -1
    maps[rows_in] = slots_in
    maps[batch.num_rows + slots_in] = rows_in
    slots = maps[rows]
    fetched = (rows_in, slots_in) if batch.num_in else ()
    return slots[inverse], slots, maps, *fetched, *((rows_out, slots_out) if batch.num_out else ())


def gather_rows(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the rows of a table with these numbers."""
    table, numbers = inputs
    return (table[numbers],)


def scatter_rows(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Write rows to their places in a table, in place."""
    rows, numbers, table = inputs
    return (table.index_copy_(0, numbers, rows),)


def pool_rows(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the sum of the rows of each bag."""
    table, places, bags = inputs
    shape = (*attributes["bags"], table.shape[1])
    sums = table.new_zeros(shape)
    sums.view(-1, table.shape[1]).index_add_(0, bags, table[places])
    return (sums,)


def pool_rows_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of each different row, given that of the sums, each lookup's row and its bag."""
    dy, of_row, bags = inputs
    gradients = dy.new_zeros(attributes["count"], dy.shape[-1])
    return (gradients.index_add_(0, of_row, dy.reshape(-1, dy.shape[-1])[bags]),)


def sgd_rows(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Update rows in place by their gradients."""
    slots, gradients, table = inputs
    return (table.index_add_(0, slots, gradients, alpha=-attributes["learning_rate"]),)


CACHED_ROW_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            lookup_ids,
            initial_rows,
            initial_maps,
            cached_numbers,
            unique_rows,
            search_cache,
            gather_rows,
            scatter_rows,
            pool_rows,
            pool_rows_backward,
            sgd_rows,
        )
    }
)
