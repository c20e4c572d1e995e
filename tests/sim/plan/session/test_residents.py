"""What plans of a session leave, and which plans may go on from there."""

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from sim.plan.errors import SessionError
from sim.plan.session.residents import MOST_OBSERVED_BYTES, Residents
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.layout import sharded
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op
from sim.plan.words.program import Call, Phase, Plan, Program, Task

MESH = Mesh((("dp", 2),))


def kept(name: str, *shape: int, axes: tuple[str, ...] = (), piece: tuple[str, ...] = ()) -> Buffer:
    """Return a persistent buffer: replicated, a slice over ``axes``, or a flat piece that names the axes of pieces."""
    whole = (shape[0] * 2, *shape[1:]) if axes else ()
    initial = Initial("zeros", "" if piece else name, axes=piece)
    return Buffer(
        name, shape, "float64", Kind.PARAMETER, Scope.PERSISTENT, initial=initial, global_shape=whole,
        layout=sharded(0, axes),
    )  # fmt: skip


def plan_of(ops: Iterable[Op], *buffers: Buffer, mesh: Mesh = MESH, **more: object) -> Plan:
    """Return a plan in which all ranks run these ops once; ``more``: of its fields."""
    program = Program(
        {}, {b.name: b for b in buffers}, {"work": Task("work", Phase.FORWARD, tuple(ops))}, (Call("work"),)
    )
    return replace(Plan("some", mesh, (program,)), **more)


def change(*names: str) -> Compute:
    """Return an op that reads and writes buffers in place."""
    return Compute("scale", "scale", names, names, {"factor": 2.0})


def make(name: str, *shape: int) -> Compute:
    """Return an op that writes a buffer that it does not read."""
    return Compute(f"make.{name}", "zeros", (), (name,), {"shapes": (shape,), "dtype": "float64"})


def after(*plans: Plan) -> Residents:
    """Return what plans leave that may all run one after the other."""
    residents = Residents()
    for plan in plans:
        residents.check(plan, 4)
        residents = residents.after(plan)
    return residents


X = kept("x", 3)
USE_X = plan_of([change("x")], X)


def test_the_first_plan_starts_everywhere() -> None:
    """What the first plan of a session reads needs nobody before it; its steps are counted."""
    residents = after(USE_X, USE_X)
    assert residents.holders("x") == [0, 1]
    assert (residents.num_plans, residents.num_steps) == (2, 2)


def test_steps_of_a_plan_that_holds_several_count() -> None:
    """Two plans of three and of no steps leave three."""
    assert after(replace(USE_X, num_steps=3), replace(USE_X, num_steps=0)).num_steps == 3


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            plan_of([change("y")], kept("y", 3)),
            "reads 'y', which no earlier plan left there (ranks that hold it: none)",
        ),
        (plan_of([change("x")], kept("x", 4)), "with shape (4,); an earlier plan left it there with (3,)"),
        (plan_of([change("x")], replace(X, dtype="float32")), "as float32 in device memory"),
        (replace(USE_X, ranks=(1, 2)), "rank 2 (role all) reads 'x', which no earlier plan left there"),
        (plan_of([change("x")], X, mesh=Mesh((("dp", 3),))), "rank 2 (role all) reads 'x'"),
    ],
    ids=["new name", "shape", "type", "other ranks", "more ranks"],
)
def test_a_plan_that_reads_what_is_not_there_is_refused(plan: Plan, words: str) -> None:
    """Another name, shape or type, or a rank that has nothing: the message names rank, buffer and who holds it."""
    with pytest.raises(SessionError) as caught:
        after(USE_X).check(plan, 4)
    assert words in str(caught.value)


@pytest.mark.parametrize("buffer", [kept("w", 3, axes=("dp",)), kept("w", 3, piece=("dp",))], ids=["slice", "piece"])
def test_slices_and_pieces_belong_to_their_place(buffer: Buffer) -> None:
    """Two ranks that change places have each other's slices, though of the right shape."""
    plan = plan_of([change("w")], buffer)
    with pytest.raises(SessionError, match="elements"):
        after(plan).check(replace(plan, ranks=(1, 0)), 2)
    after(plan, replace(plan, ranks=(0, 1)))


def test_what_is_nowhere_named_belongs_to_its_rank() -> None:
    """A piece that does not say over which axes it is one is known by its rank's coordinates alone."""
    plan = plan_of([change("w")], replace(kept("w", 3), initial=Initial("zeros")))
    with pytest.raises(SessionError, match="'w'"):
        after(plan).check(replace(plan, ranks=(1, 0)), 2)


def test_what_a_plan_writes_first_it_need_not_hold() -> None:
    """A buffer that is made, or that a broadcast brings to all but its root, may be new."""
    brought = Collective("b", CollectiveKind.BROADCAST, ("dp",), ("x",), ("x",), "moves")
    one = plan_of([change("x")], X, mesh=Mesh((("dp", 1),)))
    both = after(one, plan_of([brought, change("x")], X), plan_of([make("y", 3), change("y")], kept("y", 3)))
    assert both.holders("x") == both.holders("y") == [0, 1]
    after(one, plan_of([replace(brought, root=1), change("x")], X, ranks=(2, 0)))
    with pytest.raises(SessionError, match="rank 2 "):
        after(one).check(plan_of([brought, change("x")], X, ranks=(2, 0)), 4)


def test_buffers_live_on_through_plans_that_do_not_name_them() -> None:
    """A plan on other buffers, or on other ranks, leaves the others as they are."""
    other = plan_of([make("y", 2), change("y")], kept("y", 2))
    after(USE_X, other, replace(other, ranks=(2, 3)), USE_X)


def test_what_is_given_up_is_gone() -> None:
    """Neither a released buffer, nor those of a rank that has left, are there for a later plan."""
    [program] = USE_X.programs
    released = replace(USE_X, programs=(replace(program, released=frozenset({"x"})),))
    other = plan_of([make("y", 2), change("y")], kept("y", 2), ranks=(2, 3))
    for plan in (released, replace(other, leavers=frozenset({1}))):
        with pytest.raises(SessionError, match="reads 'x', which no earlier plan left there"):
            after(USE_X, plan).check(USE_X, 4)
    with pytest.raises(SessionError, match="gives up 'z', no persistent buffer of it"):
        after().check(replace(USE_X, programs=(replace(program, released=frozenset({"z"})),)), 4)


def test_a_plan_that_leaves_work_to_the_next_is_refused() -> None:
    """A call of the step before has no step before it in a session whose plans change."""
    [program] = USE_X.programs
    lagging = replace(USE_X, programs=(replace(program, calls=(Call("work", lag=1), Call("work"))),))
    with pytest.raises(SessionError, match="leaves work to the step after it"):
        after().check(lagging, 2)


def test_observed_buffers_are_small() -> None:
    """A buffer of more than 1 MiB, all its micro-batches together, is not seen."""
    elements = MOST_OBSERVED_BYTES // 8
    for count, words in ((1, ""), (2, f"which has {2 * MOST_OBSERVED_BYTES:,} bytes")):
        buffer = Buffer("a", (elements,), "float64", Kind.ACTIVATION)
        plan = plan_of([make("a", elements)], buffer, observed=frozenset({"a"}))
        [program] = plan.programs
        plan = replace(plan, programs=(replace(program, calls=tuple(Call("work", i) for i in range(count))),))
        if not words:
            after().check(plan, 2)
        else:
            with pytest.raises(SessionError, match=words):
                after().check(plan, 2)
