"""The laws that every change keeps: which they are, where each is held, and on random topologies those that were not.

1. More bandwidth, less latency or less work never makes a plan slower whose ops do not meet on a resource:
   test_engine_laws.py (nodes below one switch; more layers), here (links of any topology, less work);
   tests/laws/test_network.py (every algorithm of a collective alone, which no smallest cut lets end sooner).
2. Bytes are conserved: test_engine_laws.py (messages), test_sent.py (closed forms), test_link_use.py (what devices
   send is what links carry, at every switch what comes leaves), tests/laws/test_network.py (every algorithm, link by
   link), test_steps.py (every chunk of a collective arrives).
3. No two ops of one stream overlap, and none starts before its hazards clear: test_engine_laws.py, here.
4. A step takes no less than its critical path, nor than any resource is in use: test_engine_laws.py (chains of one
   rank), here (the path through all ranks, found by networkx, and equal to the step where nothing is shared).
5. Folded equals unfolded, in time too (test_repeated.py), coalesced equals step by step: test_engine_laws.py,
   test_folding.py, here (up to 64 ranks);
   what links carry: test_link_use.py; a slow engine written from the rules: reference.py, test_engine_laws.py,
   test_engine_random_programs.py.
6. Same seed, same bytes: tests/laws/test_determinism.py, tests/architecture/test_determinism.py, here (any seed).
7. Closed forms hold where they exist: test_textbook.py, test_textbook_schedules.py, test_terapipe.py,
   test_memory_formulas.py, tests/costmodels.
8. The simulated peak of memory is the interpreter's account of the executed one: tests/backends/test_execution.py
   (executed plans), tests/backends/running/test_memory.py (random programs), test_engine_memory.py (against a walk).
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate as simulate_scenario
from sim.cluster.topology.topology import Topology
from sim.engine.findings.timeline import timeline
from sim.engine.folding.folding import fold, no_fold
from sim.engine.prices.activity import Activity
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.engine.reference import hazards
from tests.sim.jobs import as_array, dense_plan, op_times
from tests.sim.strategies import dense_keys
from tests.sim.topology_strategies import clusters

ROOT = Path(__file__).parents[3]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
LAW = settings(max_examples=examples(8), deadline=None, suppress_health_check=SLOW)
FACTOR = st.floats(1, 10)


def meets(run: SimulatedRun) -> bool:
    """Return whether any op shares a resource with others."""
    return any(activity.demands for activity in run.graph.shared) or any(joint.shared for joint in run.graph.joints)


# --- 1: better links, less work ----------------------------------------------------------------------------


def on(pricing: ClusterPricing, topology: Topology) -> ClusterPricing:
    """Return prices on other links, with rings for all collectives: the library may not choose anew."""
    rings = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")
    return ClusterPricing(replace(pricing.cluster, wiring=topology), pricing.profile, algorithms=rings)


def faster(topology: Topology, *, bandwidth: float, latency: float, message: float) -> Topology:
    """Return a topology all of whose links are better by these factors."""
    links = topology.links
    better = replace(
        links,
        bandwidth_bytes_per_s=links.bandwidth_bytes_per_s * bandwidth,
        latency_s=links.latency_s / latency,
        message_s=links.message_s / message,
    )
    return replace(topology, links=better)


@st.composite
def one_group(draw: Any) -> dict[str, Any]:
    """Draw the keys of a job of one group or one pipeline, whose ops seldom meet."""
    keys = draw(dense_keys(most_stage=1))
    tp, dp, pp = draw(st.sampled_from([(4, 1, 1), (1, 3, 1), (1, 1, 3)]))
    model = keys["model"] | {"tied_embeddings": False, "num_layers": 3}
    alone = {"tp": tp, "dp": dp, "pp": pp, "model": model, "schedule": "1f1b", "virtual_stages": 1}
    return keys | alone | {"sequence_parallel": False, "collective_matmul": False}


@LAW
@given(data=st.data(), keys=one_group(), bandwidth=FACTOR, latency=FACTOR, message=FACTOR)
def test_better_links_are_never_slower_where_nothing_meets(
    data: Any, keys: dict[str, Any], bandwidth: float, latency: float, message: float
) -> None:
    """Whatever joins the devices: no op takes longer on links with more bandwidth and less latency."""
    plan = dense_plan(**keys)
    drawn = data.draw(clusters(plan.mesh.size))
    wiring = drawn.cluster.topology
    slow = simulate(plan, on(drawn, wiring))
    assume(not meets(slow))
    better = faster(wiring, bandwidth=bandwidth, latency=latency, message=message)
    fast = simulate(plan, on(drawn, better))
    assert fast.makespan_s <= slow.makespan_s * (1 + 1e-12)


@LAW
@given(data=st.data(), keys=one_group())
def test_a_smaller_batch_never_takes_longer_where_nothing_meets(data: Any, keys: dict[str, Any]) -> None:
    """One sequence less per micro-batch, all else equal, on any topology."""
    plans = [dense_plan(**keys | {"b": size}) for size in (1, 2)]
    drawn = data.draw(clusters(plans[0].mesh.size))
    less, more = (simulate(plan, on(drawn, drawn.cluster.topology)) for plan in plans)
    assume(not meets(less) and not meets(more))
    assert less.makespan_s <= more.makespan_s


# --- 3 and 4: order, and lower bounds ----------------------------------------------------------------------


def op_of(run: SimulatedRun, key: tuple[int, int, int]) -> tuple[Op, Activity]:
    """Return an op of a run, and what it demands."""
    rank, call, j = key
    name = run.programs[rank].calls[call].task
    return run.programs[rank].tasks[name].ops[j], run.priced[rank][name].activities[j]


@LAW
@given(data=st.data(), keys=dense_keys(8), way=st.sampled_from([fold, no_fold]))
def test_streams_and_hazards_are_kept_on_every_topology(data: Any, keys: dict[str, Any], way: Any) -> None:
    """One op at a time on every stream, each after all that it must wait for."""
    plan = dense_plan(**keys)
    run = simulate(plan, data.draw(clusters(plan.mesh.size)), fold=way)
    timeline(run, "op").check_streams()
    times, slack_s = op_times(run), 1e-9 * run.makespan_s
    for rank, program in run.programs.items():
        for (call, j), needed in hazards(program).items():
            is_receive = isinstance(op_of(run, (rank, call, j))[0], Recv)
            start_s, end_s = times[rank, call, j]
            for before in needed:
                assert times[(rank, *before)][1] <= (end_s if is_receive else start_s) + slack_s


def everything(run: SimulatedRun) -> tuple[nx.DiGraph, dict[Any, float]]:
    """Return the ops of all ranks as a graph, edges as long as what they leave lasts alone, and resources' seconds.

    A collective is one vertex for all its members, ``end`` follows every op, and a message's edge has its latency too.
    """
    mesh, vertex = run.plan.mesh, {}
    numbers: dict[Any, int] = defaultdict(int)
    waits = {(rank, *key): needed for rank, program in run.programs.items() for key, needed in hazards(program).items()}
    for key in waits:
        op, _ = op_of(run, key)
        vertex[key] = key
        if isinstance(op, Collective):
            own = (key[0], op.stream, op.axes, op.members)
            numbers[own] += 1
            vertex[key] = (op.group(mesh, key[0]), *own[1:], numbers[own])
    graph, use_s, lasts_s = nx.DiGraph(), defaultdict(float), {}
    for key, node in vertex.items():
        op, activity = op_of(run, key)
        if node not in lasts_s:
            for resource, seconds in activity.demands:
                use_s[resource] += seconds
        lasts_s[node] = activity.occupancy_s if isinstance(op, Send) else activity.duration_s
        graph.add_edge(node, "end", weight=lasts_s[node])
    for key, needed in waits.items():
        for other in needed:
            before = vertex[key[0], *other]
            if before != vertex[key]:
                graph.add_edge(before, vertex[key], weight=lasts_s[before])
    sent: dict[Any, list[Any]] = defaultdict(list)
    for key in waits:
        op, _ = op_of(run, key)
        if isinstance(op, Send):
            sent[key[0], op.axis, op.offset, op.direction].append(key)
    for key in waits:
        op, _ = op_of(run, key)
        if isinstance(op, Recv):
            sender = sent[mesh.shift(key[0], op.axis, op.offset), op.axis, -op.offset, op.direction].pop(0)
            graph.add_edge(sender, key, weight=lasts_s[sender] + op_of(run, sender)[1].latency_s)
    return graph, use_s


@LAW
@given(data=st.data(), keys=dense_keys(8))
def test_a_step_takes_no_less_than_its_critical_path_and_its_fullest_resource(data: Any, keys: dict[str, Any]) -> None:
    """The longest path through the ops of all ranks is a lower bound, and the step where nothing is shared."""
    plan = dense_plan(**keys)
    run = simulate(plan, data.draw(clusters(plan.mesh.size)), fold=no_fold)
    graph, use_s = everything(run)
    path_s = nx.dag_longest_path_length(graph)
    assert path_s <= run.makespan_s * (1 + 1e-9)
    assert max(use_s.values()) <= run.makespan_s * (1 + 1e-9)
    if not meets(run):
        assert run.makespan_s == pytest.approx(path_s, rel=1e-9)


# --- 5: folding and coalescing -----------------------------------------------------------------------------


@settings(LAW, max_examples=examples(3))
@given(data=st.data(), keys=dense_keys(12), copies=st.sampled_from([2, 3, 4, 5]))
def test_up_to_64_ranks_fold_and_coalesce_unnoticed(data: Any, keys: dict[str, Any], copies: int) -> None:
    """With more replicas on any topology, each op has the same times folded or not, coalesced or one by one."""
    plan: Plan = dense_plan(**keys | {"dp": copies * keys["dp"]})
    assume(24 < plan.mesh.size <= 64)
    pricing = data.draw(clusters(plan.mesh.size))
    folded, every = simulate(plan, pricing), simulate(plan, pricing, fold=no_fold)
    mine, single, whole = (op_times(run) for run in (folded, simulate(plan, pricing, coalesce=False), every))
    stands_for = folded.folding.stands_for
    found, ranks = list(mine), list(whole)
    assert {(stands_for[rank], call, j) for rank, call, j in ranks} == set(found) == set(single)
    partners = as_array(mine, [(stands_for[rank], call, j) for rank, call, j in ranks])
    off_s = abs(as_array(whole, ranks) - partners).max()
    assert off_s <= 1e-9 * every.makespan_s or off_s <= multiplied_rounding_s(plan, pricing, every)
    off_s = abs(as_array(mine, found) - as_array(single, found)).max()
    assert off_s <= 1e-9 * folded.makespan_s or off_s <= multiplied_rounding_s(plan, pricing, every)


def multiplied_rounding_s(plan: Plan, pricing: ClusterPricing, run: SimulatedRun) -> float:
    """Return the most by which any op of a run moves when all links get faster by one part in 10^15.

    Where many exchanges meet on few links, the next meeting may multiply what separates two starts. Then a step has no
    times that are exact to more than this: on an oversubscribed Clos fabric a last digit became 2 % of a step.
    """
    links = faster(pricing.cluster.topology, bandwidth=1 + 1e-15, latency=1, message=1)
    cluster = replace(pricing.cluster, wiring=links)
    nearly = ClusterPricing(cluster, pricing.profile, algorithms=dict(pricing.algorithms))
    moved, times = op_times(simulate(plan, nearly, fold=no_fold)), op_times(run)
    return float(abs(as_array(moved, list(times)) - as_array(times, list(times))).max())


# --- 6: seeds ----------------------------------------------------------------------------------------------


def written(folder: Path, seed: int) -> dict[str, bytes]:
    """Return the files that a run with jitter writes, without the wall time."""
    settings_ = [f"seed={seed}", "cluster.jitter.gemm=0.05"]
    simulate_scenario(load_scenario(ROOT / "scenarios" / "library" / "tiny-gpt-2x2.yaml", settings_)).write(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    summary = json.loads(files["summary.json"])
    summary["engine"].pop("wall_time_s")
    return files | {"summary.json": json.dumps(summary).encode()}


@settings(LAW, max_examples=examples(2))
@given(seed=st.integers(0, 2**31 - 2))
def test_a_seed_decides_every_byte(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Two runs with one seed write the same four files; another seed draws other devices."""
    one, same, other = (written(tmp_path_factory.mktemp("run"), number) for number in (seed, seed, seed + 1))
    assert one == same
    assert len(one) == 4
    assert one["timeline.parquet"] != other["timeline.parquet"]
