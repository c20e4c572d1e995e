"""The ops of a click model's step that have no gradient: kernels on a device or its host, and copies between them."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from costmodels.kernels import KERNELS, TensorSpec
from sim.plan.functions.tracing import ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind, Scope, Tier
from sim.plan.words.op import Compute, Copy

TO_DEVICE: Final = "h2d"
TO_HOST: Final = "d2h"
HOST: Final = "host"


class RowOps(Struct, frozen=True):
    """Emits ops into tasks of a program. ``dtype``: of rows, unless another is stated."""

    program: ProgramTracer
    dtype: str

    def kept(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        dtype: str = "",
        kind: Kind = Kind.PARAMETER,
        tier: Tier = Tier.DEVICE,
    ) -> Tensor:
        """Return a new persistent buffer."""
        return self.program.tensor(Buffer(name, shape, dtype or self.dtype, kind, Scope.PERSISTENT, tier))

    def new(self, name: str, spec: TensorSpec, tier: Tier) -> Tensor:
        """Return a new buffer of the step."""
        return self.program.tensor(Buffer(name, spec.shape, spec.dtype, Kind.WORKSPACE, Scope.MICROBATCH, tier))

    def made(
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
            self.new(f"{name}.{label}" if label else name, spec, tier)
            for label, spec in zip(labels, specs, strict=True)
        )
        self.emit(t, name, kernel, inputs, outputs, tier, **attributes)
        return outputs

    @staticmethod
    def emit(
        t: TaskTracer,
        name: str,
        kernel: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        tier: Tier = Tier.DEVICE,
        **attributes: Any,
    ) -> None:
        """Emit a kernel that writes these outputs, on the host's cores if its buffers are there."""
        reads, writes = (tuple(tensor.name for tensor in side) for side in (inputs, outputs))
        t.emit(Compute(t.unique(name), kernel, reads, writes, attributes, "compute" if tier is Tier.DEVICE else HOST))

    def copied(self, t: TaskTracer, x: Tensor, tier: Tier) -> Tensor:
        """Emit a copy to another tier of memory."""
        name = f"{x.name}.{'to_host' if tier is Tier.HOST else 'to_device'}"
        y = self.new(name, x.spec, tier)
        t.emit(Copy(name, (x.name,), (y.name,), TO_HOST if tier is Tier.HOST else TO_DEVICE))
        return y
