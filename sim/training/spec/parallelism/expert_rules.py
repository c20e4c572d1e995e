"""Expert parallelism: typed, checked input."""

from typing import Final

from sim.moe.balancing.placement_policy import MovingExperts
from sim.training.errors import SpecError
from sim.training.gates.gate import GATE_KEY
from sim.training.pipeline.rules import OVERLAP_KEY
from sim.training.spec.models.model import TransformerSpec
from sim.training.spec.parallelism.parallel import ParallelSpec

DEGREE_KEY: Final = "parallel.expert.degree"
NODES_KEY: Final = "parallel.expert.nodes"
PLACEMENT_KEY: Final = "model.experts.placement"
_UPDATES_LATER: Final = frozenset({"aiao", "pipedream_2bw"})
_REPLICAS_KEY: Final = "model.experts.replicas"


def check_expert_degree(model: TransformerSpec, expert_degree: int, data_degree: int) -> None:
    """Raise SpecError unless so many data-parallel ranks can share out the experts."""
    if model.experts is None:
        if expert_degree > 1:
            rule = f"{expert_degree} ranks share out experts, and the model has none"
            raise SpecError(DEGREE_KEY, rule, "leave it out, or write model.experts")
        return
    num_experts = model.experts.num_experts
    if data_degree % expert_degree or num_experts % expert_degree:
        divisors = [n for n in range(1, num_experts + 1) if not data_degree % n and not num_experts % n]
        raise SpecError(
            DEGREE_KEY,
            f"{expert_degree} ranks of {data_degree} data-parallel ones do not share out {num_experts} experts evenly",
            f"write a number that divides both: {', '.join(map(str, divisors))}",
        )
    model.experts.gating.check_ranks(model.experts, expert_degree)


def check_sources(num_sources: int, expert_degree: int, data_degree: int) -> None:
    """Raise SpecError unless a forced routing has a source per rank that shares out experts, or per replica."""
    if num_sources not in (expert_degree, data_degree):
        raise SpecError(
            "model.experts.routing",
            f"it has {num_sources} source ranks, neither the {data_degree} data-parallel ones nor the {expert_degree} "
            "that share out experts",
            f"use a routing of {data_degree} source ranks, or other degrees",
        )


