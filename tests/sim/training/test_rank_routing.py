"""No choice is lost or made twice on its way to the experts, whatever the routing and wherever the experts lie."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.moe.choices import forced_choices
from sim.moe.routing import RoutingShape
from sim.moe.skew import Skew
from sim.plan.words.mesh import Mesh
from sim.training.data.axes import SAMPLE_AXES
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
