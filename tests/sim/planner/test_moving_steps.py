"""Steps whose experts move, as sums of calls: equal to the engine's, which runs a plan of each."""

import numpy as np
import pytest
from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from costmodels.software import Software
from sim.cluster.cluster import Cluster
from sim.cluster.direct_exchanges import DirectExchanges
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing.assignment import assigned
from sim.moe.balancing.estimate import Rates
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.policy_maker import PolicyMaker
from sim.moe.balancing.replicas import shared_out
from sim.moe.skew import Skew
from sim.plan.session.driver import run_policy
from sim.planner.moving.load import PlacedStep, rows_between, rows_of_copies
from sim.planner.moving.steps import StepSums
from sim.training.adjusting.experts import ForcedCounts, replica_steps
from sim.training.errors import SpecError
from sim.training.spec.job import DenseTraining, ParallelSpec, TrainingSpec
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.model import TransformerSpec

RATES = Rates(
    tokens_per_s=3e6, token_bytes=2048, link_bytes_per_s=200e9, reduce_bytes_per_s=200e9, gradient_bytes=33.6e6
)


def job(ranks: int, num_experts: int, layers: int, **parallel: int | bool) -> DenseTraining:
    """Return a step in which so many ranks share out the experts of each layer."""
    routing = Skew(zipf=1.26, swap_probability=0.5)
    model = TransformerSpec(
        family="gpt", num_layers=layers, hidden_size=1024, num_heads=16, num_kv_heads=16, sequence_length=1024,
        vocab_size=32000, ffn_hidden_size=4096, tied_embeddings=False, attention="flash", dropout=0.0,
        experts=ExpertsSpec(num_experts=num_experts, top_k=1, ffn_hidden_size=4096, dispatch="exact", routing=routing),
    )  # fmt: skip
    training = TrainingSpec(global_batch_size=16 * ranks, microbatch_size=8, precision="bf16")
    return DenseTraining(
        model=model, training=training, parallel=ParallelSpec(data_degree=ranks, expert_degree=ranks, **parallel)
    )


