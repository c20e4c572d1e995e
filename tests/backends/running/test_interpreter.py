"""One rank's program, run in this process."""

import threading
import time
from collections.abc import Sequence

import pytest
import torch

from backends.execution.errors import ExecutionError, OpError
from backends.torch.communication.groups import Communicators
from backends.torch.running.devices import CpuDevice, RankTimes
from backends.torch.running.interpreter import Interpreter
from backends.torch.running.state import persistent_slots
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute, Op
from tests.backends.plans import plan_of, source, step_buffer

ALONE = Mesh((("tp", 1),))


def delay(
    name: str, duration_s: float, stream: str, *, reads: Sequence[str] = (), writes: Sequence[str] = ()
) -> Compute:
    """Return an op that takes a stated time."""
    return Compute(name, "delay", tuple(reads), tuple(writes), {"duration_s": duration_s}, stream)


def run(ops: Sequence[Op], *buffers: Buffer) -> tuple[Interpreter, RankTimes]:
    """Run ops on a mesh of one rank."""
    plan = plan_of(ops, [source(ALONE, ("tp",)), *buffers], ALONE)
    interpreter = Interpreter(
        plan, 0, CpuDevice(), Communicators(torch.device("cpu"), 10.0), persistent_slots(plan, 0, torch.device("cpu"))
    )
    interpreter.prepare(0, 1)
    return interpreter, interpreter.run(time.perf_counter(), time_ops=True)


def test_streams_run_side_by_side_and_hazards_are_kept() -> None:
    """Two delays overlap; a third op waits for both, in time order of its hazards."""
    ops = [
        delay("left", 0.2, "one", writes=["a"]),
        delay("right", 0.2, "two", writes=["b"]),
        Compute("sum", "add", ("a", "b"), ("c",), stream="three"),
        delay("again", 0.0, "two", reads=["c"], writes=["b"]),
    ]
    _, times = run(ops, *(step_buffer(name, 2) for name in "abc"))
    assert times.starts_s[1] < times.ends_s[0]
    assert times.starts_s[2] >= max(times.ends_s[:2])
    assert times.starts_s[3] >= times.ends_s[2]
    assert 0.2 <= times.step_s < 0.35


def test_memory_comes_back_when_the_last_reader_is_done() -> None:
    """After the step only persistent buffers hold tensors."""
    ops = [Compute("double", "add", ("x", "x"), ("y",)), Compute("more", "add", ("y", "x"), ("z",))]
    interpreter, _ = run(ops, step_buffer("y", 2, 6), step_buffer("z", 2, 6))
    assert [key[0] for key, slot in interpreter.schedule.slots.items() if slot.tensor is not None] == ["x"]


def test_kernel_that_breaks_its_declaration_is_refused() -> None:
    """An output of another shape than the plan declares is an error, not a wrong memory figure."""
    half = Compute("half", "slice", ("x",), ("y",), {"dim": 0, "axes": (), "parts": 2})
    with pytest.raises(OpError, match=r"op 'work/half': the plan declares 'y' as \(\(2, 6\).* gave \(\(1, 6\)"):
        run([half], step_buffer("y", 2, 6))


def test_reading_what_nobody_wrote_is_refused() -> None:
    """The op and the buffer are named."""
    with pytest.raises(OpError, match=r"rank 0, stream 'compute', op 'work/sum': reads 'y', which nothing has written"):
        run([Compute("sum", "add", ("x", "y"), ("z",))], step_buffer("y", 2, 6), step_buffer("z", 2, 6))


def test_an_error_on_one_stream_stops_the_others() -> None:
    """A stream that waits for the failed op ends too; the error comes at once, not after the long delay."""
    ops = [
        delay("long", 5.0, "one"),
        Compute("broken", "add", ("x", "w"), ("y",), stream="two"),
        Compute("waits", "add", ("y", "y"), ("z",), stream="three"),
    ]
    odd = Buffer("w", (5,), "float64", Kind.PARAMETER, Scope.PERSISTENT)
    began_s = time.monotonic()
    with pytest.raises(OpError, match=r"stream 'two', op 'work/broken': RuntimeError"):
        run(ops, odd, step_buffer("y", 2, 6), step_buffer("z", 2, 6))
    assert time.monotonic() - began_s < 2.0
    deadline_s = time.monotonic() + 2.0
    while any(thread.name == "three" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "a stream still waits for an op that failed"
        time.sleep(0.05)


def test_unknown_initial_values_are_refused() -> None:
    """The buffer and the method are named."""
    strange = Buffer("w", (2,), "float64", Kind.PARAMETER, Scope.PERSISTENT, initial=Initial("magic"))
    with pytest.raises(ExecutionError, match="buffer 'w': unknown initial method 'magic'"):
        run([], strange)
