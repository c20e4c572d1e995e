"""The table of docs/expert_placement.md: steps with FlexMoE's moving replicas against fixed experts and padded slots.

.venv/bin/python docs/flexmoe_map.py
"""

import dataclasses
from math import ceil
from typing import Any

import click

from backends.simulated import SimulatedBackend
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing.estimate import Rates
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.policy_maker import PolicyMaker
from sim.moe.balancing.replicas import shared_out
from sim.moe.skew import Skew
from sim.plan.session.driver import run_policy
from sim.training.adjusting.experts import ForcedCounts, replica_steps
from sim.training.spec.job import DenseTraining, ParallelSpec, TrainingSpec
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.model import TransformerSpec
from sim.training.steps.builder import build_dense_training

RANKS, EXPERTS, TOKENS, STEPS, WARM_UP = 16, 16, 8192, 8, 2
CLUSTERS = {"dgx-a100-80g": 25e9, "cloud-a100-100g": 1.56e9}
"""Nodes, two of each, and a rank's part of its node's adapters in bytes per second."""


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


def moving(prices: ClusterPricing, skew: Skew, link_bytes_per_s: float) -> list[float]:
    """Return the seconds of each step with FlexMoE."""
    rates = Rates(
        tokens_per_s=3e6, token_bytes=2048, link_bytes_per_s=link_bytes_per_s, reduce_bytes_per_s=link_bytes_per_s,
        gradient_bytes=33.6e6,
    )  # fmt: skip
    maker = PolicyMaker(rates=rates, num_slots=3, threshold=1.2)
    policy = FlexMoE(maker=maker, first=shared_out(2, RANKS, EXPERTS), groups=(tuple(range(RANKS)),))
    with SimulatedBackend(prices, observations=ForcedCounts()).session(RANKS) as session:
        turns = run_policy(session, policy, replica_steps(job(skew, dispatch="exact"), policy.observed), STEPS)
        return [turn.result.duration_s for turn in turns]


def fixed(prices: ClusterPricing, skew: Skew, **keys: Any) -> list[float]:
    """Return the seconds of each step with experts that stay."""
    with SimulatedBackend(prices).session(RANKS) as session:
        jobs = [job(dataclasses.replace(skew, step=step), **keys) for step in range(STEPS)]
        plans = [build_dense_training(each, f"step {step}") for step, each in enumerate(jobs)]
        return [session.step(plan).duration_s for plan in plans]


def milliseconds(seconds: list[float]) -> float:
    """Return the mean of the steps after those of warming up."""
    return 1e3 * sum(seconds[WARM_UP:]) / (len(seconds) - WARM_UP)


def main() -> None:
    """Print the table."""
    deepspeed = {"permutation": "einsum", "capacity_rule": "deepspeed"}
    for name, link_bytes_per_s in CLUSTERS.items():
        node = load_node(name)
        prices = ClusterPricing(Cluster(node, 2, 8), load_profile(node.device.generation))
        for zipf, swaps in ((0.0, 0.01), (0.5, 0.01), (1.0, 0.01), (1.26, 0.01), (1.26, 1.0)):
            skew = Skew(zipf=zipf, swap_probability=swaps)
            routing = job(skew, dispatch="exact").routing
            assert routing is not None
            whole = ceil(100.0 * EXPERTS * routing.counts.max() / TOKENS) / 100.0
            times = [
                milliseconds(moving(prices, skew, link_bytes_per_s)),
                milliseconds(fixed(prices, skew, dispatch="exact")),
                milliseconds(fixed(prices, skew, capacity_factor=whole, **deepspeed)),
                milliseconds(fixed(prices, skew, **deepspeed)),
            ]
            ratios = [f"{time / times[0]:.2f}" for time in times[1:]]
            kept = routing.kept_fraction(TOKENS // EXPERTS)
            click.echo(f"| {name} | {zipf:g} | {swaps:g} | {times[0]:.1f} ms | {' | '.join(ratios)} | {kept:.0%} |")


if __name__ == "__main__":
    main()
