"""The number of folded classes that differ in time. No exact folding can have fewer classes.

``python -m benchmarks.alike`` prints the table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.measuring import Row, markdown
from benchmarks.scaling import scaled
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.running.run import SimulatedRun

SWITCH: Final = Path(__file__).parent.parent / "scenarios" / "library" / "llama3-405b-16384-h100.yaml"
SLOW: Final = "[{device: 8201, slowdown: 1.3}]"
"""A device of a stage in the middle of the pipeline."""
_SAME: Final = 1e-10
"""Smaller differences of times, as a fraction of the step, are rounding errors."""


def num_behaviours(run: SimulatedRun) -> int:
    """Return the number of simulated ranks that differ in their program, or in the start or end of any op."""
    unit_s, seen = _SAME * run.makespan_s, set[tuple[object, ...]]()
    for rank, program in run.programs.items():
        times = [(np.round(t.starts_s / unit_s), np.round(t.ends_s / unit_s)) for t in run.task_times(rank)]
        seen.add((id(program), *(part.tobytes() for pair in times for part in pair)))
    return len(seen)


def cases() -> Iterator[tuple[str, StepScenario]]:
    """Yield scenarios of Llama 3 405B with tensor 8, pipeline 16 and data parallelism over the rest, by name."""
    yield "16,384 GPUs on one switch, one of them slow", load_scenario(SWITCH, [f"cluster.stragglers={SLOW}"])
    yield "16,384 GPUs of a fat tree", scaled(16384)
    yield "16,384 GPUs of a fat tree, one of them slow", scaled(16384, f"cluster.topology.stragglers={SLOW}")
    yield "65,536 GPUs of a fat tree", scaled(65536)


def rows() -> Iterator[Row]:
    """Yield, for each case, the number of classes and the number of classes that differ in time."""
    for name, scenario in cases():
        run = simulate(scenario).run
        yield Row(name, f"{len(run.programs)} classes, {num_behaviours(run)} differ in time")


if __name__ == "__main__":
    print(markdown(list(rows())))
