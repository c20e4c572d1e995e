"""What is measured: kernels, collectives, messages and handoffs between streams, each as a plan of many repeats.

The plans run as any other, through the same interpreter, threads and streams: what it costs to issue an op is in the
figures, as it is in a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from sim.plan.buffer import Buffer, Initial, Kind, Scope
from sim.plan.layout import REPLICATED
from sim.plan.mesh import Mesh
from sim.plan.op import Collective, CollectiveKind, Compute, Direction, Op, Recv, Send
from sim.plan.program import Call, Phase, Plan, Program, Task


class Benchmark(Protocol):
    """One thing to measure. ``key``: a name that no other has."""

    @property
    def key(self) -> str:
        """Return the benchmark's name."""

    @property
    def ops_per_repeat(self) -> int:
        """Return how many times a repeat does what is measured."""

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return a plan over at most so many ranks that does it ``repeats`` times, one after the other."""


@dataclass(frozen=True, slots=True)
class KernelBenchmark:
    """One kernel on buffers of given shapes, on all processes at once. ``buffers``: those that the op names."""

    key: str
    op: Compute
    buffers: Mapping[str, Buffer] = field(hash=False)
    ops_per_repeat: int = 1

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return the kernel, again and again: what it reads stays, what it only writes is new each time."""
        buffers = [_input(self.buffers[name]) for name in dict.fromkeys(self.op.reads)]
        written = dict.fromkeys(name for name in self.op.writes if name not in self.op.reads)
        buffers += [_output(self.buffers[name]) for name in written]
        mesh = Mesh((("pp", 1), ("dp", processes), ("tp", 1)))
        return _plan(self.key, mesh, [_program({}, buffers, (self.op,), repeats)])


@dataclass(frozen=True, slots=True)
class CollectiveBenchmark:
    """One collective of float32 among ``group`` neighbours, in as many groups at once as there are processes for.

    ``num_bytes`` as the cost models count a collective's payload, a multiple of 4 x ``group``.
    """

    kind: CollectiveKind
    num_bytes: int
    group: int
    ops_per_repeat: int = 1

    @property
    def key(self) -> str:
        """Return kind, payload and group."""
        return f"{self.kind} {self.num_bytes} B {self.group} ranks"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return the collective, again and again, on one stream."""
        whole = self.num_bytes // 4
        gathers, scatters = self.kind is CollectiveKind.ALL_GATHER, self.kind is CollectiveKind.REDUCE_SCATTER
        x = _vector("x", whole // self.group if gathers else whole, Scope.PERSISTENT)
        in_place = self.kind is CollectiveKind.ALL_REDUCE
        y = _vector("y", whole // self.group if scatters else whole, Scope.MICROBATCH)
        buffers, writes = ([x], ("x",)) if in_place else ([x, y], ("y",))
        dim = None if self.kind in {CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST} else 0
        op = Collective("collective", self.kind, ("g",), ("x",), writes, "wire", dim=dim)
        mesh = Mesh((("dp", processes // self.group), ("g", self.group)))
        return _plan(self.key, mesh, [_program({}, buffers, (op,), repeats)])


@dataclass(frozen=True, slots=True)
class MessageBenchmark:
    """A float32 message there and back between pairs of neighbours; each way is one message."""

    num_bytes: int
    ops_per_repeat: int = 2

    @property
    def key(self) -> str:
        """Return the size."""
        return f"message {self.num_bytes} B"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return a ball thrown to and fro: each side sends what it has just received."""
        there = Send("there", "pp", 1, Direction.FORWARD, ("x",), "send")
        caught = Recv("caught", "pp", -1, Direction.FORWARD, ("x",), "receive")
        back = Send("back", "pp", -1, Direction.BACKWARD, ("x",), "send")
        returned = Recv("returned", "pp", 1, Direction.BACKWARD, ("x",), "receive")
        x = _vector("x", self.num_bytes // 4, Scope.PERSISTENT)
        programs = [
            _program({"pp": 0}, [x], (there, returned), repeats),
            _program({"pp": 1}, [x], (caught, back), repeats),
        ]
        return _plan(self.key, Mesh((("dp", processes // 2), ("pp", 2))), programs)


@dataclass(frozen=True, slots=True)
class HandoffBenchmark:
    """The least kernel there is, on one stream or by turns on two (``hands_over``): a handoff is the difference."""

    hands_over: bool
    ops_per_repeat: int = 2

    @property
    def key(self) -> str:
        """Return what is done."""
        return "handoff" if self.hands_over else "no handoff"

    def plan(self, processes: int, repeats: int) -> Plan:
        """Return two kernels per repeat, each waiting for the one before."""
        one = Compute("one", "zero", ("x",), ("x",))
        other = replace(one, name="other", stream="other" if self.hands_over else one.stream)
        x = _vector("x", 1, Scope.PERSISTENT)
        return _plan(self.key, Mesh((("dp", processes),)), [_program({}, [x], (one, other), repeats)])


def _input(buffer: Buffer) -> Buffer:
    """Return a buffer that is there from the beginning: ones, whole numbers zero (the first row of any table)."""
    method = "zeros" if buffer.dtype.startswith("int") else "ones"
    return replace(
        buffer, scope=Scope.PERSISTENT, initial=Initial(method), global_shape=(), layout=REPLICATED, tier="device"
    )


def _output(buffer: Buffer) -> Buffer:
    return replace(buffer, scope=Scope.MICROBATCH, initial=None, global_shape=(), layout=REPLICATED)


def _vector(name: str, length: int, scope: Scope) -> Buffer:
    initial = Initial("zeros") if scope is Scope.PERSISTENT else None
    return Buffer(name, (length,), "float32", Kind.WORKSPACE, scope, initial=initial)


def _program(role: Mapping[str, int], buffers: list[Buffer], ops: tuple[Op, ...], repeats: int) -> Program:
    calls = tuple(Call("work", index) for index in range(repeats))
    return Program(role, {b.name: b for b in buffers}, {"work": Task("work", Phase.FORWARD, ops)}, calls)


def _plan(name: str, mesh: Mesh, programs: list[Program]) -> Plan:
    return Plan(name, mesh, tuple(programs))
