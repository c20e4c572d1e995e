"""Measure benchmarks on all processes of a machine at once, interleaved, within a time budget."""

import random
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from statistics import fmean, median
from time import perf_counter

import torch
import torch.distributed as dist

from backends.execution.errors import ExecutionError
from backends.execution.measuring.benchmarks import Benchmark, WindowBenchmark
from backends.execution.measuring.rounds import Measured, Run
from backends.execution.measuring.steps import StepBenchmark
from backends.execution.request import DeviceKind, ExecutionRequest
from backends.execution.result import Execution, RankResult
from backends.execution.silence import SILENCE_S
from backends.torch.launching.local import LocalRanks
from backends.torch.launching.worker import Worker

_WINDOW_S = 0.008
"""Approximate time of a benchmark's repeats: far longer than a clock tick or a scheduler's time slice."""

_FIRST_REPEATS = 3
_FIRST_SHARE = 0.5
_LEAST_REACHED = 4
"""Number of benchmarks that are measured even without time left."""

_MOST_REPEATS = 200
_TIMES_BESIDE = 6
"""Runs of the request beside the benchmarks, in one session."""


def measure(
    benchmarks: Sequence[Benchmark], *, processes: int, budget_s: float, seed: int, device: DeviceKind = "cpu",
    timeout_s: float = SILENCE_S, beside: ExecutionRequest | None = None,
) -> Measured:  # fmt: skip
    """Return every run of every benchmark. A step's figure is that of its slowest rank; other figures are means.

    All processes run a benchmark at the same time. The first round measures benchmarks in the given order for at most
    half of ``budget_s``, and leaves out the rest. Later rounds measure the same benchmarks in random orders until the
    budget is spent; the last round may be incomplete. The launch does not count.
    ``beside``: a request with the same number of ranks. It runs between the benchmarks at even intervals. Its time does
    not count in the budget.
    ``timeout_s``: longest silence of a process. Raises ExecutionError if the machine has too few devices, or if a rank
    fails or does not answer.
    """
    if device == "cuda" and processes > torch.cuda.device_count():
        raise ExecutionError(f"{processes} processes need a CUDA device each; here are {torch.cuda.device_count()}")
    with LocalRanks(processes, device, timeout_s) as all_ranks:
        found = all_ranks.call(_measured, list(benchmarks), budget_s, seed, beside)
    slowest = {benchmark.key for benchmark in benchmarks if isinstance(benchmark, StepBenchmark)}
    runs, results = zip(*found, strict=True)
    together = [_together([run for run in ranks if run], slowest) for ranks in zip(*runs, strict=True)]
    executed = [] if beside is None else [Execution(beside.plan, ranks) for ranks in zip(*results, strict=True)]
    return Measured(together, executed)


def _together(ranks: Sequence[Run], slowest: Set[str]) -> Run:
    """Return one run, combined from the runs of the ranks that took part."""
    found: dict[str, list[float]] = {}
    for key, value in chain.from_iterable(run.figures.items() for run in ranks):
        found.setdefault(key, []).append(value)
    figures = {key: max(values) if key in slowest else fmean(values) for key, values in found.items()}
    by_rank = tuple(run.figures for run in ranks)
    return Run(ranks[0].benchmark, figures, fmean(run.cpu_share for run in ranks), by_rank)


def copy_bandwidths(num_bytes: int = 1 << 26, repeats: int = 10) -> Mapping[str, float]:
    """Return bytes per second of copies within host memory and, with a GPU, from pinned memory to the GPU and back."""
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
    return 1.0 / median(times[1:])


def _measured(
    worker: Worker, benchmarks: Sequence[Benchmark], budget_s: float, seed: int, beside: ExecutionRequest | None
) -> tuple[list[Run | None], list[RankResult]]:
    """Run in a started process."""
    session = _Session(worker, dist.get_world_size(), budget_s, beside)
    runs = session.run(benchmarks, random.Random(seed))
    return runs, session.executed


class _Session:
    """One rank's part of the measurements. All ranks decide alike, by the times of the slowest rank.

    ``executed``: this rank's results of the request that runs between the benchmarks. Deadlines move by its time.
    """

    def __init__(self, worker: Worker, processes: int, budget_s: float, beside: ExecutionRequest | None) -> None:
        self._worker, self._processes, self._beside = worker, processes, beside
        begin_s = perf_counter()
        self._first_deadline_s, self._deadline_s = (begin_s + share * budget_s for share in (_FIRST_SHARE, 1.0))
        self._every_s = budget_s / _TIMES_BESIDE
        self._due_s = begin_s + self._every_s / 2.0
        self._repeats: dict[str, int] = {}
        self.executed: list[RankResult] = []

    def run(self, benchmarks: Sequence[Benchmark], shuffler: random.Random) -> list[Run | None]:
        """Return this rank's runs of every round; None for a run without this rank."""
        runs = self._round(benchmarks, first=True)
        known = [benchmark for benchmark in benchmarks if benchmark.key in self._repeats]
        while not self._is_past(self._deadline_s):
            shuffler.shuffle(known)
            runs += self._round(known, first=False)
        return runs

    def _round(self, benchmarks: Sequence[Benchmark], *, first: bool) -> list[Run | None]:
        """Run benchmarks in their order until the deadline. The first few run even after it."""
        runs: list[Run | None] = []
        for count, benchmark in enumerate(benchmarks):
            if count >= _LEAST_REACHED and self._is_past(self._first_deadline_s if first else self._deadline_s):
                break
            if self._beside is not None and self._is_past(self._due_s):
                self._execute(self._beside)
            if benchmark.key not in self._repeats:
                self._repeats[benchmark.key] = self._fitting_repeats(benchmark)
            repeats = self._repeats[benchmark.key]
            result = self._run(benchmark, repeats)
            runs.append(
                None if result is None
                else Run(benchmark.key, benchmark.figures(result, repeats), result.cpu_s / result.step_s)
            )  # fmt: skip
        return runs

    def _run(self, benchmark: Benchmark, repeats: int) -> RankResult | None:
        plan, iterations, timing = benchmark.request(self._processes, repeats)
        return self._worker.run(ExecutionRequest(plan=plan, iterations=iterations, timing=timing))

    def _execute(self, beside: ExecutionRequest) -> None:
        begin_s = perf_counter()
        result = self._worker.run(beside)
        assert result is not None  # every rank takes part in the request
        self.executed.append(result)
        spent_s = perf_counter() - begin_s
        self._first_deadline_s += spent_s
        self._deadline_s += spent_s
        self._due_s += self._every_s + spent_s

    def _is_past(self, moment_s: float) -> bool:
        return _agreed(perf_counter() - moment_s) > 0

    def _fitting_repeats(self, benchmark: Benchmark) -> int:
        """Return the number of repeats that fill a window, estimated from a first run; 1 for a step."""
        if not isinstance(benchmark, WindowBenchmark):
            return 1
        result = self._run(benchmark, _FIRST_REPEATS)
        found = benchmark.figures(result, _FIRST_REPEATS).values() if result else ()
        guess_s = _agreed(sum(found))
        return min(max(round(_WINDOW_S / max(guess_s * benchmark.ops_per_repeat, 1e-7)), 2), _MOST_REPEATS)


def _agreed(value: float) -> float:
    """Return the largest of all ranks' values."""
    shared = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return float(shared)
