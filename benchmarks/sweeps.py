"""The cost of a sweep over 50 strategies for one model, 18 of them with ZeRO-3: ``python -m benchmarks.sweeps``.

Commands are measured from outside, in elapsed seconds: a sweep simulates one point per core at a time. Points that
are nearly equal are simulated in this process, in processor seconds: together, as a sweep does, and one by one.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Final

from benchmarks.measuring import Row, markdown, median_cost
from benchmarks.microbatches import COMMAND, LLAMA
from scenarios.sweep.point import measure
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.workload import Scenario

RECOMPUTED: Final = "training.recompute=none,selective,full"
SIZES: Final = "training.microbatch_size=1,2"

ZERO_3: Final = [
    f"{{tensor: {{degree: {degree}, sequence_parallel: true}}, data: {{degree: {64 // degree}, zero_stage: 3}}}}"
    for degree in (2, 4, 8)
]
"""Sections ``parallel`` of steps with ZeRO-3 and without a pipeline."""

OTHERS: Final = [
    "{tensor: {degree: 8, sequence_parallel: true}, pipeline: {degree: 2}, data: {degree: 4}}",
    "{tensor: {degree: 8, sequence_parallel: true, collective_matmul: true}, pipeline: {degree: 2}, data: {degree: 4}}",
    "{tensor: {degree: 8, sequence_parallel: true}, data: {degree: 8, zero_stage: 2}}",
    "{tensor: {degree: 8, sequence_parallel: true}, pipeline: {degree: 4, schedule: interleaved_1f1b,"
    " virtual_stages: 4}, data: {degree: 2}}",
    "{tensor: {degree: 4, sequence_parallel: true, collective_matmul: true}, pipeline: {degree: 8}, data: {degree: 2}}",
    "{tensor: {degree: 4, sequence_parallel: true}, pipeline: {degree: 4}, data: {degree: 4, zero_stage: 1}}",
    "{tensor: {degree: 4, sequence_parallel: true}, pipeline: {degree: 2}, data: {degree: 8, zero_stage: 2}}",
    "{tensor: {degree: 2, sequence_parallel: true}, pipeline: {degree: 8}, data: {degree: 4}}",
]
"""Sections ``parallel`` of other steps."""

SWEEPS: Final[Mapping[str, tuple[Sequence[str], int]]] = {
    "18 points with ZeRO-3": ((f"parallel={','.join(ZERO_3)}", SIZES, RECOMPUTED), 18),
    "32 other points": ((f"parallel={','.join(OTHERS)}", SIZES, "training.recompute=none,full"), 32),
}
"""The values of keys that each sweep combines, and the number of combinations."""

NEARLY_EQUAL: Final = {
    "under 8 bandwidths": tuple(f"cluster.network.bandwidth={1.0 - 0.1 * number:.1f}x" for number in range(8)),
    "with 8 batches": tuple(f"training.global_batch_size={256 * number}" for number in range(1, 9)),
}
"""Points of one step that share what they can: by the words for them, the key of each and its value."""

MOST_ZERO_3_S: Final = 25.0
MOST_S: Final = 60.0


def rows() -> Iterator[Row]:
    """Yield the elapsed time of each of the two sweeps, and of both together.

    Raises CalledProcessError if a sweep fails, RuntimeError if it refuses a point.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "llama.yaml"
        path.write_text(LLAMA)
        elapsed_s = [_elapsed_s(path, changes, number) for changes, number in SWEEPS.values()]
        for words, changes in NEARLY_EQUAL.items():
            yield from _together_rows(words, [load_scenario(path, [change]) for change in changes])
    for words, wall_s in zip(SWEEPS, elapsed_s, strict=True):
        most_s = MOST_ZERO_3_S if "ZeRO-3" in words else None
        target, passed = ("", None) if most_s is None else (f"{most_s:g} s", wall_s <= most_s)
        yield Row(f"sweep of Llama 3 70B on 64 H100, {words}", f"{wall_s:.1f} s", target, passed)
    yield Row("- all 50 points", f"{sum(elapsed_s):.1f} s", f"{MOST_S:g} s", sum(elapsed_s) <= MOST_S)


def _together_rows(words: str, scenarios: Sequence[Scenario]) -> Iterator[Row]:
    """Yield the cost of points that are nearly equal, one by one and together: medians of three in turn."""
    measure(scenarios[:1], False)  # modules that are imported once
    pairs = [(_cpu_s([[one] for one in scenarios]), _cpu_s([scenarios])) for _ in range(3)]
    alone_s, together_s = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    ratio = statistics.median(together / alone for alone, together in pairs)
    yield Row(f"tensor 8, pipeline 2, {words}: each point by itself, CPU time", f"{alone_s:.2f} s")
    yield Row("- together, as a sweep does", f"{together_s:.2f} s, {ratio:.2f} of it", "less", ratio < 1.0)


def _cpu_s(parts: Sequence[Sequence[Scenario]]) -> float:
    """Return the processor seconds of simulating the points of some parts."""
    began_s = process_time()
    for part in parts:
        measure(part, False)
    return process_time() - began_s


def _elapsed_s(path: Path, changes: Sequence[str], number: int) -> float:
    """Return the median elapsed seconds of three runs of a sweep. Each run simulates ``number`` points."""
    command = [COMMAND, "sweep", str(path), *(word for change in changes for word in ("--set", change))]
    table = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=True).stdout
    if (found := table.count('"iteration_time_s"')) != number:
        raise RuntimeError(f"{found} points simulated, {number} expected: {' '.join(command)}")
    return median_cost([*command, "--json"], 3).wall_s


def main() -> int:
    """Print the table; return the exit code."""
    found = list(rows())
    print(markdown(found))
    return 1 if any(row.passed is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
