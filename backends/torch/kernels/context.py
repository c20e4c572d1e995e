"""The context of a kernel call: rank, mesh, seed, step, micro-batch and output buffers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from msgspec import Struct
from torch import Tensor

from sim.plan.words.buffer import Buffer
from sim.plan.words.mesh import Mesh
from sim.training.data.axes import SAMPLE_AXES

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool,
    "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2,
}  # fmt: skip


class RankContext(Struct, frozen=True):
    """The state shared by all ops of a rank during one step; ``sleep`` passes seconds on the current stream."""

    mesh: Mesh
    rank: int
    seed: int
    step: int
    device: torch.device
    sleep: Callable[[float], None]


class KernelContext(Struct, frozen=True):
    """The inputs of one kernel call besides its tensors. ``outputs``: the buffers that it writes, as in the plan."""

    rank: RankContext
    microbatch: int = 0
    outputs: tuple[Buffer, ...] = ()

    def index(self, axes: Sequence[str]) -> int:
        """Return the rank's position in its group over ``axes``, the last one varying fastest."""
        return self.rank.mesh.index(self.rank.rank, tuple(axes))

    def positions(
        self,
        num_rows: int,
        axes: Sequence[str] = (),
        *,
        start: int = 0,
        dealt_over: str = "",
        cut_over: Sequence[str] = (),
        runs: Sequence[tuple[int, int]] = (),
    ) -> Tensor:
        """Return the positions, int64, in a sequence of this rank's rows. ``axes``: mesh axes that split the rows.

        Together the ranks of ``axes`` have consecutive rows from ``start`` on, or, with ``dealt_over`` (an axis), the
        two chunks of the sequence that belong to the place along that axis.
        ``cut_over``: axes that split the rows before ``axes`` do, into larger parts. ``runs``: the rows are those of
        several sequences, the first position and the number of each; no axis splits them.
        """
        if runs:
            return torch.cat([torch.arange(first, first + count, device=self.rank.device) for first, count in runs])
        axes = (*cut_over, *axes)
        first, total = self.index(axes) * num_rows, num_rows * self.rank.mesh.degree(*axes)
        if not dealt_over:
            return torch.arange(start + first, start + first + num_rows, dtype=torch.int64, device=self.rank.device)
        rows = torch.arange(first, first + num_rows, dtype=torch.int64, device=self.rank.device)
        chunk = total // 2
        numbers = torch.tensor(self.dealt_chunks(dealt_over), dtype=torch.int64, device=self.rank.device)
        return numbers[rows // chunk] * chunk + rows % chunk

    def dealt_chunks(self, axis: str) -> tuple[int, int]:
        """Return the numbers of this rank's two chunks of a sequence: rank i of n along ``axis`` has i and 2n-1-i."""
        index, degree = self.index((axis,)), self.rank.mesh.degree(axis)
        return index, 2 * degree - 1 - index

    def first_sample(self, num_samples: int, batch_axes: Sequence[str] = ()) -> int:
        """Return the index, in the global batch, of this rank's first sample of this micro-batch.

        ``batch_axes``: mesh axes that split the batch. The data-parallel axis gives micro-batches to ranks; other axes
        split a micro-batch, in order.
        """
        mesh = self.rank.mesh
        axes = (*SAMPLE_AXES, *(axis for axis in batch_axes if axis not in SAMPLE_AXES))
        return (self.microbatch * mesh.degree(*axes) + mesh.index(self.rank.rank, axes)) * num_samples


Attributes = Mapping[str, Any]


def rows_of(attributes: Attributes) -> Attributes:
    """Return the arguments of ``positions`` among an op's attributes."""
    return {name: attributes[name] for name in ("start", "dealt_over", "cut_over", "runs") if name in attributes}


KernelFunction = Callable[[KernelContext, Sequence[Tensor], Attributes], tuple[Tensor, ...]]
"""A kernel: it takes the tensors that an op reads, and returns the tensors that the op writes, in order.

New tensors own their memory. If the op also reads the buffer, the kernel updates it in place and returns it.
"""


def wide(x: Tensor) -> Tensor:
    """Return x in the type of statistics: float64 if x is float64, otherwise float32."""
    return x if x.dtype == torch.float64 else x.float()
