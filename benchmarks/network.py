"""Accuracy and speed of collectives on networks: ``make bench``.

Three tables: one activity compared with step by step, closed forms compared with ASTRA-sim's results, and the time of
both simulators.
Run from the repository's folder, as ``python -m benchmarks.network``.
"""

import gc
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
import pandas as pd

from benchmarks import stepwise
from benchmarks.measuring import Row, markdown
from costmodels.collectives.cost import _cheapest as cheapest
from costmodels.collectives.flows import collective_flows, phased_flows
from costmodels.collectives.network import NetworkParameters
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import plan_of
from sim.cluster.network import Network
from sim.cluster.nominal import Library
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Topology
from sim.engine.running.simulate import simulate
from tests.costmodels.collectives.astra_sim_rules import RULES, pipelined_s, read_rows
from tests.sim.cluster.stepwise_cases import Finding, classified, drawn

ROOT = Path(__file__).parent.parent
SHARED = Path(os.environ.get("MESHTWIN_SHARED", ROOT.parent / "shared")) / "data"
NUM_CASES = 200
RANKS = (8, 64, 512, 4096, 16384, 65536)
CAUSES = {
    "agree": "within 1 %",
    "drift": "unequal ranks: rounds overlap or collide; in lockstep within 1 %",
    "hops": "every hop counts as the slowest; the difference is at most the latency",
    "unexplained": "",
}


# --- one activity against step by step -----------------------------------------------------------------------------


def stepwise_table() -> str:
    """Return the table of random cases: the number that agree, and the causes of the differences of others."""
    findings = [classified(drawn(seed)) for seed in range(NUM_CASES)]
    lines = ["| difference | cases | one activity / step by step | why |", "|---|---|---|---|"]
    for cause, why in CAUSES.items():
        members = [found for found in findings if found.cause == cause]
        lines.append(f"| {cause} | {len(members)} | {_range(members)} | {why} |")
    return "\n".join(lines)


def _range(findings: list[Finding]) -> str:
    ratios = [found.ratio for found in findings]
    return f"{min(ratios):.3f} .. {max(ratios):.3f}" if ratios else "-"


# --- against ASTRA-sim ---------------------------------------------------------------------------------------------


def answers_table(rows: pd.DataFrame) -> str:
    """Return, per class of rows, the errors of our rules and the ratio of the plain closed form to ASTRA-sim."""
    lines = ["| class | rows | mean error | largest | ours / theirs | its rules |", "|---|---|---|---|---|---|"]
    for family, rule in RULES.items():
        members = [row for _, row in rows[rows.family == family].iterrows()]
        errors = [abs(rule.seconds(row) * 1e9 / row["simulated_ns"] - 1) for row in members]
        ratios = [pipelined_s(row) * 1e9 / row["simulated_ns"] for row in members]
        lines.append(
            f"| {family} | {len(members)} | {statistics.mean(errors):.2%} | {max(errors):.2%} "
            f"| {min(ratios):.2f} .. {max(ratios):.2f} | {rule.why} |"
        )
    return "\n".join(lines)


def price(row: pd.Series, topology: Topology) -> float:
    """Return a row's seconds as one activity on its network, without caches of earlier rows."""
    for function in (cheapest, collective_flows, phased_flows):
        function.cache_clear()
    parameters = NetworkParameters(
        intra_bandwidth_bytes_per_s=1.0, intra_latency_s=0.0, inter_bandwidth_bytes_per_s=5e10, inter_latency_s=0.0
    )
    network = Network(topology, np.arange(topology.num_devices), (Library(parameters),))
    devices = int(row["num_devices"])
    size = int(row["bytes_per_device"]) * (devices if row["collective"] == "all_gather" else 1)
    algorithm = {"double_binary_tree": "tree"}.get(row["algorithm"], row["algorithm"])
    cost = network.collective(row["collective"], size, range(devices), algorithm)
    return cost.latency_s + max(seconds for _, seconds in cost.links)


def topology_of(row: pd.Series) -> Topology:
    """Return a row's network: a ring or one switch that joins single devices."""
    cable = {"bandwidth": f"{float(row['bandwidth_gb_per_s']) * 2**30 / 1e9} GB/s", "latency": "0.5 us"}
    node = {"devices": 1, "inside": "pcie"}
    if row["topology"] == "ring":
        fabric = {"kind": "torus", "shape": [int(row["num_devices"])], "link": cable}
        return parse_topology({"nodes": node, "fabric": fabric}, int(row["num_devices"]))
    node |= {"nics": 1, "nic": cable, "pcie": {"bandwidth": "100000 GB/s"}}
    return parse_topology({"nodes": node, "fabric": {"kind": "switch"}}, int(row["num_devices"]))


