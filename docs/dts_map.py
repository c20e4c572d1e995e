"""The map of docs/moe_systems.md: FLOP and time of steps with a dense-to-sparse gate, against a Switch gate.

.venv/bin/python docs/dts_map.py
"""

from typing import Any

import click
from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.dense_to_sparse import DenseToSparse
from sim.training.spec.job import DenseTraining, ParallelSpec, TrainingSpec
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.model import TransformerSpec
from sim.training.steps.builder import build_dense_training

RANKS, LAYERS, POINTS = 16, 12, 8
SWITCH = ExpertsSpec(num_experts=16, top_k=1, ffn_hidden_size=4096, gate="switch", capacity_factor=1.25)
CLUSTERS = (("dgx-a100-80g", 2), ("cloud-a100-100g", 2))
SCHEDULES = {
    "2 to 0.3": DenseToSparse(start=2.0, end=0.3, decay_steps=10_000),
    "1 to 0.5": DenseToSparse(start=1.0, end=0.5, decay_steps=10_000),
    "1 to 0.1": DenseToSparse(start=1.0, end=0.1, decay_steps=10_000),
}


def job(experts: ExpertsSpec, batch: int) -> DenseTraining:
    """Return a GPT of 1.7e9 parameters, most of them in experts, on 16 ranks."""
    model = TransformerSpec(
        family="gpt", num_layers=LAYERS, hidden_size=1024, num_heads=16, num_kv_heads=16, sequence_length=1024,
        vocab_size=50304, ffn_hidden_size=4096, tied_embeddings=True, attention="flash", dropout=0.0, experts=experts,
    )  # fmt: skip
    training = TrainingSpec(global_batch_size=RANKS * batch, microbatch_size=batch, precision="fp16")
    parallel = ParallelSpec(data_degree=RANKS, expert_degree=min(RANKS, experts.num_experts))
    return DenseTraining(model=model, training=training, parallel=parallel)


def step(experts: ExpertsSpec, batch: int, prices: ClusterPricing) -> tuple[float, float]:
    """Return the FLOP that the model needs in a step, and the step's seconds."""
    of = job(experts, batch)
    return of.model_flop, SimulatedBackend(prices).simulate(build_dense_training(of, "step")).iteration_time_s


def cooled(schedule: DenseToSparse, batch: int, prices: ClusterPricing, part: float) -> tuple[float, float]:
    """Return mean FLOP and seconds of steps that are spread over a run, of which the schedule takes a part."""
    found = []
    for point in range(POINTS):
        at = min((point + 0.5) / POINTS / part, 1.0) * schedule.decay_steps
        gate: Any = {"gate": "dense_to_sparse", "dense_to_sparse": replace(schedule, step=round(at))}
        found.append(step(replace(SWITCH, **gate), batch, prices))
    flop, seconds = (sum(column) / POINTS for column in zip(*found, strict=True))
    return flop, seconds


def main() -> None:
    """Print the table."""
    for name, nodes in CLUSTERS:
        node = load_node(name)
        prices = ClusterPricing(Cluster(node, nodes, RANKS // nodes), load_profile(node.device.generation))
        for batch in (1, 2, 8):
            flop, seconds = step(SWITCH, batch, prices)
            for label, schedule in SCHEDULES.items():
                for part in (1.0, 0.25):
                    dense_flop, dense_s = cooled(schedule, batch, prices, part)
                    more, longer = dense_flop / flop, dense_s / seconds
                    click.echo(
                        f"| {name} | {batch} | {label} | {part:.0%} | {1e3 * seconds:.1f} ms | {more:.2f} | "
                        f"{longer:.2f} | {more / longer:.2f} |"
                    )


if __name__ == "__main__":
    main()
