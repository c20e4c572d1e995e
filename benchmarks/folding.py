"""Folding of 100,000 ranks on leaf-spine switches. Leaves end in the middle of groups, so there are many classes."""

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.parse import parse_topology
from sim.engine.folding.folding import Folding, fold
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.words.program import Plan
from sim.training.spec.job import DenseTraining, ParallelSpec, PipelineSpec, TrainingSpec
from sim.training.spec.models.model import TransformerSpec
from sim.training.steps.builder import build_dense_training
from sim.training.tensor.one_dimensional import OneDimensional

NUM_NODES = 12_500
LEAF_SPINE = {"nodes": "hgx-h100", "fabric": {"kind": "leaf-spine", "leaf_ports": 512, "spines": 128}}


def hundred_thousand_ranks() -> tuple[Plan, ClusterPricing]:
    """Return a plan of tensor 8 x pipeline 20 x data 625, and the prices of its cluster."""
    model = TransformerSpec(
        family="gpt", num_layers=20, hidden_size=64, num_heads=8, sequence_length=32, vocab_size=128, num_kv_heads=8,
        ffn_hidden_size=256, tied_embeddings=True, attention="core", dropout=0.1,
    )  # fmt: skip
    job = DenseTraining(
        model=model,
        training=TrainingSpec(global_batch_size=20 * 625, microbatch_size=1),
        parallel=ParallelSpec(tensor=OneDimensional(degree=8), data_degree=625, pipeline=PipelineSpec(degree=20)),
    )
    node = load_node("hgx-h100")
    cluster = Cluster(node, NUM_NODES, node.devices_per_node, parse_topology(LEAF_SPINE, NUM_NODES))
    return build_dense_training(job, "100,000 ranks"), ClusterPricing(cluster, load_profile(node.device.generation))


def fold_anew(plan: Plan, pricing: ClusterPricing) -> Folding:
    """Return the classes, without caches of an earlier fold."""
    return fold(plan, ClusterPricing(pricing.cluster, pricing.profile))


if __name__ == "__main__":
    folding = fold(*hundred_thousand_ranks())
    print(f"{len(folding.multiplicity):,} classes")
