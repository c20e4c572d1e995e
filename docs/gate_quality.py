"""The table of docs/moe_systems.md on time to quality: recorded curves of small models, with simulated step times.

.venv/bin/python -m docs.gate_quality
"""

from typing import Any

import click
import numpy as np
from msgspec.structs import replace

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from docs.dts_map import CLUSTERS, RANKS, SWITCH, step
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.dense_to_sparse import DenseToSparse
from traces.quality import FOLDER, QualityCurve, curve_of, read_curves

TEMPERATURES = (2.0, 0.7, 0.3, 0.15)
EXPERTS = 8
"""As many as the recorded models have; all sizes else are those of docs/dts_map.py."""


def priced_steps(prices: ClusterPricing, batch: int) -> np.ndarray:
    """Return active experts, FLOP and seconds of steps at some temperatures [3, steps]; one active expert is Switch."""
    switch = replace(SWITCH, num_experts=EXPERTS)
    points = [(1.0, *step(switch, batch, prices))]
    for temperature in TEMPERATURES:
        schedule = DenseToSparse(start=temperature, end=temperature)
        gate: Any = {"gate": "dense_to_sparse", "dense_to_sparse": schedule}
        points.append((schedule.active_experts(EXPERTS), *step(replace(switch, **gate), batch, prices)))
    return np.array(sorted(points)).T


def ratios(switch: QualityCurve, dense: QualityCurve, loss: float, steps: np.ndarray) -> list[float]:
    """Return how many times as many steps, FLOP and seconds Switch takes to a loss as the dense-to-sparse gate."""
    active, *costs = steps
    found = [switch.steps_to(loss) / dense.steps_to(loss)]
    for cost in costs:
        of_switch, of_dense = (
            curve.time_to(loss, list(np.interp(curve.active_experts, active, cost))) for curve in (switch, dense)
        )
        found.append(of_switch / of_dense)
    return found


def main() -> None:
    """Print the rows of the table."""
    curves = read_curves(FOLDER / "python_help.csv")
    switch, dense = (curve_of(curves, curves[0].model, gate) for gate in ("switch", "dense_to_sparse"))
    worst = max(float(curve.metric.min()) for curve in (switch, dense))
    name, nodes = CLUSTERS[0]
    node = load_node(name)
    prices = ClusterPricing(Cluster(node, nodes, RANKS // nodes), load_profile(node.device.generation))
    for batch in (1, 8):
        steps = priced_steps(prices, batch)
        for loss in (3.0, 2.8, np.ceil(worst * 100) / 100):
            cells = " | ".join(f"{ratio:.2f}" for ratio in ratios(switch, dense, loss, steps))
            click.echo(f"| {batch} | {loss:.2f} | {cells} |")


if __name__ == "__main__":
    main()