def prices(node: str, num_nodes: int, ranks: int, **others: object) -> ClusterPricing:
    """Return the prices of ranks on so many nodes."""
    found = load_node(node)
    return ClusterPricing(
        Cluster(found, num_nodes, ranks // num_nodes), load_profile(found.device.generation), **others
    )


@pytest.mark.parametrize(
    ("node", "num_nodes", "sizes", "bucket_bytes", "estimate_s", "tolerance"),
    [
        ("dgx-a100-80g", 1, (4, 8, 2), 0, 0.25e-6, 2e-3),
        ("cloud-a100-100g", 2, (6, 12, 2), 0, 0.25e-6, 2e-3),
        ("dgx-a100-80g", 2, (4, 8, 2), 20_000_000, 20e-6, 0.015),
    ],
    ids=["one node", "shared adapters", "buckets beside exchanges"],
)
def test_steps_take_as_long_as_by_the_engine(
    node: str, num_nodes: int, sizes: tuple[int, int, int], bucket_bytes: int, estimate_s: float, tolerance: float
) -> None:
    """First without copies, then while copies come, then with copies, whose gradients are summed."""
    ranks, num_experts, layers = sizes
    buckets = {"bucket_bytes": bucket_bytes, "overlap_gradient_sync": True} if bucket_bytes else {}
    step_job, pricing = job(*sizes, **buckets), prices(node, num_nodes, ranks)
    maker = PolicyMaker(rates=RATES, num_slots=4, threshold=1.2, estimate_s=estimate_s)
    first = shared_out(layers, ranks, num_experts)
    policy = FlexMoE(maker=maker, first=first, groups=(tuple(range(ranks)),), in_background=True)
    with SimulatedBackend(pricing, observations=ForcedCounts()).session(ranks) as session:
        turns = run_policy(session, policy, replica_steps(step_job, policy.observed), 3)
    sums = StepSums(step_job, pricing)
    assert turns[1].decision.replicas.num_arriving
    for number, turn in enumerate(turns):
        placed, counts = turn.decision, step_job.routing_later(number).counts
        step = PlacedStep(counts, placed.replicas.table, placed.replicas.on_the_way, placed.search_s)
        assert sums.step_s(step) == pytest.approx(turn.result.duration_s, rel=tolerance)


@pytest.mark.parametrize("buckets", [{}, {"bucket_bytes": 20_000_000, "overlap_gradient_sync": True}])
def test_a_step_does_not_depend_on_those_before_it(buckets: dict[str, int | bool]) -> None:
    """What is kept of a placement gives the times of a new sum, to rounding; also when copies come and go."""
    step_job, pricing = job(4, 8, 2, **buckets), prices("dgx-a100-80g", 2, 4)
    fixed = shared_out(2, 4, 8).table
    more = fixed + np.roll(fixed, 1, axis=1) * (np.arange(8) < 3)
    still, coming = np.zeros(fixed.shape, dtype=bool), (more > 0) & (fixed == 0)
    cases = [(fixed, still), (fixed, still), (fixed, coming), (more, still), (more, still), (fixed, still)]
    sums = StepSums(step_job, pricing)
    for number, (vexperts, arriving) in enumerate(cases):
        step = PlacedStep(step_job.routing_later(number).counts, vexperts, arriving)
        assert sums.step_s(step) == pytest.approx(StepSums(step_job, pricing).step_s(step), rel=1e-12)


def test_rows_are_those_of_the_assignment() -> None:
    """Rows of copies, and rows from rank to rank, are sums of the tokens that ``assigned`` deals out."""
    rng = np.random.default_rng(3)
    counts, vexperts = rng.integers(0, 50, (2, 4, 6)), rng.integers(0, 3, (2, 4, 6))
    vexperts[:, 1] += 1
    rows = rows_of_copies(counts, vexperts)
    dealt = np.array([assigned(*pair) for pair in zip(counts, vexperts, strict=True)])
    np.testing.assert_allclose(rows, dealt.sum(1).transpose(0, 2, 1), atol=1e-9)
    np.testing.assert_allclose(rows_between(counts, rows), dealt.sum(2), atol=1e-9)


@pytest.mark.parametrize(("node", "num_nodes"), [("dgx-a100-80g", 1), ("cloud-a100-100g", 3)])
def test_many_exchanges_cost_what_each_does(node: str, num_nodes: int) -> None:
    """Latency and seconds of links are those of the network's uneven all_to_all, both ways, also where few send."""
    rng, network = np.random.default_rng(5), prices(node, num_nodes, 6).network
    tables = rng.integers(0, 4_000_000, (3, 6, 6)) * (rng.random((3, 6, 6)) < np.array([1.0, 0.3, 0.0])[:, None, None])
    demands = DirectExchanges(network, range(6)).demands(tables.astype(np.float64))
    for way, links_s in ((tables, demands.link_s), (tables.transpose(0, 2, 1), demands.back_link_s)):
        for table, latency_s, link_s in zip(way, demands.latencies_s, links_s, strict=True):
            cost = network.collective("all_to_all", 0, range(6), "auto", 0, table)
            assert latency_s == pytest.approx(cost.latency_s, abs=1e-15)
            assert {n: pytest.approx(s) for n, s in cost.links} == {n: link_s[n] for n in np.flatnonzero(link_s)}


def test_steps_that_are_no_sums_are_refused() -> None:
    """Several groups of ranks, or a host that launches kernels, are named with the key."""
    pricing = prices("dgx-a100-80g", 1, 4)
    groups = replace(job(4, 8, 1), parallel=ParallelSpec(data_degree=4, expert_degree=2))
    with pytest.raises(SpecError, match="2 of 4 ranks share out the experts"):
        StepSums(groups, pricing)
    with pytest.raises(SpecError, match="a host launches"):
        StepSums(job(4, 8, 1), pricing.under(Software(launch_s=5e-6)))
