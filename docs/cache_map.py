"""The table and the picture of docs/recommendation.md on Colossal-AI's cached embedding: speed over rows on the device.

.venv/bin/python docs/cache_map.py        # some minutes of processor time

It prints the table, and draws docs/cache.svg.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import matplotlib as mpl
from matplotlib.figure import Figure

from scenarios.library.shipped import FOLDER
from scenarios.workloads.loading import load_scenario

SCENARIO: Final = FOLDER / "papers" / "cached-embedding-dlrm-kaggle-a100.yaml"
FRACTIONS: Final = (0.005, 0.015, 0.05, 0.2)
BATCHES: Final = (4096, 16384)
ORDERS: Final = ("evict_first", "fetch_first")
ACCEPTED: Final = 0.8
"""The part of the speed that a cache is to keep at 1.5 %."""


def step_s(batch_size: int, fraction: float, order: str) -> float:
    """Return the seconds of a step with a part of the rows on the device."""
    keys = f"cache.fraction={fraction}", f"cache.order={order}", f"trace.batch_size={batch_size}"
    scenario = load_scenario(SCENARIO, list(keys))
    time_s: float = scenario.workload.simulate(scenario).summary.step.iteration_time_s
    return time_s


def speeds(batch_size: int) -> dict[str, list[float]]:
    """Return the speed over fractions, by order of moves, as a part of that of all rows on the device; print them."""
    whole_s = step_s(batch_size, 1.0, ORDERS[0])
    found = {order: [whole_s / step_s(batch_size, fraction, order) for fraction in FRACTIONS] for order in ORDERS}
    for order, parts in found.items():
        click.echo(f"| {batch_size:,} | `{order}` | {' | '.join(f'{part:.0%}' for part in parts)} |")
    return found


def draw(found: Mapping[int, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Draw speeds over fractions."""
    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, (batch_size, by_order) in enumerate(found.items()):
        for order, style in zip(ORDERS, ("o-", "o--"), strict=True):
            parts = [100 * part for part in by_order[order]]
            axes.plot(FRACTIONS, parts, style, color=f"C{number}", label=f"{batch_size:,} samples, {order}")
    axes.axhline(100 * ACCEPTED, color="black", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", ylim=(0, 100), xlabel="rows on the device", ylabel="speed of all rows there, %")
    axes.set_xticks(FRACTIONS, [f"{100 * fraction:g} %" for fraction in FRACTIONS])
    axes.minorticks_off()
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the table and draw the picture."""
    mpl.rcParams["svg.hashsalt"] = "meshtwin"
    draw({batch_size: speeds(batch_size) for batch_size in BATCHES}, Path(__file__).parent / "cache.svg")


if __name__ == "__main__":
    main()
