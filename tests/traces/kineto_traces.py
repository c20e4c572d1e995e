"""Small traces as the PyTorch profiler writes them, made to measure; and the real ones, where this machine has them."""

import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from traces.doubt import Doubt

DEFAULT_FOLDER = Path(__file__).resolve().parents[3] / "shared"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
Event = dict[str, Any]


def shared_trace(name: str) -> Path:
    """Return a real trace; skip the test where the folder of shared measurements is not there."""
    folder = Path(os.environ.get("MESHTWIN_SHARED", DEFAULT_FOLDER)) / "data" / "kineto"
    path = folder / name
    if not path.exists():
        pytest.skip(f"no real trace {name} in {folder} (set MESHTWIN_SHARED)")
    return path


def launch(correlation: int, ts: float, *, tid: int = 1, dur: float = 1.0) -> Event:
    """Return a call that launches device work, at ``ts`` microseconds."""
    arguments = {"External id": correlation, "cbid": 211, "correlation": correlation}
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": tid, "ts": ts, "dur": dur,
        "args": arguments,
    }  # fmt: skip


def activity(
    name: str, ts: float, dur: float, *, stream: int = 7, correlation: int = 0, cat: str = "kernel", **arguments: Any
) -> Event:
    """Return something that the device did, in microseconds; underscores in arguments stand for spaces."""
    others = {key.replace("_", " "): value for key, value in arguments.items()}
    common = {"device": 0, "context": 1, "stream": stream, "correlation": correlation, **others}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": common}


def all_reduce(ts: float, dur: float, *, elements: int = 256, ranks: Sequence[int] = (0, 1), **others: Any) -> Event:
    """Return an all_reduce kernel with its arguments as torch writes them."""
    return activity(
        ALL_REDUCE, ts, dur, stream=20,
        **{
            "Collective_name": "allreduce", "In_msg_nelems": elements, "Out_msg_nelems": elements, "dtype": "Float",
            "Group_size": len(ranks), "Process_Group_Name": "0", "Process_Group_Ranks": str(list(ranks)), **others,
        },
    )  # fmt: skip


def annotation(name: str, ts: float, dur: float, *, tid: int = 1, **arguments: Any) -> Event:
    """Return a span of the host's own naming, such as ``ProfilerStep#3``."""
    others = {key.replace("_", " "): value for key, value in arguments.items()}
    return {
        "ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur,
        "args": {"External id": 1, **others},
    }  # fmt: skip


def memory(ts: float, allocated: int, *, device_type: int = 1) -> Event:
    """Return a record of torch's allocator."""
    arguments = {"Device Type": device_type, "Device Id": 0, "Bytes": 512, "Total Allocated": allocated}
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "ts": ts, "tid": 1, "args": arguments}


def document(events: Iterable[Event], *, rank: int | None = 0, world_size: int = 1, **others: Any) -> dict[str, Any]:
    """Return what a whole file holds."""
    known: Mapping[str, Any] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    distributed = {} if rank is None else {"distributedInfo": known}
    return {"schemaVersion": 1, "deviceProperties": [], **distributed, **others, "traceEvents": list(events)}


def write(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a trace, gzipped where the name says so."""
    raw = json.dumps(content).encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    return path


def texts_of(doubts: Iterable[Doubt]) -> list[str]:
    """Return doubts in words."""
    return [doubt.text for doubt in doubts]
