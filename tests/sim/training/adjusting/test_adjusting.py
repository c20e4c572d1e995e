"""What a plan needs and its ranks lack is moved by ops, or the plan is refused."""

import pytest
from msgspec.structs import replace

from sim.plan.checking.check import check
from sim.plan.errors import SessionError
from sim.plan.session.residents import Residents
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Collective, Compute, Recv, Send
from sim.plan.words.program import Plan
from sim.training.adjusting.adjustment import ADJUSTMENT, adjusted
from sim.training.adjusting.handing import with_layers_moved
from sim.training.adjusting.replicas import with_joiners, with_leavers
from sim.training.errors import SpecError
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training
from tests.backends.jobs import training


def job(**parallel: object) -> DenseTraining:
    """Return a training on a pipeline of two, with tensor parallelism of two."""
    return training(**{"pipeline": {"degree": 2}, "tensor_degree": 2, **parallel})


def plan_of(wanted: DenseTraining) -> Plan:
    """Return its plan."""
    return build_dense_training(wanted, "some")


def left_by(*plans: Plan) -> Residents:
    """Return what plans leave."""
    residents = Residents()
    for plan in plans:
        check(plan)
        residents.check(plan, 8)
        residents = residents.after(plan)
    return residents


def test_a_plan_that_needs_nothing_stays_as_it_is() -> None:
    """The first plan, and one on the same layers, are returned themselves."""
    plan = plan_of(job())
    assert adjusted(plan, Residents()) is plan
    assert adjusted(plan, left_by(plan)) is plan


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_a_layer_is_handed_to_the_rank_that_has_its_slices(source: int, target: int) -> None:
    """One message per pair of ranks with parameters and moments; gradients are made anew; the giver forgets all."""
    first = plan_of(job())
    moved = adjusted(plan_of(with_layers_moved(job(), source, target)), left_by(first))
    giver, receiver = moved.programs[source], moved.programs[target]
    [send] = giver.tasks[ADJUSTMENT].ops
    made, received = receiver.tasks[ADJUSTMENT].ops
    assert isinstance(send, Send)
    assert isinstance(received, Recv)
    assert isinstance(made, Compute)
    assert send.reads == received.writes
    layer = f"layer{2 if source else 1}."
    names = {
        name for name, buffer in first.programs[source].buffers.items()
        if name.startswith(layer) and buffer.scope is Scope.PERSISTENT
    }  # fmt: skip
    assert {*send.reads, *made.writes} == names
    assert {giver.buffers[name].kind for name in send.reads} == {Kind.PARAMETER, Kind.OPTIMIZER}
    assert giver.released == names
    residents = left_by(first, moved)
    ranks = [2 * target, 2 * target + 1]
    assert all(residents.holders(name) == ranks for name in names)


def test_layers_go_both_ways_at_once() -> None:
    """With two virtual stages per rank one rank gives and receives, on streams of their own."""
    pipeline = {"degree": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2}
    start = job(pipeline=pipeline)
    start = replace(start, model=replace(start.model, num_layers=8))
    swapped = with_layers_moved(with_layers_moved(start, 0, 3), 1, 2)
    first = plan_of(start)
    plan = adjusted(plan_of(swapped), left_by(first))
    check(plan)
    for program in plan.programs:
        kinds = [type(op) for op in program.tasks[ADJUSTMENT].ops]
        assert {Send, Recv} <= set(kinds)
        assert len({op.stream for op in program.tasks[ADJUSTMENT].ops}) == len(kinds)
    left_by(first, plan)


def test_a_replica_joins_from_whichever_stays() -> None:
    """The second of two replicas stays; when the first comes back, it is the second that broadcasts."""
    two, one = plan_of(job(data_degree=2, tensor_degree=1)), plan_of(job(tensor_degree=1))
    alone = with_leavers(one, (1, 3), left_by(two))
    assert alone.leavers == {0, 2}
    residents = left_by(two, alone)
    assert residents.holders("layer0.fc1.weight") == [1]
    again = with_joiners(two, (0, 1, 2, 3), residents)
    for program in again.programs:
        [broadcast] = [op for op in program.tasks[ADJUSTMENT].ops if isinstance(op, Collective)]
        assert (broadcast.axes, broadcast.root) == (("dp",), 1)
        kinds = {program.buffers[name].kind for name in broadcast.writes}
        assert kinds == {Kind.PARAMETER, Kind.OPTIMIZER}
    assert left_by(two, alone, again).holders("layer0.fc1.weight") == [0, 1]


def test_what_nobody_holds_as_it_is_needed_is_refused() -> None:
    """Another tensor-parallel degree, ZeRO's shares, and holders that leave: the message names buffer and holders."""
    two = plan_of(job(data_degree=2, tensor_degree=1))
    with pytest.raises(SessionError, match="and no ranks of the plan hold it for all of them"):
        adjusted(plan_of(job()), left_by(two))
    shared = plan_of(job(data_degree=2, tensor_degree=1, zero_stage=1))
    with pytest.raises(SessionError, match=r"exp_avg', and no ranks .*that do: none"):
        with_leavers(plan_of(job(tensor_degree=1)), (0, 2), left_by(shared))
    with pytest.raises(SessionError, match=r"ranks of the session that do: 0, 1\)"):
        with_leavers(plan_of(job(tensor_degree=1)), (2, 3), left_by(two))


def test_a_rank_that_holds_something_leaves_before_others_join() -> None:
    """Joining on fewer ranks than hold something is a mistake."""
    two = plan_of(job(data_degree=2, tensor_degree=1))
    with pytest.raises(SessionError, match="rank 1 holds what earlier plans left, and does not take part"):
        with_joiners(plan_of(job(tensor_degree=1)), (0, 2), left_by(two))


def test_more_layers_than_there_are_cannot_move() -> None:
    """The error names the key and both stages."""
    with pytest.raises(SpecError, match="stage 0 has 2 layers, 3 are to go to stage 1"):
        with_layers_moved(job(), 0, 1, 3)
