"""The vocabulary of kernel costs: tensors in, work out."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, Literal

from msgspec import Struct

from costmodels.errors import KernelError

BYTES_PER_ELEMENT: Final[Mapping[str, int]] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip

Family = Literal["gemm", "attention", "attention_backward", "decode", "elementwise", "optimizer", "delay", "none"]
"""The efficiency curve of a kernel.

``gemm``: matrix products.
``attention``, ``attention_backward``: fused attention over whole sequences.
``decode``: fused attention of one new token per sequence.
``elementwise``: bound by memory bandwidth.
``optimizer``: elementwise over few, large, flat buffers.
``delay``: a stated time.
``none``: no device time.
"""

Attributes = Mapping[str, Any]


class TensorSpec(Struct, frozen=True):
    """One rank's piece of a tensor: local shape and dtype (torch's names)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the size in bytes, before allocator rounding."""
        return prod(self.shape) * BYTES_PER_ELEMENT[self.dtype]

    def like(self, *shape: int) -> "TensorSpec":
        """Return a tensor of the same dtype and another shape."""
        return TensorSpec(shape, self.dtype)


class GemmShape(Struct, frozen=True):
    """``batch`` products [m, k] x [k, n]; for fused attention m queries, n keys, head size k, batch of heads.

    ``causal``: in fused attention the last query sees all keys, and each earlier query one key less; else all see all.
    ``window``: a query sees at most this many keys, the last ones; 0: no limit. For ``decode`` m query heads share n
        keys of size k, batch of key heads.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    causal: bool = True
    window: int = 0


class Work(Struct, frozen=True):
    """The work of one call of a kernel.

    ``flop`` follows the papers: 2MKN for a matrix product, attention in full (no causal skipping), without the
    recomputed scores of fused attention; 0 for other kernels. ``executed_flop`` is the device's real work.
    ``bytes_read`` and ``bytes_written`` cross the HBM if nothing stays in cache between kernels.
    ``duration_s`` is set for delays only. ``dtype``: of a product's operands, if it is not that of the first.
    ``num_kernels``: the number of kernels of the call, each with its fixed time. ``scattered_additions``: elements
    that are added one by one to their places, by atomic operations.
    """

    flop: float
    executed_flop: float
    bytes_read: int
    bytes_written: int
    gemm: GemmShape | None = None
    duration_s: float = 0.0
    dtype: str = ""
    num_kernels: int = 1
    scattered_additions: int = 0

    @property
    def num_bytes(self) -> int:
        """Return bytes read plus bytes written."""
        return self.bytes_read + self.bytes_written


Count = Callable[[Sequence[TensorSpec], Sequence[TensorSpec], Attributes], Work]
"""The work of a call, from what it reads, what it writes and its attributes."""


class Kernel(Struct, frozen=True):
    """The definition of a kernel's output shapes and work.

    ``num_inputs``: (least, most).
    ``infer`` and ``count``: the functions behind ``outputs`` and ``work``, called once the number of inputs is checked.
    """

    name: str
    family: Family
    num_inputs: tuple[int, float]
    infer: Callable[[Sequence[TensorSpec], Attributes], tuple[TensorSpec, ...]]
    count: Count

    def outputs(self, inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
        """Return the specs of the kernel's outputs, in order; an accumulated buffer keeps its spec.

        Raises KernelError if inputs or attributes do not fit the kernel.
        """
        least, most = self.num_inputs
        if not least <= len(inputs) <= most:
            bounds = f"{least}" if least == most else f"{least} to {most}"
            raise KernelError(f"{self.name} takes {bounds} inputs, got {len(inputs)}")
        try:
            return self.infer(inputs, attributes)
        except KernelError as error:
            raise KernelError(f"{self.name}: {error}") from None
        except KeyError as error:
            raise KernelError(f"{self.name} needs the attribute {error}, got {sorted(attributes)}") from None

    def work(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
        """Return the work of one call on these inputs and outputs."""
        return self.count(inputs, outputs, attributes)


def total_bytes(tensors: Sequence[TensorSpec]) -> int:
    """Return the bytes of all tensors together."""
    return sum(tensor.num_bytes for tensor in tensors)


def statistics_dtype(tensor: TensorSpec) -> str:
    """Return the dtype of softmax and norm statistics: float64 for float64 tensors, else float32."""
    return "float64" if tensor.dtype == "float64" else "float32"


def require(condition: bool, rule: str, *tensors: TensorSpec) -> None:
    """Raise KernelError with the rule and the shapes unless the condition holds."""
    if not condition:
        raise KernelError(f"{rule}; got shapes {', '.join(str(list(tensor.shape)) for tensor in tensors)}")
