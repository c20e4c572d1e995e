"""The rate of the planner's estimates: Llama 3 70B on 64 H100, the first example of docs/planning.md.

``python -m benchmarks.estimator_rate`` prints strategies per second of processor time, of five runs the median.
Pricing of the small plans, once per search, is not counted.
"""

from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time
from typing import Final

import yaml

from benchmarks.measuring import Row, markdown
from scenarios.planning.openings import openings_of
from scenarios.planning.pricing import priced
from scenarios.planning.studied import rows_with_prices
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.sweep.workers import ThisProcess
from sim.planner.estimating import estimate
from sim.planner.prices import Prices
from sim.planner.space import ORDERED, Grid, grid

EXAMPLE: Final = {
    "name": "Llama 3 70B on 64 H100",
    "seed": 0,
    "cluster": {"node": "hgx-h100", "num_nodes": 8},
    "model": {"preset": "llama-3-70b"},
    "training": {"global_batch_size": 128},
}
AIM_PER_S: Final = 20_000
_RUNS: Final = 5


def strategies() -> tuple[Grid, Prices]:
    """Return the example's strategies and their prices."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "example.yaml"
        path.write_text(yaml.safe_dump(EXAMPLE), encoding="utf-8")
        openings = openings_of(read_document(path))
    every = grid(openings.choices(), openings.sizes)
    found = priced(openings, every, ThisProcess())
    return rows_with_prices(every, found), found.prices


def rate_row(name: str, rows: Grid, prices: Prices, aim_per_s: int | None = None) -> Row:
    """Return how many strategies are estimated per second."""
    seconds = []
    for _ in range(_RUNS):
        begin_s = process_time()
        estimate(rows, prices)
        seconds.append(process_time() - begin_s)
    per_s = len(rows) / median(seconds)
    row = Row(f"{name}: {len(rows):,} strategies", f"{per_s:,.0f} per second ({median(seconds):.2f} s)")
    return row if aim_per_s is None else replace(row, target=f"{aim_per_s:,} per second", passed=per_s >= aim_per_s)


if __name__ == "__main__":
    every, prices = strategies()
    others = every.runs(ORDERED)
    print(
        markdown(
            [
                rate_row("all schedules", every, prices, AIM_PER_S),
                rate_row("1f1b and interleaved_1f1b", every.rows(~others), prices),
                rate_row("other schedules", every.rows(others), prices),
            ]
        )
    )
