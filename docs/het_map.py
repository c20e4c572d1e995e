"""The tables and the picture of docs/recommendation.md on HET: bytes and steps of workers with a cache, beside others.

.venv/bin/python docs/het_map.py        # three minutes of processor time

It prints the tables, and draws docs/het.svg.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import matplotlib as mpl
from matplotlib.figure import Figure
from msgspec import Struct

from scenarios.library.shipped import FOLDER
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.recommendation.summary import ParameterServerSummary

SCENARIO: Final = FOLDER / "papers" / "het-wide-deep-kaggle-8-turing.yaml"
BYTES_OF: Final = ("parameter_server={workers: 4, read_bound: %d, write_bound: %d}", "model=null", "cluster=null")
BOUNDS: Final = (0, 10, 100)
ZIPFS: Final = (1.05, 1.2, 1.5, 2.0)
NETWORKS: Final = ("1 Gbit/s", "10 Gbit/s", "100 Gbit/s")
WORKERS: Final = (8, 16, 32, 64)
SPEEDUPS: Final = (1, 2, 5, 10, 20)
FEWER: Final = "trace={batch_size: 128, num_batches: 40, num_unmeasured: 80}"
NIC: Final = "cluster.topology.nodes.nic.bandwidth"
SAVED: Final = 0.88
FASTER: Final = 20.68
"""The figures of HET's abstract: bytes of embeddings that are saved, and how many times as fast steps are."""


class Steps(Struct, frozen=True, kw_only=True):
    """Steps of workers with a cache: how many times as fast as without one, by where the dense layers lie then."""

    zipf: float
    bound: int
    network: str
    num_workers: int
    step_s: float
    as_parallax: float
    as_tensorflow: float


def found(zipf: float, overrides: Sequence[str]) -> ParameterServerSummary:
    """Return the answers of the scenario with another popularity and other values of keys."""
    rows = [table.num_rows for table in load_scenario(SCENARIO).tables]
    tables = ", ".join(f"{{name: C{place}, num_rows: {count}, zipf: {zipf}}}" for place, count in enumerate(rows))
    scenario = load_scenario(SCENARIO, [f"tables=[{tables}]", *overrides])
    servers: ParameterServerSummary = scenario.workload.simulate(scenario).summary.parameter_server
    return servers


def bytes_left(zipf: float) -> list[float]:
    """Return the bytes, of those of workers without a cache, over bounds; print them."""
    parts = [BYTES_OF[0] % (bound, bound) for bound in BOUNDS]
    fractions = [found(zipf, [part, *BYTES_OF[1:]]).bytes_of_uncached for part in parts]
    shown = " | ".join(f"{fraction:.2%}" for fraction in fractions)
    click.echo(f"| {zipf:g} | {shown} | {1 / fractions[-1]:.1f} |")
    return fractions


def steps(zipf: float, bound: int, network: str, num_workers: int) -> Steps:
    """Return the steps of workers of one server; print them."""
    server = f"parameter_server={{workers: {num_workers}, servers: 1, read_bound: {bound}, write_bound: {bound}}}"
    times = found(zipf, [server, FEWER, f"{NIC}={network}", f"cluster.num_nodes={num_workers}"]).times
    assert times is not None
    here = Steps(
        zipf=zipf, bound=bound, network=network, num_workers=num_workers, step_s=times.step_s,
        as_parallax=times.uncached_step_s / times.step_s, as_tensorflow=times.uncached_servers_step_s / times.step_s,
    )  # fmt: skip
    shown = f"{here.step_s * 1e3:.2f} ms | {here.as_parallax:.2f} | {here.as_tensorflow:.2f}"
    click.echo(f"| {zipf:g} | {bound} | {network} | {num_workers} | {shown} |")
    return here


def over_bounds() -> Iterator[Steps]:
    """Yield steps over skew and bound, of few workers on the slowest network."""
    for zipf in ZIPFS[:2]:
        for bound in BOUNDS:
            yield steps(zipf, bound, NETWORKS[0], WORKERS[0])


def over_networks() -> Iterator[Steps]:
    """Yield steps over network and workers."""
    for network in NETWORKS:
        for num_workers in WORKERS:
            yield steps(ZIPFS[1], BOUNDS[-1], network, num_workers)


def draw(saved: Sequence[Sequence[float]], over: Sequence[Steps], path: Path) -> None:
    """Draw the bytes that are saved over bounds, and speedups over workers, with the figures of the abstract."""
    figure = Figure(figsize=(10.0, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for zipf, fractions in zip(ZIPFS, saved, strict=True):
        left.plot(range(len(BOUNDS)), [100 * (1 - each) for each in fractions], "o-", label=f"Zipf {zipf:g}")
    left.axhline(100 * SAVED, color="black", linewidth=0.8, linestyle=":", label="HET's abstract")
    left.set(xlabel="bounds of reads and writes", ylabel="bytes of embeddings saved, %")
    left.set_xticks(range(len(BOUNDS)), list(map(str, BOUNDS)))
    left.legend()
    for number, network in enumerate(NETWORKS):
        points = [each for each in over if each.network == network]
        workers = [each.num_workers for each in points]
        ours = {"color": f"C{number}"}
        right.plot(workers, [each.as_tensorflow for each in points], "o-", label=f"{network}, as TensorFlow", **ours)
        right.plot(workers, [each.as_parallax for each in points], "o--", label=f"{network}, as Parallax", **ours)
    right.axhline(FASTER, color="black", linewidth=0.8, linestyle=":", label="HET's abstract")
    right.set(xscale="log", yscale="log", xlabel="workers of one server", ylabel="times as fast as without a cache")
    right.set_xticks(WORKERS, list(map(str, WORKERS)))
    right.set_yticks(SPEEDUPS, list(map(str, SPEEDUPS)))
    right.minorticks_off()
    right.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the tables and draw the picture."""
    mpl.rcParams["svg.hashsalt"] = "meshtwin"
    saved = [bytes_left(zipf) for zipf in ZIPFS]
    list(over_bounds())
    draw(saved, list(over_networks()), Path(__file__).parent / "het.svg")


if __name__ == "__main__":
    main()
