"""The facts of a communication kernel: kind, bytes, data type and group, from all sources in the trace.

Recent torch writes the arguments of the collective onto the kernel or onto the call that launched it
(torch/csrc/profiler/util.h names them). Older versions have the call's annotation (``nccl:all_reduce``) with shapes and
types, and the kernel's name. ``bytes`` follow the cost models: the whole tensor of an all_reduce, broadcast or reduce,
the gathered output, the input of a reduce_scatter, one rank's send buffer of an all_to_all, the message of a send or
recv.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from traces.kineto.document import Arguments, whole
from traces.timeline import COLLECTIVE_KINDS, MESSAGE_KINDS

_COMMUNICATION_KERNEL: Final = re.compile(
    r"^(?:nccl|rccl|msccl)\w*Kernel(?:_(?P<nccl>\w+))?"
    r"|\b(?:multimem|one_shot|two_shot)_(?:one_shot_)?(?P<symmetric>\w+?)_kernel"
    r"|\b(?P<reduced>cross_device_reduce)_"
    r"|\bdeep_ep::(?:intra|inter)node"
    r"|^nvshmem"
)
"""Kernels of NCCL and RCCL, torch's symmetric memory, the all_reduce of vLLM and SGLang, DeepEP and NVSHMEM."""
SEND_RECV: Final = "send_recv"
"""Messages in one kernel, which may or may not be an all_to_all: the trace does not state it."""
UNKNOWN: Final = "communication"
COMMUNICATION_KINDS: Final = frozenset({*COLLECTIVE_KINDS, *MESSAGE_KINDS, "gather", "scatter", SEND_RECV, UNKNOWN})
ANNOTATION: Final = "nccl:"
_RANKS: Final = re.compile(r"\[?\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]?")
"""The ranks of a group in full; torch shortens long lists (``[0, 1, ..., 63]``)."""
_MAX_STRIDED: Final = 1 << 20
"""Limit of ranks in a group: no job has more, but a damaged file may claim it."""
_MAX_DIMS: Final = 64
"""Limit of dimensions: no tensor of torch has more."""

_PREFIXES: Final = (
    ("allreduce", "all_reduce"), ("allgather", "all_gather"), ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("reduce", "reduce"), ("barrier", "barrier"),
    ("sendrecv", SEND_RECV), ("send", "send"), ("recv", "recv"), ("gather", "gather"), ("scatter", "scatter"),
)  # fmt: skip
_TYPES: Final[Mapping[str, tuple[str, int]]] = {
    **dict.fromkeys(("double", "float64"), ("fp64", 8)),
    **dict.fromkeys(("float", "float32"), ("fp32", 4)),
    **dict.fromkeys(("half", "float16"), ("fp16", 2)),
    **dict.fromkeys(("bfloat16",), ("bf16", 2)),
    **dict.fromkeys(("long", "longint", "int64", "longlong"), ("int64", 8)),
    **dict.fromkeys(("int", "int32"), ("int32", 4)),
    **dict.fromkeys(("short", "shortint", "int16"), ("int16", 2)),
    **dict.fromkeys(("char", "signedchar", "int8"), ("int8", 1)),
    **dict.fromkeys(("byte", "unsignedchar", "uint8"), ("uint8", 1)),
    **dict.fromkeys(("bool",), ("bool", 1)),
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz"), ("fp8_e4m3", 1)),
    **dict.fromkeys(("float8e5m2", "float8e5m2fnuz"), ("fp8_e5m2", 1)),
}


class Group(Struct, frozen=True):
    """The ranks of a collective: a label, their number (0: unknown), and the ranks (empty: unknown)."""

    label: str = ""
    size: int = 0
    ranks: tuple[int, ...] = ()


class Facts(Struct, frozen=True):
    """The known facts of one communication kernel. ``num_bytes`` is -1 if the trace does not state it.

    ``sequence``: torch's number of the collective in its group. ``peer``: the rank at the other end. -1: unknown.
    """

    kind: str = UNKNOWN
    num_bytes: int = -1
    dtype: str = ""
    group: Group = Group()
    sequence: int = -1
    peer: int = -1


def kind_of(name: str) -> str:
    """Return our name of a collective for torch's name, an annotation or a kernel's name; empty for others."""
    letters = re.sub(r"[^a-z]", "", name.lower().removeprefix(ANNOTATION))
    return next((kind for prefix, kind in _PREFIXES if letters.startswith(prefix)), "")


@lru_cache(maxsize=4096)
def communicates(kernel: str) -> bool:
    """Return whether a kernel of this name communicates; cached, as a trace has many kernels of few names."""
    return _COMMUNICATION_KERNEL.search(kernel) is not None


