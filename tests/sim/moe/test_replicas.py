"""Placements of experts with replicas, and the routing that they make of a plan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.moe.balancing.replicas import Replicas, shared_out
from sim.moe.errors import RoutingError
from sim.moe.sources import Shares
from sim.plan.checking.check import check
from sim.plan.words.op import Collective, CollectiveKind
from sim.training.errors import SpecError
from sim.training.layers.rank_routing import GroupRouting, RankRouting
from sim.training.steps.builder import build_dense_training
from tests.backends.expert_runs import ON_FOUR, exact
from tests.backends.jobs import training


@st.composite
def placements(draw: st.DrawFn) -> tuple[np.ndarray, Replicas]:
    """Return choices [source, expert] of some ranks and a placement of one layer on them."""
    ranks, experts = draw(st.integers(2, 4)), draw(st.integers(2, 5))
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    placed = generator.integers(0, 3, (ranks, experts))
    placed[generator.integers(0, ranks, experts), np.arange(experts)] += 1
    return generator.integers(0, 30, (ranks, experts)), Replicas.of([placed])


@given(placements())
def test_every_choice_arrives_at_a_copy_of_its_expert_once(case: tuple[np.ndarray, Replicas]) -> None:
    """What sources send to copies, what is exchanged, and what copies multiply are the same choices."""
    counts, replicas = case
    group = GroupRouting(counts[None], 3, replicas)
    members = [RankRouting({}, group, place) for place in range(len(counts))]
    for source, member in enumerate(members):
        sent = member.placement(3).assigned(counts)[source]
        assert sent.sum(1).tolist() == counts[source].tolist()
        assert sent.sum(0).tolist() == list(member.sizes(3)[source])
        assert not any(
            sent[expert, rank] and expert not in replicas.held(0, rank) for expert, rank in np.ndindex(*sent.shape)
        )
        assert sum(member.rows(3)) == sum(line[source] for line in member.sizes(3))
        assert len(member.rows(3)) == len(member.held(3))
    assert sum(sum(member.rows(3)) for member in members) == counts.sum()


def test_experts_in_equal_parts_have_no_sums_over_holders() -> None:
    """A placement without replicas has the exchanges of the plan without a placement, and no collective of members."""
    model, sizes = exact(), {"data_degree": 4, "expert_degree": 4, "batch": (8, 1)}
    plain = build_dense_training(training(model=model, **sizes), "plain")
    placed_model = {**model, "experts": replace(model["experts"], replicas=shared_out(2, 4, 4))}
    placed = build_dense_training(training(model=placed_model, **sizes), "placed")
    check(placed)

    def exchanged(plan) -> list:
        tasks = [task for program in plan.programs for task in program.tasks.values()]
        return [op.sizes for task in tasks for op in task.ops if getattr(op, "sizes", ())]

    assert exchanged(plain) == exchanged(placed)
    ops = [op for program in placed.programs for task in program.tasks.values() for op in task.ops]
    assert not any(getattr(op, "members", ()) for op in ops)


def test_ranks_gather_the_counts_of_all_experts_once_per_layer() -> None:
    """The assignment to copies needs the counts of all ranks: a number of 8 bytes per expert from each."""
    plan = build_dense_training(
        training(model=exact(replicas=ON_FOUR), data_degree=4, expert_degree=4, batch=(8, 1)), "placed"
    )
    program = plan.programs[0]
    all_ops = [op for task in program.tasks.values() for op in task.ops if isinstance(op, Collective)]
    ops = [op for op in all_ops if "route.counts" in op.name]
    assert [op.kind for op in ops] == [CollectiveKind.ALL_GATHER] * 2
    assert {program.buffers[op.writes[0]].num_bytes for op in ops} == {4 * 4 * 8}


def test_placements_that_do_not_fit_are_refused() -> None:
    """An expert without a rank, other ranks than those that share, slots in place of rows, and sharded state."""
    with pytest.raises(RoutingError, match="expert 1 of layer 0 lies on no rank"):
        Replicas((((1, 0), (1, 0)),))
    with pytest.raises(SpecError, match="on 4 ranks; place 4 experts of 2 layers on 2 ranks"):
        training(model=exact(replicas=ON_FOUR), data_degree=4, expert_degree=2, batch=(8, 1))
    with pytest.raises(SpecError, match="dispatch: exact"):
        exact(replicas=ON_FOUR, dispatch="slots", routing=Shares((0.6, 0.25, 0.15, 0.0)))
    with pytest.raises(SpecError, match="zero_stage"):
        training(model=exact(replicas=ON_FOUR), data_degree=4, expert_degree=4, batch=(8, 1), zero_stage=1)
