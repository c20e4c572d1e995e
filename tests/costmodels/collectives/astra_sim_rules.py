"""ASTRA-sim's analytical network on the same work: how its answers follow from the closed forms and its own rules.

Its rules, as its sources state them: a collective is cut into 4 chunks that run one after another; a hop costs the
latency of each link and 10 ns at its end; a switch stores a message before it sends it on (congestion-aware backend);
what a rank adds is read twice and written once at the local memory's speed before anything else happens; GB are GiB.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pandas as pd

from costmodels.collectives.catalogue import collective_steps
from costmodels.collectives.cost import collective_cost, exclusive_seconds, point_to_point_cost
from costmodels.collectives.network import NetworkParameters

GIB, CHUNKS, ENDPOINT_S = 2**30, 4, 10e-9
MEMORY_BYTES_PER_S = 1600e9
PRESET_LATENCY_NS, PRESET_MEMORY_BYTES_PER_S = 936.25, 3350e9
"""Its HGX-H100 preset: two chunks at a time, and faster memory, than all other rows."""


@dataclass(frozen=True)
class Fabric:
    """One dimension of a network: ``links`` to pass between two devices, each of this bandwidth and latency."""

    num_devices: int
    links: int
    bandwidth_bytes_per_s: float
    latency_s: float

    def network(self, *, stored: bool = False) -> NetworkParameters:
        """Return it for the closed forms; ``stored``: a message takes every link for as long as its bytes last."""
        return NetworkParameters(
            intra_bandwidth_bytes_per_s=self.bandwidth_bytes_per_s / (self.links if stored else 1),
            intra_latency_s=self.links * self.latency_s + ENDPOINT_S,
            inter_bandwidth_bytes_per_s=1.0,
            inter_latency_s=0.0,
        )

    def alone_s(self, kind: str, num_bytes: float, algorithm: str, *, stored: bool = False, passes: int = 3) -> float:
        """Return the time of a collective by its closed form, and of memory passes that nothing hides."""
        group, network = (self.num_devices,), self.network(stored=stored)
        cost = collective_cost(kind, int(num_bytes), group, network, algorithm)
        return exclusive_seconds(cost, group, network) + passes * cost.reduced_bytes / MEMORY_BYTES_PER_S


def fabrics(row: pd.Series) -> list[Fabric]:
    """Return the dimensions of a row's network, e.g. of "fully_connected8@400 x switch32@50,"."""
    latencies = [float(value) * 1e-9 for value in str(row["latency_ns"]).split(";")]
    if " x " not in row["topology"]:
        links = 2 if row["topology"] == "switch" else 1
        return [Fabric(row["num_devices"], links, float(row["bandwidth_gb_per_s"]) * GIB, latencies[0])]
    found = []
    for part, latency_s in zip(row["topology"].split(" x "), latencies, strict=True):
        name, _, bandwidth = part.strip(",").partition("@")
        kind = name.rstrip("0123456789")
        links = 2 if kind == "switch" else 1
        found.append(Fabric(int(name.removeprefix(kind)), links, float(bandwidth) * GIB, latency_s))
    return found


def chunk_after_chunk(row: pd.Series) -> float:
    """Return ring or halving-doubling: every chunk alone on its way, and through the switch message by message."""
    [fabric] = fabrics(row)
    size = row["bytes_per_device"] / CHUNKS
    if row["collective"] == "all_gather":
        size *= fabric.num_devices
    return CHUNKS * fabric.alone_s(row["collective"], size, row["algorithm"], stored=True)


def two_at_a_time(row: pd.Series) -> float:
    """Return the preset's ring: a pair of chunks keeps both links busy, one's memory passes hide behind the other."""
    [fabric] = fabrics(row)
    pair, pairs = row["bytes_per_device"] / 2, CHUNKS / 2
    reduced = (fabric.num_devices - 1) / fabric.num_devices * pair / 2
    wire_s = fabric.alone_s("all_reduce", pair, "ring", passes=0)
    return pairs * (wire_s + 3 * reduced / PRESET_MEMORY_BYTES_PER_S)


def all_at_once(row: pd.Series) -> float:
    """Return the direct all_to_all: messages queue on the first link, and only the last one's second link shows.

    Its clock ticks in whole nanoseconds, rounded down: 512 bytes at 50 GiB/s take 9 ns, not 9.54.
    """
    [fabric] = fabrics(row)
    size = row["bytes_per_device"] / CHUNKS
    message = size / fabric.num_devices
    message_s = math.floor(message / fabric.bandwidth_bytes_per_s * 1e9) * 1e-9
    ticking = replace(fabric, bandwidth_bytes_per_s=message / message_s)
    return CHUNKS * (ticking.alone_s("all_to_all", size, "direct") + (fabric.links - 1) * message_s)


