"""Gates for which it counts where experts lie: bytes of exchanges, tokens that stay near, what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.moe.nearby import kept_near
from sim.moe.routing import RoutingShape
from sim.moe.skew import Skew
from sim.plan.checking.check import check
from sim.plan.facts.description import payload_bytes
from sim.plan.words.op import Collective, CollectiveKind
from sim.plan.words.program import Plan
from sim.training.errors import SpecError
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.steps.builder import build_dense_training
from tests.sim.jobs import dense_job
from tests.sim.training.test_experts import EXPERTS, S, mixture

TOKENS = 64


def exchanged(plan: Plan) -> dict[str, int]:
    """Return the bytes that a rank sends in the exchanges of the first layer, by op."""
    program = plan.programs[0]
    return {
        op.name: payload_bytes(program, op.reads)
        for task in program.tasks.values()
        for op in task.ops
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL and op.name.startswith("layer0")
    }


def plan_of(**keys: Any) -> Plan:
    """Return the checked plan of two ranks that share out the experts."""
    plan = build_dense_training(dense_job(model=mixture(**keys), dp=2, expert_degree=2, m=1), "near")
    check(plan)
    return plan


def test_sam_sends_a_token_once_however_many_experts_it_chooses() -> None:
    """What travels is one row per token, and beside it a weight and a slot per choice; top_k sends a row per choice."""
    for top_k in (1, 2, 4):
        mixed, best = (exchanged(plan_of(top_k=top_k, **keys)) for keys in ({"gate": "sam", "num_groups": 2}, {}))
        rows = {name: size for name, size in mixed.items() if ".weights" not in name and ".slots" not in name}
        assert sum(best.values()) == top_k * sum(rows.values())
        beside = sum(mixed.values()) - sum(rows.values())
        assert beside == 3 * 4 * top_k * S  # weights, their gradients and slots, four bytes each


@given(st.integers(0, 99), st.sampled_from([2, 4]), st.integers(0, TOKENS))
def test_what_must_stay_near_falls_on_near_experts(seed: int, num_groups: int, most: int) -> None:
    """No choice is lost, no source has more outside than it may, none of its experts more than its tokens."""
    shape = RoutingShape(num_layers=2, num_sources=4, num_experts=8, num_tokens=TOKENS, top_k=2)
    drawn = Skew(seed=seed).routing(shape)
    kept = kept_near(drawn, num_groups, most, TOKENS).check(shape)
    home = np.arange(4) * num_groups // 4
    is_outside = np.arange(8) * num_groups // 8 != home[:, None]
    before, after = ((routing.counts * is_outside).sum(2) for routing in (drawn, kept))
    assert np.array_equal(after, np.minimum(before, most))
    assert np.all((kept.counts >= drawn.counts) | is_outside)
    unchanged = before <= most
    assert np.array_equal(kept.counts[unchanged], drawn.counts[unchanged])


def test_fewer_rows_leave_a_node_with_a_topology_aware_gate() -> None:
    """With exact dispatch a drawn routing sends no more than the stated part of the tokens to the other rank."""
    keys: dict[str, Any] = {"dispatch": "exact", "routing": Skew(concentration=None), "top_k": 2}
    near = {"gate": "topology_aware", "num_groups": 2, "remote_share": 0.25}
    jobs = [dense_job(model=mixture(**keys, **gate), dp=2, expert_degree=2, m=1) for gate in (near, {})]
    limited, free = (job.routing.counts for job in jobs if job.routing is not None)
    tokens = int(free[0, 0].sum()) // 2
    assert limited[:, 0, 4:].sum(1).max() <= 0.25 * tokens < free[:, 0, 4:].sum(1).min()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gate": "topology_aware"}, "experts are in 1; write one of 2, 4"),
        ({"gate": "sam", "num_groups": 8}, "at least top_k = 2 experts, and 8 experts are in 8; write one of 2, 4"),
        ({"gate": "sam", "num_groups": 2, "permutation": "einsum"}, "sam sends tokens to groups"),
        ({"gate": "sam", "num_groups": 2, "routing": "balanced"}, "the routing is forced"),
        ({"remote_share": 0.5}, "gate top_k keeps no tokens near; leave it out, or write gate: topology_aware"),
    ],
)
def test_groups_that_cannot_be_are_refused(keys: dict[str, Any], says: str) -> None:
    """One group, groups with too few experts, and keys without effect are errors with a remedy."""
    with pytest.raises(SpecError, match=says):
        ExpertsSpec(**EXPERTS | keys)


def test_groups_must_fit_the_ranks() -> None:
    """A rank is in one group of the topology-aware gate, and a group of sam is on one rank."""
    with pytest.raises(SpecError, match="4 groups of experts do not lie on equal parts of the 2 ranks"):
        dense_job(model=mixture(gate="topology_aware", num_groups=4), dp=2, expert_degree=2, m=1)
    with pytest.raises(SpecError, match="write a multiple of 4"):
        dense_job(model=mixture(gate="sam", num_groups=2), dp=4, expert_degree=4, m=1)
