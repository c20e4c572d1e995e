"""A training step of a click model whose embedding tables are sharded, and cached on the devices."""

from typing import Any, Final, Literal

from msgspec import Struct

from sim.embedding.click_model import ClickModel
from sim.embedding.rank_batch import Sharding

AXIS: Final = "dp"
"""The axis of all ranks."""

MoveOrder = Literal["evict_first", "fetch_first"]
"""``evict_first``: missing rows are looked for in the host's table once rows that give way are there, as in
Colossal-AI; ``fetch_first``: before, so that both copies run at once (its ``async_copy``)."""


class ClickStep(Struct, frozen=True, kw_only=True):
    """A training step: ``batch_size`` samples of all ranks together, of which each rank has an equal part.

    ``tables``: the number of tables that each rank sums rows of. ``row_bytes_per_s``: the rate at which a rank's host
    gathers rows from its table, or scatters them into it; None: that of its memory. ``served``: the step of a worker of
    parameter servers, alone: the batch's rows lie in its host's memory, and their gradients go there.
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
    served: bool = False

    @property
    def width(self) -> int:
        """Return the elements of a row that a rank has."""
        return self.model.row_elements // (self.num_ranks if self.sharding == "column" else 1)

    @property
    def is_shared(self) -> bool:
        """Return whether several ranks share the step."""
        return self.num_ranks > 1

    @property
    def rank_samples(self) -> int:
        """Return the samples of a rank's dense layers."""
        return self.batch_size // self.num_ranks

    @property
    def host_rate(self) -> dict[str, Any]:
        """Return the attribute of kernels that gather or scatter rows on the host, where their rate is stated."""
        return {} if self.row_bytes_per_s is None else {"bytes_per_s": self.row_bytes_per_s}