def check_expert_nodes(model: TransformerSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError where tokens cannot be sent to nodes, and handed on there."""
    nodes, degree, experts = parallel.expert_nodes, parallel.expert_degree, model.experts
    if nodes == 1:
        return
    if degree == 1 or experts is None:
        rule, remedy = "no ranks share out experts", "leave it out, or write model.experts and parallel.expert.degree"
        raise SpecError(NODES_KEY, rule, remedy)
    if degree % nodes or nodes == degree:
        rule = f"{degree} ranks that share out experts do not lie on {nodes} nodes, two or more on each"
        fits = [n for n in range(1, degree) if not degree % n]
        raise SpecError(NODES_KEY, rule, f"write {' or '.join(map(str, fits)) or 1}")
    if experts.dispatch != "exact":
        raise SpecError(NODES_KEY, "slots are sent to every expert", "write model.experts.dispatch: exact")
    if experts.replicas is not None or experts.moving is not None:
        rule = "copies of experts on several ranks are not built with tokens that nodes hand on"
        raise SpecError(NODES_KEY, rule, "leave it out, or leave placement out")
    groups = experts.gating.limit(experts).num_groups
    if groups % nodes:
        rule = f"{groups} groups of experts do not lie on {nodes} nodes, as many on each"
        raise SpecError(NODES_KEY, rule, "write a divisor of model.experts.num_groups")


def check_biases(model: TransformerSpec, parallel: ParallelSpec) -> None:
    """Raise SpecError where biases of routers would have to follow choices of a step that is not over."""
    experts, schedule = model.experts, parallel.pipeline.schedule
    if experts is not None and "bias_update_rate" in experts.gating.options and schedule in _UPDATES_LATER:
        rule = f"biases move at the end of a step, and with {schedule} the next step has begun by then"
        raise SpecError(GATE_KEY, rule, "write another schedule, or gate: top_k")


def check_overlapped_exchanges(parallel: ParallelSpec) -> None:
    """Raise SpecError where passes take turns and no ranks exchange tokens, or pieces are not built."""
    if not parallel.pipeline.overlap_exchanges:
        return
    if parallel.expert_degree == 1:
        remedy = "leave it out, or write parallel.expert.degree"
        raise SpecError(OVERLAP_KEY, "no ranks exchange tokens: each has all experts", remedy)
    if parallel.zero_stage > 1 or parallel.osdp is not None or parallel.memory is not None:
        rule = "passes that gather parameters are not built in pieces"
        raise SpecError(OVERLAP_KEY, rule, "leave it out, or write zero_stage: 1 without osdp and memory")


def check_replicas(model: TransformerSpec, parallel: ParallelSpec, *, keeps_gradients: bool) -> None:
    """Raise SpecError where replicas of experts do not fit the model, or are not built with what shards state.

    ``keeps_gradients``: gradients are cleared before a step, and not set to none.
    """
    experts = model.experts
    if experts is None or (experts.replicas is None and experts.moving is None):
        return
    key = _REPLICAS_KEY if experts.moving is None else PLACEMENT_KEY
    if experts.replicas is not None:
        found = (len(experts.replicas.vexperts), experts.replicas.num_ranks, len(experts.replicas.vexperts[0][0]))
        wanted = (model.num_expert_layers, parallel.expert_degree, experts.num_experts)
        if found != wanted:
            rule = f"it places {found[2]} experts of {found[0]} layers on {found[1]} ranks"
            raise SpecError(key, rule, f"place {wanted[2]} experts of {wanted[0]} layers on {wanted[1]} ranks")
    if parallel.expert_degree == 1:
        raise SpecError(key, "one rank has all experts", "leave it out, or write parallel.expert.degree")
    sharded = parallel.zero_stage or parallel.osdp is not None or parallel.memory is not None
    if sharded or parallel.sharding.offload is not None or not keeps_gradients:
        rule = "replicas of experts are not built with sharded or offloaded state, or gradients set to none"
        raise SpecError(key, rule, "leave zero_stage, osdp, memory, offload and set_gradients_to_none out")
    if experts.moving is not None:
        _check_moving(experts.moving, experts.num_experts, parallel)


def _check_moving(moving: MovingExperts, num_experts: int, parallel: ParallelSpec) -> None:
    """Raise SpecError where a policy has too few slots, or does not see the counts of all layers on every rank."""
    if parallel.pipeline.degree > 1:
        rule = f"experts that move are not built with pipelines, and there are {parallel.pipeline.degree} stages"
        raise SpecError(PLACEMENT_KEY, rule, "write parallel.pipeline.degree: 1, or leave it out")
    if moving.in_full == "first" and moving.step_times != "sums":
        rule = "each step by the engine is one of its own, and the last is the one in full"
        raise SpecError(f"{PLACEMENT_KEY}.in_full", rule, "leave it out, or write step_times: sums")
    if moving.policy == "fastermoe":
        _check_shadowing(moving)
    own = num_experts // parallel.expert_degree
    if moving.slots is not None and moving.slots < own:
        rule = f"each of {parallel.expert_degree} ranks has {own} of {num_experts} experts, and {moving.slots} slots"
        raise SpecError(f"{PLACEMENT_KEY}.slots", rule, f"write {own + 1} or more, or leave it out")


def _check_shadowing(moving: MovingExperts) -> None:
    """Raise SpecError for a key that FasterMoE does not read."""
    fixed = MovingExperts(policy=moving.policy, steps=moving.steps)
    for key in ("slots", "threshold", "every", "step_times", "in_full"):
        if getattr(moving, key) != getattr(fixed, key):
            rule = "fastermoe shadows experts for a step by an estimate of its own, and its steps are no sums of calls"
            raise SpecError(f"{PLACEMENT_KEY}.{key}", rule, "leave it out, or write policy: flexmoe")
