"""The table of docs/expert_placement.md: FlexMoE against experts that stay, FasterMoE's shadows and padded slots.

.venv/bin/python docs/flexmoe_map.py
"""

from math import ceil
from typing import Any, Final

import click
from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from scenarios.workloads.training.placing.decisions import placements_of, policy_of
from scenarios.workloads.training.placing.summing import summed_steps
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.placement_policy import MovingExperts
from sim.moe.skew import Skew
from sim.plan.words.program import Plan
from sim.training.adjusting.experts import with_replicas
from sim.training.spec.job import DenseTraining, ParallelSpec, TrainingSpec
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.model import TransformerSpec
from sim.training.steps.builder import build_dense_training

RANKS, EXPERTS, TOKENS, STEPS, WARM_UP = 16, 16, 8192, 30, 10
LOOKED_AT: Final = (10, 29)
"""Steps whose mean stands for all where each takes a plan of its own."""
CLUSTERS = ("dgx-a100-80g", "cloud-a100-100g")
"""Nodes, two of each: with an adapter per GPU, and with one."""
SKEWS = ((0.0, 0.01), (0.5, 0.01), (1.0, 0.01), (1.26, 0.01), (1.26, 1.0))
"""Exponents, and the probability that two neighbours in rank change places in a step."""
FLEXMOE = MovingExperts(steps=STEPS, slots=3, step_times="sums")


def job(skew: Skew, **keys: Any) -> DenseTraining:
    """Return two layers of 16 experts on 16 ranks."""
    spec: dict[str, Any] = {"num_experts": EXPERTS, "top_k": 1, "ffn_hidden_size": 4096, "routing": skew, **keys}
    model = TransformerSpec(
        family="gpt", num_layers=2, hidden_size=1024, num_heads=16, num_kv_heads=16, sequence_length=1024,
        vocab_size=32000, ffn_hidden_size=4096, tied_embeddings=False, attention="flash", dropout=0.0,
        experts=ExpertsSpec(**spec),
    )  # fmt: skip
    training = TrainingSpec(global_batch_size=RANKS * 8, microbatch_size=8, precision="bf16")
    return DenseTraining(model=model, training=training, parallel=ParallelSpec(data_degree=RANKS, expert_degree=RANKS))


def moving_s(prices: ClusterPricing, skew: Skew, moving: MovingExperts) -> float:
    """Return the mean time of a step with FlexMoE after its first steps, moves and search included."""
    step_job = job(skew, dispatch="exact", moving=moving)
    policy = policy_of(step_job, prices)
    assert isinstance(policy, FlexMoE)
    steps, _ = summed_steps(step_job, policy, prices)
    return sum(step.duration_s for step in steps[WARM_UP:]) / (STEPS - WARM_UP)


def shadowed_s(prices: ClusterPricing, skew: Skew) -> float:
    """Return the mean time of some steps with FasterMoE."""
    step_job = job(skew, dispatch="exact", moving=MovingExperts(policy="fastermoe", steps=STEPS))
    placements = placements_of(step_job, prices)
    plans = [
        build_dense_training(with_replicas(step_job, placements[step].replicas, step), "step") for step in LOOKED_AT
    ]
    return mean_s(prices, plans)


def padded_s(prices: ClusterPricing, skew: Skew, capacity_factor: float) -> float:
    """Return the time of a step with DeepSpeed's slots, which are the same in all steps."""
    deepspeed = {"permutation": "einsum", "capacity_rule": "deepspeed"}
    return mean_s(prices, [build_dense_training(job(skew, capacity_factor=capacity_factor, **deepspeed), "slots")])


def mean_s(prices: ClusterPricing, plans: list[Plan]) -> float:
    """Return the mean time of plans by the engine, whose ranks begin together."""
    backend = SimulatedBackend(prices)
    return sum(backend.simulate(replace(plan, barrier=True)).makespan_s for plan in plans) / len(plans)


def main() -> None:
    """Print the table."""
    for name in CLUSTERS:
        node = load_node(name)
        prices = ClusterPricing(Cluster(node, 2, 8), load_profile(node.device.generation))
        for zipf, swaps in SKEWS:
            skew = Skew(zipf=zipf, swap_probability=swaps)
            routing = job(skew, dispatch="exact").routing_later(LOOKED_AT[0])
            whole = ceil(100.0 * EXPERTS * routing.counts.max() / TOKENS) / 100.0
            times_s = [
                moving_s(prices, skew, FLEXMOE),
                moving_s(prices, skew, replace(FLEXMOE, threshold=1e3)),
                shadowed_s(prices, skew),
                padded_s(prices, skew, whole),
                padded_s(prices, skew, 1.0),
            ]
            ratios = [f"{time_s / times_s[0]:.2f}" for time_s in times_s[1:]]
            kept = routing.kept_fraction(TOKENS // EXPERTS)
            click.echo(
                f"| {name} | {zipf:g} | {swaps:g} | {1e3 * times_s[0]:.1f} ms | {' | '.join(ratios)} | {kept:.0%} |"
            )


if __name__ == "__main__":
    main()
