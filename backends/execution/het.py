"""A training of embedding tables by workers and a parameter server, and its counts. They need no torch."""

from collections.abc import Sequence

from msgspec import Struct

from backends.execution.silence import SILENCE_S
from sim.embedding.het_run import HetSpec
from sim.embedding.ids import Ids, Table, id_source
from sim.embedding.policies import Ints
from sim.embedding.turns import Turn


class HetRequest(Struct, frozen=True, kw_only=True):
    """Tables on a server, workers with caches, and the steps of each worker.

    ``check``: train once more in one process, and compare all weights bit by bit. ``timeout_s``: the longest silence of
    a process.
    """

    tables: Sequence[Table]
    embedding_dim: int
    spec: HetSpec
    num_steps: int
    batch_size: int
    seed: int
    recorded: Ints | None = None
    """The row of each table that each sample reads, [samples, tables]; None: ids are drawn."""
    learning_rate: float = 0.1
    check: bool = False
    timeout_s: float = SILENCE_S

    def source(self) -> Ids:
        """Return the source of all workers' batches."""
        return id_source(self.tables, self.seed, self.recorded, self.spec.workers.num_workers)


class HetExecution(Struct, frozen=True, kw_only=True):
    """What was counted by the tensors that went from process to process; arrays [steps, workers].

    ``turns``: the order in which the server served requests; ``clocks``: its clocks at the end; ``flushed``: rows that
    each worker pushed after its last step; ``step_s``: mean time of a step of a worker. ``unequal_dense_weights``:
    dense weights that have not the same bits on all workers. ``differing_weights``: elements of rows and dense weights
    whose bits, on any worker, are not those of the training in one process; None if there was none.
    """

    turns: Sequence[Turn]
    clocks: Ints
    unique: Ints
    pulled: Ints
    pushed: Ints
    received_bytes: Ints
    sent_bytes: Ints
    flushed: Ints
    step_s: float
    num_weights: int
    unequal_dense_weights: int
    differing_weights: int | None
