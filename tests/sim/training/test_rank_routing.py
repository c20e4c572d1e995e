"""No choice is lost or made twice on its way to the experts, whatever the routing and wherever the experts lie."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.moe.choices import GroupLimit, forced_choices
from sim.moe.routing import RoutingShape, of_ranks
from sim.moe.skew import Skew
from sim.moe.within_groups import within_groups
from sim.plan.words.mesh import Mesh
from sim.training.data.axes import SAMPLE_AXES
from sim.training.layers.node_copies import Nodes
from sim.training.layers.rank_routing import RankRouting, rank_routings
from sim.training.spec.parallelism.mesh_axes import EXPERT_AXIS


@given(
    ranks=st.sampled_from([1, 2, 4]), replicas=st.sampled_from([1, 2, 3]), per_rank=st.integers(1, 3),
    zipf=st.floats(0.0, 3.0), top_k=st.integers(1, 2), seed=st.integers(0, 99), of_all=st.booleans(),
)  # fmt: skip
def test_every_choice_arrives_once(
    ranks: int, replicas: int, per_rank: int, zipf: float, top_k: int, seed: int, *, of_all: bool
) -> None:
    """In every group, rows sent to a rank are the rows that its experts compute, and all together all choices."""
    num_experts, num_tokens = max(2, ranks * per_rank), 11
    if num_experts % ranks:
        return
    mesh = Mesh((("pp", 1), (SAMPLE_AXES[0], replicas), (EXPERT_AXIS, ranks)))
    shape = RoutingShape(
        num_layers=2, num_sources=mesh.degree(*SAMPLE_AXES) if of_all else ranks, num_experts=num_experts,
        num_tokens=num_tokens, top_k=top_k,
    )  # fmt: skip
    routing = Skew(zipf=zipf, concentration=5.0, seed=seed).routing(shape)
    groups: dict[bytes, list[RankRouting]] = {}
    for found in rank_routings(routing, mesh, first_layer=1):
        groups.setdefault(found.group.counts.tobytes(), []).append(found)
    for members in groups.values():
        for layer in (1, 2):
            sizes = np.array(members[0].sizes(layer))
            assert sizes.sum() == ranks * num_tokens * top_k
            for member in members:
                chosen = np.array(member.chosen(layer))
                assert member.sizes(layer) == members[0].sizes(layer)
                assert sizes[member.place].sum() == chosen.sum() == num_tokens * top_k
                assert sizes[:, member.place].sum() == sum(member.rows(layer))
                assert sizes[member.place].tolist() == chosen.reshape(ranks, -1).sum(1).tolist()


@given(
    nodes=st.integers(2, 3), per_node=st.integers(2, 3), per_rank=st.integers(1, 3), top_k=st.integers(1, 4),
    zipf=st.floats(0.0, 3.0), seed=st.integers(0, 99), limited=st.booleans(),
)  # fmt: skip
def test_a_token_is_sent_to_each_of_its_nodes_once(
    nodes: int, per_node: int, per_rank: int, top_k: int, zipf: float, seed: int, *, limited: bool
) -> None:
    """A row crosses for each token and node that it chooses in, none twice; relays hand on all choices, no others."""
    ranks, num_tokens = nodes * per_node, 13
    num_experts = ranks * per_rank
    limit = GroupLimit(nodes, 1, min(top_k, num_experts // nodes)) if limited else GroupLimit(num_experts, top_k, 1)
    shape = RoutingShape(
        num_layers=1, num_sources=ranks, num_experts=num_experts, num_tokens=num_tokens,
        top_k=limit.top_groups * limit.of_each,
    )  # fmt: skip
    routing = within_groups(Skew(zipf=zipf, concentration=5.0, seed=seed).routing(shape), limit, num_tokens)
    (group,) = {id(found.group): found.group for found in rank_routings(
        routing, Mesh(((EXPERT_AXIS, ranks),)), first_layer=0, nodes=Nodes(nodes, limit)
    )}.values()  # fmt: skip
    traffic, expected = group.over_nodes(0), np.zeros((ranks, ranks), dtype=np.int64)
    across, within = np.array(traffic.across), np.array(traffic.within)
    for source, counts in enumerate(routing.counts[0].tolist()):
        chosen = forced_choices(counts, num_tokens, limit) // (num_experts // nodes)
        for node in range(nodes):
            expected[source, node * per_node + source % per_node] = (chosen == node).any(1).sum()
    assert np.array_equal(across, expected)
    assert across.sum() == num_tokens * ranks if limited else across.sum() <= num_tokens * ranks * nodes
    place, node = np.arange(ranks) % per_node, np.arange(ranks) // per_node
    assert within[node[:, None] != node].sum() == 0
    assert within.sum() == num_tokens * ranks * shape.top_k
    assert within.sum(0).tolist() == of_ranks(routing.counts[0].sum(0), ranks).tolist()
    for relay in range(ranks):
        through = routing.counts[0][place == place[relay]].sum(0).reshape(nodes, -1)[node[relay]].sum()
        assert within[relay].sum() == through >= across[:, relay].sum()


@given(st.integers(1, 40), st.integers(2, 9), st.integers(1, 3), st.floats(0.0, 4.0), st.integers(0, 99))
def test_every_token_makes_its_choices_each_once(tokens: int, experts: int, top_k: int, zipf: float, seed: int) -> None:
    """A token's experts are different ones, and every expert is chosen as often as it is said."""
    top_k = min(top_k, experts)
    shape = RoutingShape(num_layers=1, num_sources=1, num_experts=experts, num_tokens=tokens, top_k=top_k)
    counts = Skew(zipf=zipf, seed=seed).routing(shape).counts[0, 0]
    chosen = forced_choices(counts.tolist(), tokens)
    assert chosen.shape == (tokens, top_k)
    assert all(len(set(line)) == top_k for line in chosen.tolist())
    assert np.bincount(chosen.ravel(), minlength=experts).tolist() == counts.tolist()
