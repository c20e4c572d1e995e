"""Functions that a program repeats under other names."""

from functools import partial

import pytest

from sim.plan.errors import PlanError
from sim.plan.functions import basic as f
from sim.plan.functions.gradients import backpropagate
from sim.plan.functions.repeated import Repeated
from sim.plan.functions.tracing import ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.mesh import Mesh


def tensor(program: ProgramTracer, name: str) -> Tensor:
    """Add a tensor to a program."""
    return program.tensor(Buffer(name, (2, 3), "float32", Kind.ACTIVATION))


def doubled(name: str, t: TaskTracer, x: Tensor) -> Tensor:
    """Return x + 2 x: x is used twice."""
    return f.add(t, f"{name}.sum", f.scaled(t, f"{name}.scaled", x, 2.0), x)


def new_tracer() -> TaskTracer:
    """Return the tracer of an empty task of an empty program."""
    return TaskTracer(ProgramTracer(Mesh({}), "float32", "float32"))


def test_a_copy_adds_gradients_as_a_traced_function_does() -> None:
    """Each call gets its own terms, in the same order, and their sum is under its own name."""
    t, repeated = new_tracer(), Repeated()
    x = tensor(t.program, "x")
    y = repeated(t, "b", "doubled", partial(doubled, "b"), repeated(t, "a", "doubled", partial(doubled, "a"), x))
    r = TaskTracer(t.program)
    backpropagate(r, t.tape, {y: tensor(t.program, "dy")})
    assert [(op.name, op.reads) for op in t.ops + r.ops] == [
        ("a.scaled", ("x",)), ("a.sum", ("a.scaled", "x")), ("b.scaled", ("a.sum",)), ("b.sum", ("b.scaled", "a.sum")),
        ("b.scaled.backward", ("dy",)), ("a.sum.gradient_sum", ("dy", "b.scaled.backward")),
        ("a.scaled.backward", ("a.sum.gradient_sum",)),
        ("x.gradient_sum", ("a.sum.gradient_sum", "a.scaled.backward")),
    ]  # fmt: skip


def twice(name: str, t: TaskTracer, x: Tensor) -> Tensor:
    """Return GELU of GELU of x."""
    return f.elementwise(t, f"{name}.outer", "gelu", f.elementwise(t, f"{name}.inner", "gelu", x))


def test_a_tape_may_go_backward_several_times() -> None:
    """It does so under local updates. Each time it reads what forward kept, and writes under other names."""
    t, repeated = new_tracer(), Repeated()
    x = tensor(t.program, "x")
    for name in "ab":
        x = repeated(t, name, "twice", partial(twice, name), x)
    r = TaskTracer(t.program)
    for number in range(3):
        backpropagate(r, t.tape, {x: tensor(t.program, f"dy{number}")})
    numbered = ("", ".2", ".3")
    assert [op.reads for op in r.ops] == [
        reads
        for number, end in enumerate(numbered)
        for reads in [(f"dy{number}", "b.inner"), (f"b.outer.backward{end}", "a.outer"),
                      (f"b.inner.backward{end}", "a.inner"), (f"a.outer.backward{end}", "x")]
    ]  # fmt: skip


def test_a_second_function_of_a_name_is_numbered_or_refused() -> None:
    """Names are given out as if it were traced: a buffer of another task that has the name is an error."""
    t, repeated = new_tracer(), Repeated()
    x = tensor(t.program, "x")
    for name in ("a", "b", "a"):
        x = repeated(t, name, "doubled", partial(doubled, name), x)
    assert [op.name for op in t.ops][-2:] == ["a.scaled.2", "a.sum.2"]
    with pytest.raises(PlanError, match="defined twice"):
        repeated(TaskTracer(t.program), "b", "doubled", partial(doubled, "b"), x)


@pytest.mark.parametrize(("name", "told"), [("other", {}), ("own", {"of": "own{}"}), ("own", {"of": "other"})])
def test_a_function_that_writes_what_is_not_its_own_is_traced_each_time(name: str, told: dict[str, str]) -> None:
    """One names its buffers otherwise, one tells a kernel its name. A text that is no such name can be copied."""
    t, repeated, traced = new_tracer(), Repeated(), list[str]()

    def function(number: int, t: TaskTracer, x: Tensor) -> Tensor:
        traced.append(f"{name}{number}")
        attributes = {key: text.format(number) for key, text in told.items()}
        return t.compute(f"{name}{number}.scaled", "scaled", (x,), (x.layout,), factor=2.0, **attributes)[0]

    x = tensor(t.program, "x")
    for number in (1, 2, 3):
        x = repeated(t, f"own{number}", "scaled", partial(function, number), x)
    assert len(traced) == (1 if told == {"of": "other"} else 3)


def test_a_function_of_other_tensors_is_refused() -> None:
    """Its gradient would be lost."""
    t, repeated = new_tracer(), Repeated()
    x, other = tensor(t.program, "x"), tensor(t.program, "other")
    y = repeated(t, "a", "sum", lambda t, x: f.add(t, "a.sum", x, other), x)
    with pytest.raises(PlanError, match="other tensors"):
        backpropagate(TaskTracer(t.program), t.tape, {y: tensor(t.program, "dy")})
