"""The facts about its rank that a kernel may use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from sim.plan.words.buffer import Buffer
from sim.plan.words.mesh import Mesh
from sim.training.data.axes import SAMPLE_AXES

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool,
    "float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankContext:
    """The state shared by all ops of a rank during one step; ``sleep`` passes seconds on the current stream."""

    mesh: Mesh
    rank: int
    seed: int
    step: int
    device: torch.device
    sleep: Callable[[float], None]


@dataclass(frozen=True, slots=True)
class KernelContext:
    """The inputs of one call of a kernel besides its tensors; ``outputs``: the buffers that it writes by the plan."""

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
    ) -> Tensor:
        """Return the positions, int64, of this rank's rows where ``axes`` share out rows in order.

        All of them are neighbours from ``start`` on, or the two chunks of a sequence that is ``dealt_over`` an axis.
        ``cut_over``: more axes that share out rows, in larger parts than ``axes``.
        """
        axes = (*cut_over, *axes)
        first, total = self.index(axes) * num_rows, num_rows * self.rank.mesh.degree(*axes)
        rows = torch.arange(first, first + num_rows, dtype=torch.int64, device=self.rank.device)
        if not dealt_over:
            return start + rows
        chunk = total // 2
        numbers = torch.tensor(self.dealt_chunks(dealt_over), dtype=torch.int64, device=self.rank.device)
        return numbers[rows // chunk] * chunk + rows % chunk

    def dealt_chunks(self, axis: str) -> tuple[int, int]:
        """Return which two chunks of a sequence this rank has: the i-th of n along ``axis`` has i and 2n-1-i."""
        index, degree = self.index((axis,)), self.rank.mesh.degree(axis)
        return index, 2 * degree - 1 - index

    def first_sample(self, num_samples: int, batch_axes: Sequence[str] = ()) -> int:
        """Return the number, in the global batch, of the first of this rank's samples of this micro-batch.

        ``batch_axes``: those over which a batch lies. The ranks along others than data parallelism's share a
        micro-batch, in order.
        """
        mesh = self.rank.mesh
        axes = (*SAMPLE_AXES, *(axis for axis in batch_axes if axis not in SAMPLE_AXES))
        return (self.microbatch * mesh.degree(*axes) + mesh.index(self.rank.rank, axes)) * num_samples


Attributes = Mapping[str, Any]


def rows_of(attributes: Attributes) -> Attributes:
    """Return what ``positions`` is told of an op's rows."""
    return {name: attributes[name] for name in ("start", "dealt_over", "cut_over") if name in attributes}


KernelFunction = Callable[[KernelContext, Sequence[Tensor], Attributes], tuple[Tensor, ...]]
"""Takes the tensors that an op reads; returns those that it writes, in order.

New tensors own their memory; a buffer that the op also reads is updated in place and returned itself.
"""


def wide(x: Tensor) -> Tensor:
    """Return x in the type in which statistics are computed: float64 for float64, else float32."""
    return x if x.dtype == torch.float64 else x.float()
