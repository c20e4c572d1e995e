"""The rates that FlexMoE and FasterMoE profile, from the prices of a step with even routing."""

from msgspec.structs import replace

from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing.estimate import Rates
from sim.moe.balancing.shadowing import ShadowPolicy
from sim.moe.sources import Even
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Collective, Compute
from sim.training.data.axes import SAMPLE_AXES, training_mesh
from sim.training.spec.job import DenseTraining
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS
from sim.training.steps.builder import build_dense_training


def profiled_rates(job: DenseTraining, pricing: ClusterPricing) -> Rates:
    """Return the rates of a layer with experts, of a job whose dispatch is exact and whose experts are shared out."""
    experts = job.model.experts
    assert experts is not None
    even = replace(job.model, experts=replace(experts, routing=Even(), replicas=None, moving=None))
    plan = build_dense_training(replace(job, model=even), "profile")
    program, ranks = plan.programs[0], plan.mesh.group(0, (EXPERT_AXIS,))
    ops = [op for task in program.tasks.values() for op in task.ops]
    products = [op for op in ops if isinstance(op, Compute) and "ragged_matmul" in op.kernel]
    seconds = sum(pricing.price(plan, program, op, 0).duration_s for op in products)
    exchange = next(op for op in ops if isinstance(op, Collective) and op.sizes)
    num_rows = sum(exchange.sizes[0])
    layers, own_experts = job.model.num_expert_layers, experts.num_experts // job.parallel.expert_degree
    gradients = [b for b in program.buffers.values() if b.kind is Kind.GRADIENT and ".experts.fc" in b.name]
    link, node = pricing.cluster.node.intra.bandwidth_bytes_per_s, pricing.cluster.node
    on_node = sum(rank // pricing.cluster.devices_per_node == 0 for rank in ranks)
    return Rates(
        tokens_per_s=num_rows * layers / seconds,
        token_bytes=program.buffers[exchange.reads[0]].num_bytes / num_rows,
        link_bytes_per_s=link,
        reduce_bytes_per_s=link,
        gradient_bytes=sum(buffer.num_bytes for buffer in gradients) / (layers * own_experts),
        ranks_per_node=on_node if on_node < len(ranks) else 0,
        node_bytes_per_s=node.nics_per_node * node.nic.bandwidth_bytes_per_s,
    )


def shadow_policy(rates: Rates, hidden_size: int, expansion: float) -> ShadowPolicy:
    """Return FasterMoE's estimate with the rates of a layer, whose experts are ``expansion`` times as wide inside.

    Its one bandwidth is a rank's part of the adapters where ranks lie on several nodes.
    """
    bandwidth = rates.node_bytes_per_s / rates.ranks_per_node if rates.ranks_per_node else rates.link_bytes_per_s
    return ShadowPolicy(
        hidden_size=hidden_size,
        expansion=expansion,
        bandwidth_bytes_per_s=bandwidth,
        flop_per_s=12.0 * expansion * hidden_size**2 * rates.tokens_per_s,
        element_bytes=rates.token_bytes / hidden_size,
    )


def groups_of(job: DenseTraining) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that exchange tokens, a tuple per group; of ranks that route the same tokens only the first."""
    mesh = training_mesh(job.parallel)
    groups = dict.fromkeys(mesh.group(rank, (EXPERT_AXIS,)) for rank in range(mesh.size))
    first = dict[tuple[int, ...], tuple[int, ...]]()
    for group in groups:
        places = mesh.coordinates(group[0])
        first.setdefault(tuple(place for axis, place in places.items() if axis in SAMPLE_AXES), group)
    return tuple(first.values())