def kernel_facts(name: str) -> Facts:
    """Return the facts in a kernel's name: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` is an all_reduce."""
    found = _COMMUNICATION_KERNEL.search(name)
    if found is None:
        return Facts()
    return Facts("all_reduce" if found["reduced"] else kind_of(found["nccl"] or found["symmetric"] or "") or UNKNOWN)


def argument_facts(arguments: Arguments, groups: Mapping[str, Group]) -> Facts | None:
    """Return the facts in the arguments of a collective, None without arguments; ``groups`` by torch's name."""
    kind = kind_of(arguments.collective) if isinstance(arguments.collective, str) else ""
    if not kind:
        return None
    dtype, size = data_type(arguments.dtype)
    group = _group(arguments, groups)
    sent, received = _count(arguments.in_elements), _count(arguments.out_elements)
    elements = {"all_gather": received, "gather": received, "recv": received, "barrier": 0}.get(kind, sent)
    if kind in {"all_reduce", "broadcast", "reduce"}:
        elements = max(sent, received)
    known = elements >= 0 and (size or not elements)
    peer = arguments.source_rank if kind == "recv" else arguments.target_rank if kind == "send" else None
    return Facts(kind, elements * size if known else -1, dtype, group, _count(arguments.sequence), _count(peer))


def annotation_facts(name: str, arguments: Arguments | None) -> Facts | None:
    """Return the collective of an annotation such as ``nccl:all_reduce`` with its shapes and types, None for others."""
    kind = kind_of(name) if name.startswith(ANNOTATION) else ""
    if not kind:
        return None
    if arguments is None or kind == "all_gather":
        return Facts(kind)  # an all_gather's input does not determine its output without the group's size
    total, names = 0, set()
    try:
        dims = msgspec.json.decode(arguments.input_dims, type=list[list[int]])
        types = msgspec.json.decode(arguments.input_types, type=list[str])
    except msgspec.MsgspecError:  # tensor lists have another nesting, so the shapes are unusable
        return Facts(kind)
    for shape, type_name in zip(dims, types, strict=False):
        dtype, size = data_type(type_name)
        elements = math.prod(shape[:_MAX_DIMS])
        if not size or not shape or not 0 <= elements < 1 << 53:
            return Facts(kind)
        total += elements * size
        names.add(dtype)
    return Facts(kind, total, names.pop()) if len(names) == 1 else Facts(kind, total if names else -1)


def group_of(ranks: tuple[int, ...]) -> Group:
    """Return the group of known ranks, labelled by them: ``0-3`` or ``0,4,8``."""
    ordered = tuple(sorted(ranks))
    runs = len(ordered) > 2 and ordered == tuple(range(ordered[0], ordered[-1] + 1))
    return Group(f"{ordered[0]}-{ordered[-1]}" if runs else ",".join(map(str, ordered)), len(ordered), ordered)


def groups_of(distributed: Any) -> dict[str, Group]:
    """Return the process groups that the file's ``distributedInfo`` lists, by torch's name."""
    listed = distributed.get("pg_config") if isinstance(distributed, dict) else None
    result = {}
    for entry in listed if isinstance(listed, list) else []:
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        numbers = tuple(_count(rank) for rank in ranks) if isinstance(ranks, list) else ()
        if numbers and min(numbers) >= 0 and len(set(numbers)) == len(numbers):
            result[str(entry.get("pg_name"))] = group_of(numbers)
    return result


def _group(arguments: Arguments, groups: Mapping[str, Group]) -> Group:
    """Return the group by its ranks; else by its name in the file, its first ranks and their number; else by name."""
    size = max(0, _count(arguments.group_size))
    text = arguments.group_ranks if isinstance(arguments.group_ranks, str) else ""
    ranks = tuple(int(word) for word in re.findall(r"\d+", text)) if _RANKS.fullmatch(text) else ()
    if ranks and len(set(ranks)) == len(ranks) and size in {0, len(ranks)}:
        return group_of(ranks)
    name = str(arguments.group_name) if arguments.group_name is not None else ""
    if name in groups and (not size or groups[name].size == size):
        return groups[name]
    first, stride = _count(arguments.first_rank), _count(arguments.rank_stride)
    if first >= 0 and stride > 0 and 0 < size <= _MAX_STRIDED:
        return group_of(tuple(range(first, first + size * stride, stride)))
    return Group(f"group {name}" if name else "", size)


def data_type(name: Any) -> tuple[str, int]:
    """Return our name of a data type and an element's bytes, for torch's name; empty and 0 for an unknown type."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("c10::")) if isinstance(name, str) else ""
    return _TYPES.get(plain, ("", 0))


def _count(value: Any) -> int:
    """Return a whole number below 2^53 (no device has as many elements), -1 for anything else."""
    return whole(value, (1 << 53) - 1)
