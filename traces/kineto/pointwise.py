"""Kernels bound by memory in a profile that has shapes: how many bytes each moved, and how long it took."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import msgspec

from traces.kineto.document import Event, decode, sources

_OPERANDS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("tanh", "sigmoid", "relu", "gelu", "silu", "neg", "exp", "sqrt", "clamp", "clamp_min"), 1),
    **dict.fromkeys(("add", "add_", "mul", "mul_", "sub", "sub_", "div", "div_"), 2),
    **dict.fromkeys(("tanh_backward", "sigmoid_backward", "threshold_backward", "gelu_backward", "silu_backward"), 2),
    "fill_": 0, "zero_": 0, "copy_": 1, "native_layer_norm": 1, "native_layer_norm_backward": 2,
}  # fmt: skip
"""Of operators of torch with one kernel, how many tensors of the first's shape it reads at most; it writes one."""
_PREFIX: Final = "aten::"
_BYTES: Final = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long": 8}
_NESTED: Final = 16
"""Calls of a thread that are looked at, back from a launch, for the one that encloses it most closely."""


@dataclass(frozen=True, slots=True)
class PointwiseKernel:
    """One kernel: the operator of torch that launched it alone, the bytes read and written, and its seconds."""

    operator: str
    num_bytes: int
    seconds: float


def pointwise_kernels(path: Path) -> list[PointwiseKernel]:
    """Return the kernels of a profile whose bytes their operator and its shapes tell, in the order of their launches.

    Operands of other shapes than the first, by broadcasting, and operators of several kernels are left out. ``path``: a
    trace, or a folder or archive of them. Raises TraceError where there is none.
    """
    with sources(path) as found:
        return [kernel for source in found for kernel in _of_rank(decode(source).events or [])]


def _of_rank(events: Sequence[Event]) -> Iterator[PointwiseKernel]:
    calls: dict[str, list[Event]] = defaultdict(list)
    launches: dict[int, Event] = {}
    kernels: list[Event] = []
    for event in events:
        kind = event.cat.lower() if isinstance(event.cat, str) else ""
        if event.args is None or type(event.ts) not in {int, float} or type(event.dur) not in {int, float}:
            continue
        if kind == "cpu_op":
            calls[str(event.tid)].append(event)
        elif kind in {"cuda_runtime", "cuda_driver"}:
            launches[event.args.correlation] = event
        elif kind == "kernel":
            kernels.append(event)
    for ours in calls.values():
        ours.sort(key=lambda call: (call.ts, -call.dur))
    by_call = [(_caller(launches.get(kernel.args.correlation), calls), kernel) for kernel in kernels if kernel.args]
    launched = Counter(id(call) for call, _ in by_call)
    for call, kernel in by_call:
        num_bytes = _moved_bytes(call) if call is not None and launched[id(call)] == 1 else 0
        if call is not None and num_bytes and kernel.dur > 0:
            yield PointwiseKernel(call.name.removeprefix(_PREFIX), num_bytes, kernel.dur * 1e-6)


def _caller(launch: Event | None, calls: Mapping[str, Sequence[Event]]) -> Event | None:
    """Return the innermost operator that a launch happened in."""
    if launch is None:
        return None
    ours = calls.get(str(launch.tid), ())
    last = bisect_right(ours, launch.ts, key=lambda call: call.ts)
    nested = reversed(ours[max(last - _NESTED, 0) : last])
    return next((call for call in nested if call.ts + call.dur >= launch.ts), None)


def _moved_bytes(call: Event) -> int:
    """Return what an operator reads and writes, 0 where it cannot be told. A number is no tensor."""
    most = _OPERANDS.get(str(call.name).removeprefix(_PREFIX))
    if most is None or call.args is None:
        return 0
    try:
        shapes, types = msgspec.json.decode(call.args.input_dims), msgspec.json.decode(call.args.input_types)
    except msgspec.DecodeError:
        return 0
    tensors = [(shape, kind) for shape, kind in zip(shapes, types, strict=False) if shape and kind in _BYTES]
    if not tensors or not all(isinstance(size, int) for size in tensors[0][0]):
        return 0
    shape, kind = tensors[0]
    operands = tensors[:most]
    if any(other != shape for other, _ in operands):
        return 0
    return int(prod(shape)) * (_BYTES[kind] + sum(_BYTES[other] for _, other in operands))