def time_rows(rows: pd.DataFrame) -> Iterator[Row]:
    """Yield our CPU time for one-dimensional collectives, and that of ASTRA-sim, measured at another time."""
    flat = [row for _, row in rows[~rows.topology.str.contains(" x ")].iterrows()]
    functions = [partial(price, row, topology_of(row)) for row in flat]
    ours_s = [statistics.median(times_s) for times_s in cpu_s(functions, 3)]
    theirs_s = [float(row["cpu_s"]) for row in flat]
    what = f"{len(flat)} collectives that ASTRA-sim simulated, 8 to 1,024 devices: priced by us, CPU time"
    yield Row(what, f"{sum(ours_s) * 1e3:.0f} ms")
    yield Row("- ASTRA-sim, CPU time on a 2-core machine at another time", f"{sum(theirs_s):.1f} s")
    for index in np.argsort(theirs_s)[::-1][:4].tolist():
        row, peak = flat[index], float(flat[index]["peak_rss_mb"])
        what = f"- {row['collective']}, {row['algorithm']}, {row['topology']}, {row['num_devices']:,} devices"
        yield Row(what, f"{ours_s[index] * 1e3:.1f} ms (theirs {theirs_s[index]:.1f} s, {peak:.0f} MB)")
    yield Row("- our peak memory so far (pandas and the first table included)", f"{peak_mib():.0f} MiB")


# --- one all_reduce over 1,024 ranks -------------------------------------------------------------------------------


def all_reduce_rows() -> Iterator[Row]:
    """Yield the cost of a ring over 1,024 ranks of a fat tree, message by message and as one activity."""
    topology = stepwise.cluster()
    network = stepwise.network_of(topology)
    found: list[tuple[float, int]] = []
    (steps_s,) = cpu_s([lambda: found.append(stepwise.ring_all_reduce_s(topology, stepwise.NUM_BYTES))], 3)
    (alone_s,) = cpu_s([lambda: stepwise.one_activity_s(network, stepwise.NUM_BYTES)], 21)
    (all_s, num_messages), one_s = found[0], stepwise.one_activity_s(network, stepwise.NUM_BYTES)
    steps, alone = statistics.median(steps_s), statistics.median(alone_s)
    what = f"all_reduce over 1,024 ranks, ring on a fat tree, {num_messages:,} messages: step by step, CPU time"
    yield Row(what, f"{steps:.2f} s", "5 s", steps <= 5.0)
    yield Row("- as one activity, CPU time", f"{alone * 1e3:.1f} ms", "5 ms", alone <= 5e-3)
    yield Row("- time as one activity over time step by step", f"{one_s / all_s:.6f}")


# --- our time by cluster size --------------------------------------------------------------------------------------


def size_rows() -> Iterator[Row]:
    """Yield the CPU time of one training step by the number of ranks, with a plan of one shape."""
    scenarios = [
        load_scenario(
            ROOT / "scenarios" / "library" / "quickstart.yaml",
            [
                "model.num_layers=8",
                "model.hidden_size=4096",
                "model.num_heads=32",
                "parallel.tensor.degree=2",
                "parallel.pipeline={degree: 2, schedule: 1f1b}",
                f"parallel.data.degree={ranks // 4}",
                f"cluster.num_nodes={ranks // 8}",
                f"training.global_batch_size={ranks // 4 * 2 * 16}",
            ],
        )
        for ranks in RANKS
    ]
    rounds = cpu_s([lambda s=s: simulate(plan_of(s), s.pricing()) for s in scenarios], 5)
    for ranks, times_s in zip(RANKS, rounds, strict=True):
        ratio = statistics.median(t / f for t, f in zip(times_s, rounds[0], strict=True))
        what = f"a step of 8 layers, tp 2, pp 2, dp {ranks // 4:,}: {ranks:,} ranks, CPU time"
        yield Row(what, f"{statistics.median(times_s):.3f} s ({ratio:.1f} times the first)")
    yield Row("- peak memory of the whole benchmark", f"{peak_mib():.0f} MiB")


def peak_mib() -> float:
    """Return the peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def cpu_s(functions: Sequence[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Return the CPU seconds of each function in each round. Other programs on the machine affect them little."""
    rounds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for times_s, function in zip(rounds, functions, strict=True):
            gc.collect()
            began_s = process_time()
            function()
            times_s.append(process_time() - began_s)
    return rounds


def main() -> int:
    """Print the tables; return the exit code."""
    load = f", load before {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {os.cpu_count()} cores{load}\n")
    print(f"{NUM_CASES} random collectives, one activity against step by step\n\n{stepwise_table()}\n")
    rows: list[Row] = []
    if (SHARED / "astra_sim.csv").is_file():
        table = read_rows(SHARED)
        print(f"Closed forms against ASTRA-sim's answers\n\n{answers_table(table)}\n")
        rows += time_rows(table)
    else:
        print(f"Left out: ASTRA-sim's answers are not at {SHARED / 'astra_sim.csv'} (set MESHTWIN_SHARED)\n")
    rows += [*all_reduce_rows(), *size_rows()]
    print(markdown(rows))
    return 1 if any(row.passed is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