def tree_without_pipeline(row: pd.Series) -> float:
    """Return the double tree, whole chunks going up one tree or the other, level by level, and down.

    Two children share their parent's link: on the way a chunk waits once for its sibling per inner level and
    direction. From the second chunk on the branches arrive staggered: depth waits less.
    """
    [fabric] = fabrics(row)
    size = row["bytes_per_device"] / CHUNKS
    depth = collective_steps("all_reduce", "hierarchical_tree", (1,) * fabric.num_devices).num_rounds // 2
    network = fabric.network(stored=True)
    hop_s = exclusive_seconds(point_to_point_cost(int(size), True, network), (2,), network)
    memory_s, sibling_s = 3 * size / MEMORY_BYTES_PER_S, size / fabric.bandwidth_bytes_per_s
    one_s = 2 * depth * hop_s + (2 * depth - 1) * memory_s + 2 * (depth - 1) * sibling_s
    return CHUNKS * one_s - (CHUNKS - 1) * depth * sibling_s


def dimension_by_dimension(row: pd.Series) -> float:
    """Return reduce_scatter inside, all_reduce across and all_gather inside, of which one chunk each runs at a time."""
    inner, outer = fabrics(row)
    size = row["bytes_per_device"] / CHUNKS
    phases = [
        inner.alone_s("reduce_scatter", size, "ring"),
        outer.alone_s("all_reduce", size / inner.num_devices, "ring"),
        inner.alone_s("all_gather", size, "ring"),
    ]
    return sum(phases) + (CHUNKS - 1) * max(phases)


@dataclass(frozen=True)
class Rule:
    """What a row takes by the closed forms and its class's rules, how many rows there are, and the rules in words."""

    seconds: Callable[[pd.Series], float]
    num_rows: int
    why: str


RULES: Final[dict[str, Rule]] = {
    "ring on a ring": Rule(
        chunk_after_chunk,
        9,
        "4 chunks one after another; each hop 10 ns more; sums read and written in memory before going on",
    ),
    "ring through a switch": Rule(
        chunk_after_chunk,
        2,
        "as above; the switch stores a message before it sends it on: two links in turn, half the bandwidth",
    ),
    "ring through a switch, HGX-H100 preset": Rule(
        two_at_a_time,
        4,
        "two chunks at a time keep both links of the switch busy and hide one's sums; then pair after pair",
    ),
    "halving-doubling through a switch": Rule(
        chunk_after_chunk,
        3,
        "chunks one after another, each message stored in the switch",
    ),
    "double binary tree through a switch": Rule(
        tree_without_pipeline,
        2,
        "whole chunks up and down, level by level, no pipeline; two children wait for one link",
    ),
    "direct all_to_all through a switch": Rule(
        all_at_once,
        3,
        "chunks one after another; only the last message's second link shows; a clock of whole nanoseconds",
    ),
    "ring x ring in two dimensions": Rule(
        dimension_by_dimension,
        4,
        "by dimension, as our hierarchical; 4 chunks follow each other, one at a time in each dimension",
    ),
}
"""How each class of rows follows from the closed forms."""


def class_of(row: pd.Series) -> str:
    """Return the class of a row."""
    if " x " in row["topology"]:
        return "ring x ring in two dimensions"
    names = {"ring": "ring", "halving_doubling": "halving-doubling", "double_binary_tree": "double binary tree"}
    algorithm = names.get(row["algorithm"], "direct all_to_all")
    if row["topology"] == "ring":
        return f"{algorithm} on a ring"
    preset = float(row["latency_ns"]) == PRESET_LATENCY_NS
    return f"{algorithm} through a switch" + (", HGX-H100 preset" if preset else "")


def read_rows(folder: Path) -> pd.DataFrame:
    """Return ASTRA-sim's answers with their classes (``family``) from the folder of shared measurements."""
    table = pd.read_csv(folder / "astra_sim.csv", dtype={"bandwidth_gb_per_s": str, "latency_ns": str})
    return table.assign(family=[class_of(row) for _, row in table.iterrows()])


def pipelined_s(row: pd.Series) -> float:
    """Return the closed form, no rules: one collective, pipelined, sums hidden; hierarchical in two dimensions."""
    parts = fabrics(row)
    if len(parts) == 1:
        size = row["bytes_per_device"] * (parts[0].num_devices if row["collective"] == "all_gather" else 1)
        algorithm = {"double_binary_tree": "tree"}.get(row["algorithm"], row["algorithm"])
        return parts[0].alone_s(row["collective"], size, algorithm, passes=0)
    inner, outer = parts
    group = (inner.num_devices,) * outer.num_devices
    network = NetworkParameters(
        intra_bandwidth_bytes_per_s=inner.bandwidth_bytes_per_s,
        intra_latency_s=inner.links * inner.latency_s + ENDPOINT_S,
        inter_bandwidth_bytes_per_s=outer.bandwidth_bytes_per_s,
        inter_latency_s=outer.links * outer.latency_s + ENDPOINT_S,
        nics_per_node=inner.num_devices,
    )
    cost = collective_cost(row["collective"], int(row["bytes_per_device"]), group, network, "hierarchical")
    return exclusive_seconds(cost, group, network)
