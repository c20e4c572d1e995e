"""Overheads of a training framework: launches, late members of collectives, slow paths of libraries.

An eager framework launches every kernel from a host thread that runs ahead of the device. If kernels are short, the
device waits for the thread. Kernels of another library, or on other data, than those behind a profile differ from it by
a factor.
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from costmodels.hardware import DeviceSpec
from costmodels.kernels.expert_gates import MIXED_KERNELS, NEAR_KERNELS
from costmodels.kernels.moe import GROUP_LIMITED_KERNELS, ROUTING_BACKWARD_KERNELS, ROUTING_KERNELS
from costmodels.kernels.tensor import BYTES_PER_ELEMENT, Family, Work
from costmodels.roofline import KernelTime

ALIGNMENT_BYTES: Final = 4
"""From Ampere on, products copy rows to shared memory asynchronously, by 4, 8 or 16 bytes (PTX ISA, cp.async).

Rows of an odd number of 2-byte elements cannot be, and take a slow path. Rows that begin at multiples of 4 or 8 bytes
lose less (NVIDIA, Matrix Multiplication Background User's Guide, asks for 16), which is left out.
"""
UNFUSED_SOFTMAX_FORWARD: Final = 7
UNFUSED_SOFTMAX_BACKWARD: Final = 5
"""Kernels in the place of one fused scaled, masked softmax: Megatron-LM, fused_softmax.py, forward_torch_softmax.

Forward: to float32, scale, two to make the mask, fill, softmax, to half precision. Backward: two casts, softmax, fill,
scale.
"""
NATIVE_PART: Final = 0.5
"""Default of ``native_launch_s``, as a fraction of ``launch_s``.

Assumption: autograd spends on an op what forward does, and its backward has two kernels, for input and for weight.
"""
GPU_RESERVE_BYTES: Final = 3 * 2**29
"""Default of ``memory_reserve_bytes`` on a GPU.

The median over published out-of-memory reports of training on 4 to 16 GPUs, in GiB that the process held beside torch's
allocator (context, libraries, communicators): github.com/wbfwonderful/Vad-R1 issue 11: 1.43; rwth-i6/returnn issue
1469: 1.62; awslabs/keys_values issue 92: 1.11; huggingface/peft issue 1703: 1.94; pixeli99/SVD_Xtend issue 39: 3.48;
huggingface/trl issue 3436: 0.36; minerva4ai-eu/minerva-benchmarks issue 42: 1.49. What the allocator holds and cannot
use is not part of it: in four of these reports 0.08 to 0.66 GiB, in the other three 2.6 to 37, which expandable
segments cure.
"""
_SOFTMAX: Final = frozenset({"causal_softmax", "causal_softmax_backward"})
_BATCHED: Final = "attention_"
_ROUTING: Final[Mapping[str, int]] = {
    "route": ROUTING_KERNELS, "route_exact": ROUTING_KERNELS, "route_k_top_1": ROUTING_KERNELS,
    "route_group_limited": GROUP_LIMITED_KERNELS, "route_backward": ROUTING_BACKWARD_KERNELS,
    "route_k_top_1_backward": ROUTING_BACKWARD_KERNELS, "route_gshard": ROUTING_KERNELS,
    "route_dense_to_sparse": ROUTING_KERNELS, "route_softmax_backward": ROUTING_BACKWARD_KERNELS,
    "route_expert_choice": ROUTING_KERNELS, "route_base": ROUTING_KERNELS, "choose_exact": ROUTING_KERNELS,
    "route_near": NEAR_KERNELS, "route_mixed": MIXED_KERNELS,
    "route_biased": GROUP_LIMITED_KERNELS, "route_biased_backward": ROUTING_BACKWARD_KERNELS,
}  # fmt: skip
_SUMMING: Final = frozenset({"combine", "dispatch_backward"})


class Software(Struct, frozen=True, kw_only=True):
    """Constants of a framework. As it stands it adds nothing.

    Host times. ``launch_s``: per kernel that Python launches (forward, recomputation). ``native_launch_s``: per kernel
    that autograd launches, per collective and per message; None: ``NATIVE_PART`` of ``launch_s``. ``task_launch_s``: of
    a micro-batch's forward or backward before its first kernel. ``graph_launch_s``: of a forward or backward that is a
    captured graph, launched as a whole; its kernels need no launch of their own, and messages between ranks stay
    outside (None: no graphs).

    Factors on the profile's times. ``product_slowdown``, ``memory_bound_slowdown``, ``optimizer_slowdown``: for
    products, memory-bound kernels and the optimizer's kernels. ``unaligned_slowdown``: a further factor for products
    with a matrix whose rows are no multiple of 4 bytes.

    Kernels. ``fused_softmax``: a scaled, masked softmax is one kernel. ``fused_routing``: the choice of experts is one
    kernel. ``fused_permutation``: experts' outputs are summed token by token, not added slot by slot.

    Memory. ``memory_reserve_bytes``: of every device, held beside tensors: context, communicators, and fragmentation
    where the user adds it; None: ``GPU_RESERVE_BYTES`` of a GPU, nothing of a CPU.

    Deviations. ``rank_skew_s``: of the arrival times of a collective's members. ``step_spread``: of the logarithm of
    measured over predicted step times that remains with these constants, beside the errors of kernels and network.
    """

    launch_s: float = 0.0
    native_launch_s: float | None = None
    task_launch_s: float = 0.0
    graph_launch_s: float | None = None
    rank_skew_s: float = 0.0
    product_slowdown: float = 1.0
    unaligned_slowdown: float = 1.0
    memory_bound_slowdown: float = 1.0
    optimizer_slowdown: float = 1.0
    step_spread: float = 0.0
    memory_reserve_bytes: int | None = None
    fused_softmax: bool = True
    fused_routing: bool = True
    fused_permutation: bool = True

    @property
    def launches(self) -> bool:
        """Return whether launching takes any time."""
        return max(self.launch_s, self.from_autograd_s, self.task_launch_s, self.graph_launch_s or 0.0) > 0.0

    def reserve_bytes(self, device: DeviceSpec) -> int:
        """Return the memory of a device that no tensor can take."""
        if self.memory_reserve_bytes is not None:
            return self.memory_reserve_bytes
        return GPU_RESERVE_BYTES if device.kind == "gpu" else 0

    def room_bytes(self, device: DeviceSpec) -> int:
        """Return the memory of a device that tensors can take."""
        return max(0, device.memory_bytes - self.reserve_bytes(device))

    @property
    def from_autograd_s(self) -> float:
        """Return the host time per kernel that autograd launches, per collective and message."""
        return NATIVE_PART * self.launch_s if self.native_launch_s is None else self.native_launch_s

    def kernel_launch_s(self, kernel: str, *, native: bool) -> float:
        """Return the host time of launching a kernel; ``native``: from autograd, not from Python."""
        each_s = self.from_autograd_s if native else self.launch_s
        if kernel in _SOFTMAX and not self.fused_softmax:
            return each_s * (UNFUSED_SOFTMAX_BACKWARD if native else UNFUSED_SOFTMAX_FORWARD)
        return each_s if self.fuses(kernel) else each_s * _ROUTING.get(kernel, 1)

    def fuses(self, kernel: str) -> bool:
        """Return whether a kernel of a layer of experts is one kernel."""
        return (self.fused_routing or kernel not in _ROUTING) and (self.fused_permutation or kernel not in _SUMMING)

    def slowed(self, time: KernelTime, work: Work, family: Family, kernel: str, dtype: str) -> KernelTime:
        """Return the time of a kernel that takes ``time`` under the profile."""
        factor = {
            "gemm": self.product_slowdown,
            "elementwise": self.memory_bound_slowdown,
            "optimizer": self.optimizer_slowdown,
        }.get(family, 1.0)
        if family == "gemm" and is_unaligned(work, kernel, dtype):
            factor *= self.unaligned_slowdown
        if factor == 1.0:
            return time
        return replace(time, compute_s=time.compute_s * factor, memory_s=time.memory_s * factor)

    def waiting_s(self, group_size: int) -> float:
        """Return the expected delay of a group's last member after its mean member, in seconds.

        It is the expected largest of n normal deviates, by Blom's approximation (1958).
        """
        if self.rank_skew_s == 0.0 or group_size < 2:
            return 0.0
        return self.rank_skew_s * NormalDist().inv_cdf((group_size - 0.375) / (group_size + 0.25))


def is_unaligned(work: Work, kernel: str, dtype: str) -> bool:
    """Return whether a matrix of a product has rows that cannot be copied asynchronously.

    Rows of activations and weights are n or k long; those of a weight gradient's operands m and n. Attention's batched
    products have heads for rows and are taken as aligned.
    """
    shape = work.gemm
    if shape is None or kernel.startswith(_BATCHED):
        return False
    lengths = (shape.m, shape.n) if kernel.endswith("weight_gradient") else (shape.n, shape.k)
    return any(length * BYTES_PER_ELEMENT[dtype] % ALIGNMENT_BYTES for length in lengths)
