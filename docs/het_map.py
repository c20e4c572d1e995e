"""The tables of docs/recommendation.md on HET: bytes and step times of workers with a cache, beside those without one.

.venv/bin/python docs/het_map.py
"""

from collections.abc import Sequence

import click

from scenarios.library.shipped import FOLDER
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.recommendation.summary import ParameterServerSummary

SCENARIO = FOLDER / "papers" / "het-wide-deep-kaggle-8-turing.yaml"
BYTES_OF = ("parameter_server={workers: 4, read_bound: %d, write_bound: %d}", "model=null", "cluster=null")
BOUNDS, ZIPFS = (0, 10, 100), (1.05, 1.2, 1.5, 2.0)
NETWORKS, WORKERS = ("1 Gbit/s", "10 Gbit/s", "100 Gbit/s"), (8, 32)
FEWER = "trace={batch_size: 128, num_batches: 40, num_unmeasured: 80}"
NIC = "cluster.topology.nodes.nic.bandwidth"


def found(zipf: float, overrides: Sequence[str]) -> ParameterServerSummary:
    """Return the answers of the scenario with another popularity and other values of keys."""
    rows = [table.num_rows for table in load_scenario(SCENARIO).tables]
    tables = ", ".join(f"{{name: C{place}, num_rows: {count}, zipf: {zipf}}}" for place, count in enumerate(rows))
    scenario = load_scenario(SCENARIO, [f"tables=[{tables}]", *overrides])
    servers: ParameterServerSummary = scenario.workload.simulate(scenario).summary.parameter_server
    return servers


def show_bytes() -> None:
    """Print bytes over skew and bound."""
    for zipf in ZIPFS:
        parts = [BYTES_OF[0] % (bound, bound) for bound in BOUNDS]
        fractions = [found(zipf, [part, *BYTES_OF[1:]]).bytes_of_uncached for part in parts]
        shown = " | ".join(f"{fraction:.2%}" for fraction in fractions)
        click.echo(f"| {zipf:g} | {shown} | {1 / fractions[-1]:.1f} |")


def show_times(zipf: float, bound: int, network: str, num_workers: int) -> None:
    """Print the step of workers, and how many times as fast it is as without a cache, by the place of dense layers."""
    server = f"parameter_server={{workers: {num_workers}, servers: 1, read_bound: {bound}, write_bound: {bound}}}"
    times = found(zipf, [server, FEWER, f"{NIC}={network}", f"cluster.num_nodes={num_workers}"]).times
    assert times is not None
    gains = times.uncached_step_s / times.step_s, times.uncached_servers_step_s / times.step_s
    shown = " | ".join(f"{gain:.2f}" for gain in gains)
    click.echo(f"| {zipf:g} | {bound} | {network} | {num_workers} | {times.step_s * 1e3:.2f} ms | {shown} |")


def main() -> None:
    """Print both tables."""
    show_bytes()
    for zipf in ZIPFS[:2]:
        for bound in BOUNDS:
            show_times(zipf, bound, NETWORKS[0], WORKERS[0])
    for network in NETWORKS:
        for num_workers in WORKERS:
            if (network, num_workers) != (NETWORKS[0], WORKERS[0]):
                show_times(1.2, 100, network, num_workers)


if __name__ == "__main__":
    main()
