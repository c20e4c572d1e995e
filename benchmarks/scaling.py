"""The growth of the simulation's cost with the number of ranks: Llama 3 405B on fat trees, by number of replicas.

``python -m benchmarks.scaling`` prints the table; with ``--draw docs/scaling.svg`` it also draws the fit.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import linregress

from benchmarks.measuring import Row, markdown
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate
from scenarios.workloads.steps.scenario import StepScenario

SCENARIO: Final = (
    Path(__file__).parent.parent / "scenarios" / "library" / "clusters" / "llama3-405b-98304-fat-tree.yaml"
)
RANKS: Final = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 98304)
PER_REPLICA: Final = 128


def step_cost(num_ranks: int) -> tuple[float, int]:
    """Return the CPU seconds from the scenario's file to its summary, and the number of simulated ranks."""
    began_s = process_time()
    result = simulate(scaled(num_ranks))
    return process_time() - began_s, len(result.run.programs)


def scaled(num_ranks: int, *overrides: str) -> StepScenario:
    """Return the scenario on ``num_ranks`` ranks."""
    replicas = num_ranks // PER_REPLICA
    sizes = (
        f"cluster.num_nodes={num_ranks // 8}",
        f"training.global_batch_size={16 * replicas}",
        f"parallel.data.degree={replicas}",
    )
    return load_scenario(SCENARIO, [*sizes, *overrides])


def exponent(ranks: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the exponent of the fitted power law (least squares of logarithms), and its standard error."""
    fit = linregress(np.log(ranks), np.log(seconds))
    return float(fit.slope), float(fit.stderr)


def draw(costs: Sequence[tuple[float, int]], path: Path) -> None:
    """Draw CPU time against ranks, with the fitted power law and a line proportional to ranks."""
    seconds = np.array([cost for cost, _ in costs])
    power, _ = exponent(RANKS, seconds)
    ranks, middle = np.array(RANKS), np.exp(np.log([RANKS, seconds]).mean(axis=1))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.loglog(
        ranks, middle[1] * (ranks / middle[0]) ** power, color="0.6", label=f"ranks to the power of {power:.2f}"
    )
    axes.loglog(ranks, seconds[0] * ranks / ranks[0], ":", color="0.6", label="in proportion to ranks")
    axes.loglog(ranks, seconds, "o", color="tab:blue", label="measured")
    for x, (y, classes) in zip(RANKS, costs, strict=True):
        axes.annotate(f"{classes}", (x, y), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=8)
    axes.set(xlabel="ranks of the scenario (at the points: ranks simulated)", ylabel="CPU time of one step, s")
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(arguments: Sequence[str]) -> int:
    """Print the table, draw it if requested, and return the exit code."""
    step_cost(RANKS[0])  # imports and catalogues
    costs = [min(step_cost(ranks) for _ in range(2)) for ranks in RANKS]
    power, error = exponent(RANKS, [seconds for seconds, _ in costs])
    rows = [
        Row(f"Llama 3 405B on {ranks:,} GPUs of a fat tree: CPU time", f"{seconds:.2f} s ({classes} ranks simulated)")
        for ranks, (seconds, classes) in zip(RANKS, costs, strict=True)
    ]
    rows.append(Row("- cost as a power of the number of ranks", f"{power:.2f} ± {error:.2f}", "below 1", power < 1))
    print(markdown(rows))
    if arguments[:1] == ["--draw"]:
        draw(costs, Path(arguments[1]))
    return 0 if power < 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
