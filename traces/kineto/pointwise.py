"""Memory-bound kernels in a profile with shapes: the bytes and seconds of each."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from traces.errors import TraceError
from traces.kineto.collective import data_type
from traces.kineto.document import Event, correlation_of, decode, sources
from traces.kineto.events import enclosing, kind_of_activity, sort_out
from traces.kineto.rank import US

_READ: Final[Mapping[str, slice]] = {
    **dict.fromkeys(("tanh", "sigmoid", "relu", "gelu", "silu", "neg", "exp", "sqrt", "clamp", "clamp_min"), slice(1)),
    **dict.fromkeys(("add", "add_", "mul", "mul_", "sub", "sub_", "div", "div_"), slice(2)),
    **dict.fromkeys(
        ("tanh_backward", "sigmoid_backward", "threshold_backward", "gelu_backward", "silu_backward"), slice(2)
    ),
    **dict.fromkeys(("fill_", "zero_"), slice(0)),
    "copy_": slice(1, 2),
    "native_layer_norm": slice(1),
    "native_layer_norm_backward": slice(2),
}
"""The tensors, all of the first's shape, that an operator of torch with one kernel reads.

It writes one more, or the first.
"""
_PREFIX: Final = "aten::"


class PointwiseKernel(Struct, frozen=True):
    """One kernel: the operator of torch that launched it alone, the bytes read and written, and its seconds."""

    operator: str
    num_bytes: int
    seconds: float


def pointwise_kernels(path: Path, device: str = "") -> list[PointwiseKernel]:
    """Return the kernels of a profile whose bytes follow from their operator and its shapes, in launch order.

    Operands of other shapes than the first, by broadcasting, and operators of several kernels are left out.
    ``path``: a trace, or a folder or archive of them.
    ``device``: a word in the names of the devices, if the profiler recorded any.

    Raises TraceError without a trace, and for one of other devices.
    """
    kernels: list[PointwiseKernel] = []
    with sources(path) as found:
        for source in found:
            document = decode(source)
            _refuse_other_devices(source.name, document.devices, device)
            kernels += _of_rank(document.events or [])
    return kernels


def _refuse_other_devices(file: str, devices: Any, device: str) -> None:
    listed = devices if isinstance(devices, list) else []
    names = dict.fromkeys(str(entry["name"]) for entry in listed if isinstance(entry, dict) and entry.get("name"))
    if names and not any(device.lower() in name.lower() for name in names):
        rule = f"this was recorded on {', '.join(names)}, and the profile is one of {device}"
        raise TraceError(file, rule, "name a trace of the profile's devices", key="deviceProperties")


def _of_rank(events: Sequence[Event]) -> Iterator[PointwiseKernel]:
    found = sort_out(events, with_operators=True)
    kernels = [event for event in found.device if kind_of_activity(event) == "compute"]
    by_call = [(_caller(found.launches.get(correlation_of(kernel)), found.operators), kernel) for kernel in kernels]
    launched = Counter(id(call) for call, _ in by_call)
    for call, kernel in by_call:
        num_bytes = _moved_bytes(call) if call is not None and launched[id(call)] == 1 else 0
        if call is not None and num_bytes and kernel.dur > 0:
            yield PointwiseKernel(call.name.removeprefix(_PREFIX), num_bytes, kernel.dur * US)


def _caller(launch: Event | None, operators: Mapping[str, Sequence[Event]]) -> Event | None:
    """Return the innermost operator that encloses a launch."""
    return next(iter(enclosing(operators.get(str(launch.tid), ()), launch.ts)), None) if launch is not None else None


def _moved_bytes(call: Event) -> int:
    """Return the bytes that an operator reads and writes, 0 if unknown. A number is no tensor.

    With operands of several types the result's type is unknown, unless it overwrites the first.
    """
    name = str(call.name).removeprefix(_PREFIX)
    if name not in _READ or call.args is None:
        return 0
    try:
        shapes = msgspec.json.decode(call.args.input_dims, type=list[list[Any]])
        types = msgspec.json.decode(call.args.input_types, type=list[str])
    except msgspec.MsgspecError:
        return 0
    tensors = [(shape, data_type(kind)[1]) for shape, kind in zip(shapes, types, strict=False) if shape]
    if not tensors:
        return 0
    (shape, written), operands = tensors[0], tensors[_READ[name]]
    sizes = [size for _, size in operands]
    is_shape = all(type(length) is int and length >= 0 for length in shape)
    alike = is_shape and all(other == shape for other, _ in operands)
    known = min([written, *sizes]) > 0 and (name.endswith("_") or len({written, *sizes}) == 1)
    return prod(shape) * (written + sum(sizes)) if alike and known else 0
