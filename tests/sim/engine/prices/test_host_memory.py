"""A node's host memory as a link: copies, kernels on the host's cores and drives of all its ranks share it."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.hardware import StorageSpec, load_node
from costmodels.host import memory_bytes_per_s
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.links import LinkKind
from sim.engine.findings.link_use import link_use
from sim.engine.folding.folding import no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.words.buffer import Buffer, Kind, Scope, Tier
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute, Copy, Op
from sim.plan.words.program import Call, Phase, Plan, Program, Task

DRIVES_BYTES_PER_S = 3.5e9
NODE = load_node("dgx-a100-40g")
HOST = replace(
    NODE.host, device_latency_s=0.0,
    storage=StorageSpec(capacity_bytes=10**13, bandwidth_bytes_per_s=DRIVES_BYTES_PER_S, latency_s=0.0),
)  # fmt: skip
PCIE_BYTES_PER_S = HOST.device_bandwidth_bytes_per_s * HOST.device_attained
MILLION = 1_000_000
NARROW = 5e9
"""Attained bandwidth of a host memory that is slower than one PCIe link: it binds."""


def prices(num_ranks: int, memory_rate: float = memory_bytes_per_s(HOST)) -> ClusterPricing:
    """Return prices on a node whose host's memory attains a rate."""
    bandwidth = memory_rate / HOST.memory_attained
    node = replace(NODE, host=replace(HOST, memory_bandwidth_bytes_per_s=bandwidth))
    return ClusterPricing(Cluster(node, 1, num_ranks), load_profile(NODE.device.generation))


def work_of(rank: int, kinds: Mapping[str, int]) -> Program:
    """Return a rank's work, all at once: ``up`` to the device, ``add`` on the host, ``write`` to drives; in bytes."""
    buffers, ops = dict[str, Buffer](), list[Op]()
    for kind, num_bytes in kinds.items():
        for name, tier in (("from", Tier.HOST), ("to", {"up": Tier.DEVICE, "write": Tier.NVME}.get(kind, Tier.HOST))):
            shape = (num_bytes // 4,)
            buffers[f"{kind}.{name}"] = Buffer(
                f"{kind}.{name}", shape, "float32", Kind.WORKSPACE, Scope.PERSISTENT, tier
            )
        ends = (f"{kind}.from",), (f"{kind}.to",)
        ops.append(Compute(kind, "copy", *ends, {}, "host") if kind == "add" else Copy(kind, *ends, kind))
    return Program({"dp": rank}, buffers, {"work": Task("work", Phase.PREPARE, tuple(ops))}, (Call("work"),))


def run_of(works: list[dict[str, int]], pricing: ClusterPricing) -> SimulatedRun:
    """Return the run of ranks that each do some work."""
    programs = tuple(work_of(rank, kinds) for rank, kinds in enumerate(works))
    return simulate(Plan("work", Mesh((("dp", len(works)),)), programs), pricing, fold=no_fold)


@given(st.integers(1, 1000), st.floats(1e9, 1e12))
def test_a_lone_copy_takes_its_bytes_over_the_slowest_of_its_links(millions: int, memory_rate: float) -> None:
    """Its device's link, its host's memory, and of writes the drives in the place of the device's link."""
    for kind, rate in (("up", PCIE_BYTES_PER_S), ("write", DRIVES_BYTES_PER_S)):
        run = run_of([{kind: millions * MILLION}], prices(1, memory_rate))
        assert run.iteration_time_s == pytest.approx(millions * MILLION / min(rate, memory_rate))


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_ranks_that_copy_together_share_the_memory(num_ranks: int) -> None:
    """n equal copies take n times as long as one where the memory binds, and as long as one where it does not."""
    several = run_of([{"up": MILLION}] * num_ranks, prices(num_ranks, NARROW)).iteration_time_s
    assert several == pytest.approx(num_ranks * MILLION / NARROW)
    wide = run_of([{"up": MILLION}] * num_ranks, prices(num_ranks, 1e12)).iteration_time_s
    assert wide == pytest.approx(MILLION / PCIE_BYTES_PER_S)


def test_a_copy_has_all_of_the_memory_once_its_neighbour_is_done() -> None:
    """No rank's copies have a fixed share; of a kernel the rank's part of the cores has one."""
    copies = run_of([{"up": MILLION}, {"up": 3 * MILLION}], prices(2, NARROW))
    assert copies.iteration_time_s == pytest.approx(4 * MILLION / NARROW)
    kernels = run_of([{"add": MILLION}, {"add": 3 * MILLION}], prices(2, NARROW))
    assert kernels.iteration_time_s == pytest.approx(2 * 2 * 3 * MILLION / NARROW)


def test_kernels_and_copies_of_a_node_slow_each_other_down() -> None:
    """One rank updates on its half of the cores while the other copies: both at two thirds until the copy has ended."""
    run = run_of([{"add": MILLION}, {"up": 2 * MILLION}], prices(2, NARROW))
    alone_s = run_of([{"add": MILLION}], prices(2, NARROW)).iteration_time_s
    assert alone_s == pytest.approx(4 * MILLION / NARROW)
    assert run.iteration_time_s == pytest.approx(5 * MILLION / NARROW)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["up", "add", "write"]), st.integers(1, 50), min_size=1), min_size=1, max_size=4
    )
)
def test_the_memory_carries_all_bytes_and_no_more_than_its_rate(works: list[dict[str, int]]) -> None:
    """Copies and writes pass it once, and a kernel's bytes once each that is read and each that is written."""
    works = [{kind: millions * MILLION for kind, millions in work.items()} for work in works]
    pricing, sizes = prices(len(works), NARROW), {"up": 1, "write": 1, "add": 2}
    moved = sum(sizes[kind] * num_bytes for work in works for kind, num_bytes in work.items())
    run = run_of(works, pricing)
    use = link_use(run, pricing)
    (row,) = [row for row in range(len(use.example)) if use.kind[row] == LinkKind.MEMORY]
    assert use.num_bytes[row] == pytest.approx(moved)
    assert use.busy_s[row] == pytest.approx(moved / NARROW)
    assert moved / NARROW <= run.iteration_time_s * (1 + 1e-9)


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_a_kernel_of_stated_rate_leaves_the_rest_of_the_memory_to_others(num_ranks: int) -> None:
    """Gathers of 1 GB/s read and write 2 GB/s: of a memory of 5 GB/s one takes as long as stated, four 8/5 as long."""
    programs = []
    for rank in range(num_ranks):
        rows = Buffer("rows", (10, 250_000), "float32", Kind.WORKSPACE, Scope.PERSISTENT, Tier.HOST)
        found = replace(rows, name="found", shape=(1, 250_000))
        numbers = replace(rows, name="numbers", shape=(1,), dtype="int64")
        stated = {"count": 1, "bytes_per_s": 1e9}
        gather = Compute("gather", "gather_rows", ("rows", "numbers"), ("found",), stated, "host")
        buffers = {buffer.name: buffer for buffer in (rows, found, numbers)}
        work = {"work": Task("work", Phase.PREPARE, (gather,))}
        programs.append(Program({"dp": rank}, buffers, work, (Call("work"),)))
    run = simulate(Plan("work", Mesh((("dp", num_ranks),)), tuple(programs)), prices(num_ranks, NARROW))
    assert run.iteration_time_s == pytest.approx(max(1.0, num_ranks * 2 / 5) * 1e-3, rel=1e-4)
