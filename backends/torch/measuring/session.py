"""Measure benchmarks on all processes of a machine at once, interleaved, within a time budget."""

import random
import statistics
from collections.abc import Mapping, Sequence
from time import perf_counter

import torch
import torch.distributed as dist

from backends.torch.errors import ExecutionError
from backends.torch.launch import end_process, launch_local
from backends.torch.measuring.benchmarks import Benchmark
from backends.torch.worker import DeviceKind, ExecutionRequest, Worker, joined_worker

_WINDOW_S = 0.008
"""Repeats fill about this long: far more than a clock tick, or a turn of the scheduler."""

_FIRST_REPEATS = 3
_FIRST_SHARE = 0.2
_LEAST_REACHED = 4
"""Benchmarks that are measured however little time there is."""

_MOST_REPEATS = 200


def measure(
    benchmarks: Sequence[Benchmark], *, processes: int, budget_s: float, seed: int, device: DeviceKind = "cpu",
    timeout_s: float = 120.0,
) -> dict[str, list[float]]:  # fmt: skip
    """Return the seconds of one op of each benchmark, one figure per round, by key.

    All processes run a benchmark at the same time; a figure is the mean over ranks of a window of back-to-back
    repeats. At most a fifth of ``budget_s`` goes into first runs, in the order given; what they do not reach is left
    out. Rounds then take the benchmarks, the first in that order, later ones in ever other orders, until the budget is
    spent. The launch is not in it.
    Raises ExecutionError where the machine has too few devices or a rank fails.
    """
    if device == "cuda" and processes > torch.cuda.device_count():
        raise ExecutionError(f"{processes} processes need a CUDA device each; here are {torch.cuda.device_count()}")
    arguments = (list(benchmarks), processes, budget_s, seed, device, timeout_s)
    by_rank = launch_local(processes, _rank_main, arguments)
    measured: dict[str, list[float]] = {}
    for key in by_rank[0]:
        ranks = [by_rank[rank][key] for rank in range(processes) if by_rank[rank][key]]
        measured[key] = [statistics.fmean(values) for values in zip(*ranks, strict=True)]
    return measured


def copy_bandwidths(num_bytes: int = 1 << 26, repeats: int = 10) -> Mapping[str, float]:
    """Return bytes per second of copies within the host, and with a GPU from pinned memory to it and back."""
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.empty(num_bytes, dtype=torch.uint8)
    found = {"host_to_host": _copies_per_s(target, source, repeats) * num_bytes}
    if torch.cuda.is_available():
        pinned, remote = source.pin_memory(), torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        found["host_to_device"] = _copies_per_s(remote, pinned, repeats) * num_bytes
        found["device_to_host"] = _copies_per_s(pinned, remote, repeats) * num_bytes
    return found


def _copies_per_s(target: torch.Tensor, source: torch.Tensor, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        begin_s = perf_counter()
        target.copy_(source)
        if target.is_cuda or source.is_cuda:
            torch.cuda.synchronize()
        times.append(perf_counter() - begin_s)
    return 1.0 / statistics.median(times[1:])


def _rank_main(
    benchmarks: Sequence[Benchmark], processes: int, budget_s: float, seed: int, device: DeviceKind, timeout_s: float
) -> dict[str, list[float]]:
    """Run in a launched process; end it at once where anything fails."""
    try:
        session = _Session(joined_worker(device, timeout_s), processes, budget_s)
        figures = session.run(benchmarks, random.Random(seed))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:  # whatever it is, the process must end and say why
        end_process(error)
    return figures


class _Session:
    """One rank's part. All ranks decide the same: what they decide by is the slowest rank's."""

    def __init__(self, worker: Worker, processes: int, budget_s: float) -> None:
        self._worker, self._processes = worker, processes
        self._first_deadline_s, self._deadline_s = (perf_counter() + share * budget_s for share in (_FIRST_SHARE, 1.0))
        self._repeats: dict[str, int] = {}

    def run(self, benchmarks: Sequence[Benchmark], shuffler: random.Random) -> dict[str, list[float]]:
        """Return one figure per benchmark and round; empty on a rank that takes no part."""
        for benchmark in benchmarks:
            if self._repeats and self._is_past(self._first_deadline_s):
                break
            self._warm_up(benchmark)
        known = [benchmark for benchmark in benchmarks if benchmark.key in self._repeats]
        figures: dict[str, list[float]] = {benchmark.key: [] for benchmark in known}
        reached: set[str] = set()
        while not reached or not self._is_past(self._deadline_s):
            for benchmark in known:
                if len(reached) >= _LEAST_REACHED and self._is_past(self._deadline_s):
                    break
                figure = self._window_s(benchmark, self._repeats[benchmark.key])
                reached.add(benchmark.key)
                if figure is not None:
                    figures[benchmark.key].append(figure)
            shuffler.shuffle(known)
        return {key: values for key, values in figures.items() if key in reached}

    def _is_past(self, moment_s: float) -> bool:
        return _agreed(perf_counter() - moment_s) > 0

    def _warm_up(self, benchmark: Benchmark) -> None:
        """Run a benchmark for the first time, and choose how many repeats fill a window."""
        guess_s = _agreed(self._window_s(benchmark, _FIRST_REPEATS) or 0.0)
        wanted = round(_WINDOW_S / max(guess_s * benchmark.ops_per_repeat, 1e-7))
        self._repeats[benchmark.key] = min(max(wanted, 2), _MOST_REPEATS)

    def _window_s(self, benchmark: Benchmark, repeats: int) -> float | None:
        """Return the seconds of one op, over ``repeats`` repeats after a first one; None without a part in it."""
        plan = benchmark.plan(self._processes, repeats + 1)
        result = self._worker.run(ExecutionRequest(plan=plan))
        if result is None:
            return None
        ends_s = result.ends_s
        first = len(ends_s) // (repeats + 1) - 1
        return (ends_s[-1] - ends_s[first]) / (repeats * benchmark.ops_per_repeat)


def _agreed(value: float) -> float:
    """Return the largest of all ranks' values."""
    shared = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return float(shared)
