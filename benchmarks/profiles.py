"""The cost of reading and replaying a profile of a million events."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.measuring import Row, command_cost

MIB: Final = 2**20
NUM_EVENTS: Final = 1_000_000
NUM_STEPS: Final = 10
_PER_LAYER: Final = 20
"""Events of a layer: six operators with their launches and kernels, an all_reduce, and a memory record."""
_LAYER_US: Final = 100.0
_EPOCH_US: Final = 1.7e15
_GEMM: Final = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(Params)"
_RING: Final = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_SHAPES: Final = {"Input Dims": [[4096, 4096], [4096, 1024], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]}
_COLLECTIVE: Final = {
    "Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "dtype": "BFloat16",
    "Group size": 1, "Process Group Name": "0", "Process Group Ranks": "[0]",
}  # fmt: skip
_GRID: Final = {"registers per thread": 128, "grid": [128, 4, 1], "block": [256, 1, 1], "est. achieved occupancy %": 25}
_MEMORY: Final = {
    "Device Type": 1,
    "Device Id": 0,
    "Bytes": 512,
    "Total Allocated": 1 << 30,
    "Addr": 140_000_000_000_000,
}


def profile_rows(command: str) -> Iterator[Row]:
    """Yield the cost of the commands that read and replay a profile of a million events."""
    with TemporaryDirectory() as folder:
        path = write_profile(Path(folder) / "rank0.json")
        size = f"a profile of a million events, {path.stat().st_size / 1e6:.0f} MB"
        for words, what, target_s in (("trace", f"Read {size}", 10.0), ("replay", "- and run it again", None)):
            cost = command_cost([command, words, str(path), "--json"])
            measured = f"{cost.wall_s:.1f} s, {cost.peak_bytes / MIB:.0f} MiB"
            if target_s is None:
                yield Row(what, measured)
            else:
                met = cost.wall_s <= target_s and cost.peak_bytes <= 2048 * MIB
                yield Row(what, measured, f"{target_s:.0f} s, 2048 MiB", met)


def write_profile(path: Path, num_events: int = NUM_EVENTS) -> Path:
    """Write a profile of one rank in the PyTorch profiler's format: operators, and kernels on two streams."""
    per_step = num_events // _PER_LAYER // NUM_STEPS
    head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for step in range(NUM_STEPS):
            begin_us, lasting_us = _EPOCH_US + _LAYER_US * per_step * step, _LAYER_US * per_step
            file.write(json.dumps(_host(f"ProfilerStep#{step}", begin_us, lasting_us, "user_annotation")) + ",\n")
            for layer in range(per_step * step, per_step * (step + 1)):
                file.writelines(json.dumps(event) + ",\n" for event in _layer(layer))
        file.write(json.dumps({"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}) + "\n]}")
    return path


def _layer(number: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one layer."""
    begin_us, first = _EPOCH_US + _LAYER_US * number, 10 * number + 1
    for place in range(6):
        at_us, correlation = begin_us + 15.0 * place, first + place
        yield _host("aten::mm", at_us, 12.0, "cpu_op", **{"External id": correlation, **_SHAPES})
        yield _host("cudaLaunchKernel", at_us + 2, 5.0, "cuda_runtime", correlation=correlation)
        yield _kernel(_GEMM, at_us + 8, 14.0, 7, correlation)
    yield {**_host("[memory]", begin_us + 95.0, 0.0, "cpu_instant_event", **_MEMORY), "ph": "i"}
    yield _kernel(_RING, begin_us + 60.0, 35.0, 20, first + 3, **_COLLECTIVE)


def _host(name: str, ts: float, dur: float, category: str, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur, "args": arguments}


def _kernel(name: str, ts: float, dur: float, stream: int, correlation: int, **arguments: Any) -> dict[str, Any]:
    own = {"device": 0, "context": 1, "stream": stream, "correlation": correlation, **_GRID, **arguments}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": own}


if __name__ == "__main__":
    write_profile(Path(sys.argv[1]))
